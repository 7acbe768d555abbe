"""What is asked, when and by whom: data sets, metrics, arrivals, SLO classes."""
