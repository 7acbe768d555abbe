"""One file per data set; `gsm8k.py` is a short example."""
