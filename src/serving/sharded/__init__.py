"""One model over several processes of a machine: each holds a share of every block's heads (tensor parallelism)."""
