"""Latency coefficients from a chip's figures and an architecture's shape."""

from typing import TYPE_CHECKING

from serving.hardware.architecture import Architecture, Precision
from serving.hardware.latency import LatencyModel

if TYPE_CHECKING:
    from serving.hardware.chip import Chip


def roofline(
    chip: "Chip", mode: str | None, architecture: Architecture, precision: Precision, tensor_parallel: int = 1
) -> LatencyModel:
    """Coefficients from a chip's figures and an architecture's shape.

    Linear layers: 2 FLOPs a weight, over the chip's dense peak times its compute efficiency. Attention: 4 x head_dim
    FLOPs a head and pair, over the same. Cached tokens: their KV bytes over bandwidth times bandwidth efficiency.
    Constant: the weights' bytes over the same, and the launch overhead. Compute and reading are added, as Eq. 19 does,
    where a true roofline takes the larger: at most twice too slow, where both are equal. Tensor parallelism divides
    all but the launch overhead; its all-reduces are not charged. Raises ValueError for a chip without such figures.
    """
    figures = chip.mode(mode)
    peak = figures.fp32_tflops if precision == "fp32" else figures.fp16_tflops
    if peak is None or figures.memory_gbps is None:
        raise ValueError(
            f"chip {chip.name} has no {'FP32' if precision == 'fp32' else 'FP16'} peak or no bandwidth in mode "
            f"{mode or chip.default_mode}, so no roofline can be drawn. Use its profile (timing: profile) or give both."
        )
    flops = peak * 1e12 * chip.compute_efficiency * tensor_parallel
    nbytes = figures.memory_gbps * 1e9 * chip.bandwidth_efficiency * tensor_parallel
    return LatencyModel(
        a_s=2 * architecture.matmul_parameters / flops,
        b_compute_s=architecture.flops_per_interaction() / flops,
        b_read_s=architecture.kv_nbytes_per_token(precision) / nbytes,
        c_s=architecture.blocks_nbytes(precision) / nbytes + chip.launch_overhead_s,
        head_token_s=2 * architecture.head_parameters / flops,
        head_c_s=architecture.head_nbytes(precision) / nbytes,
        layers=architecture.layers,
        source=f"roofline of {chip.name} in mode {mode or chip.default_mode}, {architecture.name}, {precision}"
        + (f", {tensor_parallel} chips" if tensor_parallel > 1 else ""),
    )
