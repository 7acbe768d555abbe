"""`make bench`: every benchmark, in one run, on the embedded pair. Exit status 1 if a limit is missed.

`python -m benchmarks soak minutes=10` runs the soak, which is in no other run. Neither are `benchmarks.cluster`, which
needs Ray, `benchmarks.dsdsim`, which needs a checkout, and `benchmarks.screenshot`, which needs a browser.
"""

import sys

from benchmarks import (
    compression,
    job,
    lossless,
    overhead,
    packing,
    partition,
    passes,
    plan,
    scheduler,
    simulation,
    sweep,
    transport,
)
from benchmarks import cuda as cuda_speed
from benchmarks import engine as engine_speed
from benchmarks import llama_cpp as llama_cpp_speed
from benchmarks import onnx as onnx_speed
from benchmarks.pair import artifacts


def main() -> int:
    if sys.argv[1:2] == ["soak"]:
        from benchmarks import soak

        return 0 if soak.main(sys.argv[2:]) else 1
    found = artifacts()
    large, small, corpus = found["cloud_model"], found["device_model"], found["corpus"]
    passed = [
        plan.main(),
        job.main(),
        lossless.main(large, corpus),
        packing.main(),
        simulation.main(),
        sweep.main(),
        overhead.main(),
        compression.main(),
        transport.main(),
        scheduler.main(),
        partition.main(),
        passes.main(large, small),
        onnx_speed.main(small, corpus),
        llama_cpp_speed.main(small, corpus),
    ]
    passed.append(cuda_speed.main([]) == 0)
    passed.append(engine_speed.main([str(large), str(small), "--items", str(corpus / "test.jsonl")]) == 0)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
