"""WISP's testbed with devices that send requests without end, built without the pipeline."""

from typing import Any

from serving.deployment.setup import Setup
from serving.outcomes.constant import ConstantAcceptance
from serving.policy.policy import Policy
from serving.policy.slots.draft import WindowDraft
from serving.policy.slots.kv_cache import PrefixCaching
from serving.policy.slots.scheduler import ContinuousBatch
from serving.studies.capacity.cases import BlankDataset
from serving.workload.slo import SloClass
from serving.workload.workload import Workload
from tests.support.conf_files import bed, link
from tests.support.fake_setup import pair
from tests.support.policies import policy

ALWAYS = ConstantAcceptance(1.0, 100)
SOMETIMES = ConstantAcceptance(0.73, 100)


def wisp_like(k: int = 8) -> Policy:
    return policy("sled", draft=WindowDraft(k), kv_cache=PrefixCaching(), scheduler=ContinuousBatch(256))


def setup(rate: float = 2.0, chosen: Policy | None = None, network: str = "ideal", **how: Any) -> Setup:
    classes = how.pop("slo", (SloClass(name="c", tokens_per_s=rate),))
    dataset = how.pop("dataset", BlankDataset())
    limits = {"max_prompt_tokens": 100, "max_new_tokens": 18} | how
    workload = Workload(dataset=dataset, slo=classes, **limits)
    return Setup(pair("qwen3_0_6b", "qwen3_32b"), bed("wisp"), link(network), workload, chosen or wisp_like())
