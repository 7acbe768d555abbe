"""The packing factor of Synera's cloud cost."""

from serving.architecture import Architecture

REPORTED = {
    "llama2_70b": 1.0, "llama2_13b": 6.0, "llama2_7b": 13.0, "tinyllama_1_1b": 86.0, "llama_160m": 558.0, "yi_34b": 2.0,
    "yi_6b": 15.0, "falcon_40b": 2.0, "falcon_7b": 13.0,
}  # fmt: skip
"""Synera, Table 3: concurrent models on the cluster within 10 % latency, normalised by Llama-2-70B."""
_LLAMA2_70B_PARAMETERS = 68_976_648_192


def packing_factor(architecture: Architecture) -> tuple[float, str]:
    """How many such models cost what one Llama-2-70B costs, and where the figure comes from.

    What Synera's Table 3 does not list is derived by weights alone, which lies within a sixth of its 13B figure.
    """
    if architecture.name in REPORTED:
        return REPORTED[architecture.name], "Synera, Table 3"
    return _LLAMA2_70B_PARAMETERS / architecture.parameters(), "derived: ratio of weights to Llama-2-70B"
