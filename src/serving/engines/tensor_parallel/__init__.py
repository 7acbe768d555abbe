"""One model in several processes, sharded by DeepSpeed. Start with `worker_group.py`, which starts the processes;
`engine.py` runs in rank 0, `shard.py` in every rank, `commands.py` is what rank 0 sends.
"""
