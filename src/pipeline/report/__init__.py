"""Reports of jobs and sweeps: records, metrics, tables, figures, MLflow, and exhibits that stand beside a paper's
numbers. Read `job.py` first.
"""
