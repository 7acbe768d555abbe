"""The Hydra plugin of `hydra/launcher=joblib`, `submitit_slurm` and `ray`; `launcher.py` is its only file."""
