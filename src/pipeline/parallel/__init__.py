"""Runs the jobs of a sweep in worker processes: on this machine, on a Slurm cluster or on a Ray cluster."""
