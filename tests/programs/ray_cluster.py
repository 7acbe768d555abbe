"""A Ray cluster of two hosts of one CPU each, both of them this machine; it says its address, and the second host's
process.

python ray_cluster.py      a line on standard input kills the second host, the end of the input stops the first
"""

import sys
from contextlib import suppress

from ray._private.ray_constants import PROCESS_TYPE_RAYLET
from ray.cluster_utils import Cluster


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second = cluster.add_node(num_cpus=1)
    host = second.all_processes[PROCESS_TYPE_RAYLET][0].process.pid
    print(cluster.address, host, flush=True)
    if sys.stdin.readline():
        kill(host)
        cluster.remove_node(second, allow_graceful=False)
        print("killed", flush=True)
        sys.stdin.readline()
    cluster.shutdown()


def kill(host: int) -> None:
    """Ends a host with its workers at once, as a power cut does: without that they go on until they miss the host."""
    import psutil  # which Ray brings along, on a path that it adds

    found = psutil.Process(host)
    for process in (found, *found.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            process.kill()


if __name__ == "__main__":
    main()
