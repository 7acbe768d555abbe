"""Which processor's figures stand in for what was not measured on another, and how far off such figures are where both
were measured.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from training.latency.published_speeds import PublishedSpeed
from training.latency.speed_fit import KERNELS, Array, SpeedFit

STAND_INS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "rtx_a6000": ("a100", ("vllm", "transformers")),
    "rtx_4090": ("a100", ("vllm", "transformers")),
    "rtx_3090": ("a100", ("vllm", "transformers")),
    "a40": ("a100", ("vllm", "transformers")),
    "l40s": ("a100", ("vllm", "transformers")),
    "h100": ("a100", ("vllm", "transformers")),
    "h20": ("a100", ("vllm", "llama_cpp")),
    "jetson_orin_nx": ("jetson_agx_orin", ("vllm", "transformers", "mlc")),
    "jetson_orin_nano": ("jetson_agx_orin", ("vllm", "transformers")),
    "jetson_agx_xavier": ("jetson_agx_orin", ("vllm", "transformers", "llama_cpp")),
    "macbook_m1": ("jetson_agx_orin", ("transformers",)),
    "pixel_7": ("raspberry_pi_5", ("llama_cpp",)),
}
"""Processor -> another one, and the software that was not measured on the first: it gets the other's figures."""


class StandInCheck(NamedTuple):
    """Rows of one software on a processor, and what they take by the figures of its stand-in."""

    stand_in: str
    speeds: list[PublishedSpeed]
    predicted_s: Array


def check_stand_ins(
    whole: SpeedFit, speeds: Sequence[PublishedSpeed], relatives: Sequence[PublishedSpeed]
) -> Iterator[StandInCheck]:
    """Each processor's rows, software by software and kind by kind, predicted by a fit that has seen none of them.

    `relatives` were measured on machines that a chip of conf is nearest to, and are not fitted to.
    """
    rows: dict[tuple[str, str, str], list[PublishedSpeed]] = defaultdict(list)
    for one in (*speeds, *relatives):
        if one.silicon in STAND_INS and one.software != KERNELS:
            rows[one.silicon, one.software, one.kind].append(one)
    for (silicon, software, _), own in sorted(rows.items()):
        stand_in = STAND_INS[silicon][0]
        fit = whole.refitted([one for one in speeds if one.silicon != silicon], {software})
        if fit.knows(stand_in, software):
            yield StandInCheck(stand_in, own, fit.predict_s(own, stand_in))
