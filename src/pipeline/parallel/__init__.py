"""Sweeps whose jobs run side by side: on the cores of this machine, on a Slurm cluster, or on a Ray cluster."""
