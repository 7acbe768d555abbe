"""A graph network that maps requests to the nodes of a tier, trained in simulation (Hyperion, section V-A)."""
