"""The workload of a run: prompts of a data set on devices, with arrivals, SLO classes and length limits."""

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from serving.workload import slo
from serving.workload.arrivals import Arrival, Arrivals, AzureTrace, ClosedLoop, Episodes, Poisson, checked_times
from serving.workload.dataset import Dataset
from serving.workload.encoding import ChatTokenizer, EncodedPrompt, Template, Truncate, encode_prompt
from serving.workload.metrics import check_metrics
from serving.workload.prompt import Prompt, check_prompts, select_prompts
from serving.workload.sharing import PromptSharing
from serving.workload.slo import SloClass


@dataclass(frozen=True)
class WorkloadRequest:
    """The `index`-th request of the workload and the `position`-th of its device, both counted from 0.

    `at_s` is None in a closed loop: the request starts `think_s` after the device's previous one ended, the first at 0.
    """

    index: int
    prompt: Prompt
    device: int
    position: int
    at_s: float | None
    think_s: float
    max_prompt_tokens: int
    max_new_tokens: int
    slo: SloClass | None
    sharing: PromptSharing | None = None
    workload_max_new_tokens: int | None = None
    """The workload's limit, of which the request's own may be a part; None: that is the workload's."""

    @property
    def session_name(self) -> str:
        """The session that answers it; random numbers and recorded sessions are found by this name."""
        return f"r{self.index:05d}"

    @property
    def longest_answer_tokens(self) -> int:
        """The most that any answer of the workload may have."""
        return self.workload_max_new_tokens or self.max_new_tokens


@dataclass(frozen=True, kw_only=True)
class Workload:
    """`num_prompts` prompts of `dataset`, drawn evenly over its tasks by `seed`, after skipping `skip` of them.

    `devices` None: as many as the testbed has. `path` is set by `workload.path=` and passed on to the data set. Raises
    ValueError for a value out of range.
    """

    dataset: Dataset
    arrivals: Arrivals = field(default_factory=ClosedLoop)
    slo: tuple[SloClass, ...] = ()
    devices: int | None = None
    max_concurrency: int = 1
    """Requests that a device serves at a time; others wait."""
    num_prompts: int = 120
    skip: int = 0
    reuse_prompts: bool = False
    """True: prompts may repeat if there are fewer than requests."""
    max_prompt_tokens: int = 1024
    max_new_tokens: int = 64
    template: Template = "auto"
    truncate: Truncate = "refuse"
    seed: int = 0
    path: Path | None = None
    sharing: PromptSharing | None = field(default=None, metadata={"omitted_at_default": True})
    """What prompts without text have in common; None: it does not matter."""
    section: ClassVar[str] = "workload"
    """Its address in the configuration, for error messages."""

    def __post_init__(self) -> None:
        for name in ("num_prompts", "max_concurrency", "max_prompt_tokens", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{self.section}.{name} must be 1 or more, got {getattr(self, name)}")
        if self.skip < 0:
            raise ValueError(f"{self.section}.skip must be 0 or more, got {self.skip}")
        if self.devices is not None and self.devices < 1:
            raise ValueError(f"workload.devices must be 1 or more (null: as the testbed), got {self.devices}")
        if self.path is not None and getattr(self.dataset, "path", None) != self.path:
            raise ValueError(f"workload.path={self.path} is set, but {self.dataset.name} does not read that file")
        if isinstance(self.arrivals, AzureTrace) and self.arrivals.use_lengths and self.truncate == "refuse":
            raise ValueError("workload.arrivals.use_lengths=true cuts prompts: set workload.truncate=left or middle")
        slo.check_classes(self.slo)
        check_metrics(self.dataset.metrics, f"{self.section}.dataset: {type(self.dataset).__name__}.metrics")
        self._check_files()

    @property
    def context_tokens(self) -> int:
        """Length of the longest prompt plus the longest answer."""
        return self.max_prompt_tokens + self.max_new_tokens

    def check_dataset(self, *, with_text: bool = False) -> None:
        """Raises ValueError if the data set can be read from nowhere, or is an artifact with too few prompts; with
        `with_text`, because models read the prompts, also if these have none.

        Fetches nothing, and reads no artifact that does not exist yet.
        """
        if with_text and not getattr(self.dataset, "has_text", True):
            raise ValueError(
                f"the prompts of {self.dataset.name} have no text, and models read them; choose another workload, "
                "or runtime=simulated runtime/outcomes=constant"
            )
        check = getattr(self.dataset, "check_source", None)
        if check:
            check()
        if getattr(self.dataset, "is_built", False):
            self._select(self._prompts())

    def _check_files(self) -> None:
        """Reads the user's files, so that errors show before any work; artifacts may not exist yet."""
        if isinstance(getattr(self.dataset, "path", None), Path):
            self.requests(1)
        elif not isinstance(self.arrivals, ClosedLoop | Poisson | Episodes):  # these are right by construction
            checked_times(self.arrivals, self.num_prompts, self.devices or 1, self.seed)

    def requests(self, num_devices: int | None = None) -> list[WorkloadRequest]:
        """All requests in random order; `num_devices` applies if `devices` is None.

        Raises ValueError if neither is given, or the data set cannot be read or has too few prompts.
        """
        count = self.devices if self.devices is not None else num_devices
        if count is None:
            raise ValueError("workload.devices is null and the testbed gives no number of devices; set one")
        prompts = self._select(self._prompts())
        arrivals = checked_times(self.arrivals, len(prompts), count, self.seed)
        classes = slo.assign_classes(self.slo, len(prompts), self.seed)
        num_before: Counter[int] = Counter()
        requests = []
        for index, (prompt, arrival, slo_class) in enumerate(zip(prompts, arrivals, classes, strict=True)):
            requests.append(self._request(index, prompt, arrival, num_before[arrival.device], slo_class))
            num_before[arrival.device] += 1
        return requests

    def _prompts(self) -> list[Prompt]:
        dataset, prompts = self.dataset, self.dataset.prompts()
        check_prompts(prompts, dataset.name, getattr(dataset, "has_text", True), bool(dataset.metrics))
        return prompts

    def _select(self, prompts: list[Prompt]) -> list[Prompt]:
        return select_prompts(prompts, self.num_prompts, self.seed, self.skip, self.reuse_prompts, self.section)

    def encode(self, request: WorkloadRequest, tokenizer: ChatTokenizer) -> EncodedPrompt:
        """Encodes the request's prompt within its limit. Raises ValueError that names a prompt that does not fit."""
        try:
            return encode_prompt(
                request.prompt.text,
                tokenizer,
                template=self.template,
                max_tokens=self.max_prompt_tokens,
                truncate=self.truncate,
                recorded_tokens=request.max_prompt_tokens,
            )
        except ValueError as error:
            raise ValueError(f"{self.dataset.name} prompt {request.prompt.id}: {error}") from error

    def _request(
        self, index: int, prompt: Prompt, arrival: Arrival, position: int, slo_class: SloClass | None
    ) -> WorkloadRequest:
        return WorkloadRequest(
            index,
            prompt,
            arrival.device,
            position,
            arrival.at_s,
            arrival.think_s,
            min(self.max_prompt_tokens, arrival.prompt_tokens or self.max_prompt_tokens),
            min(self.max_new_tokens, arrival.new_tokens or self.max_new_tokens),
            slo_class,
            self.sharing,
            self.max_new_tokens,
        )


@dataclass(frozen=True, kw_only=True)
class ProfilingWorkload(Workload):
    """The prompts that policies are trained and profiled on, beside those that are served: `workload.profiling`."""

    or_fewer: bool = False
    """True: all that are left if the data set has fewer than `num_prompts` after those that are skipped."""
    section: ClassVar[str] = "workload.profiling"

    def __post_init__(self) -> None:
        if getattr(self.dataset, "evaluation", "open") == "sealed":
            raise ValueError(
                f"{self.section}.dataset.evaluation is sealed; nothing is trained or profiled on sealed prompts: give "
                "workload.profiling.dataset=${open_half:${workload.dataset}}"
            )
        super().__post_init__()

    def _select(self, prompts: list[Prompt]) -> list[Prompt]:
        left = len(prompts) - self.skip
        if left < 1:
            raise ValueError(
                f"all {len(prompts)} prompts of {self.dataset.name} are served, and this policy is trained or profiled "
                "on others: lower workload.num_prompts, or give workload.profiling a dataset of its own and skip=0"
            )
        return (
            super()._select(prompts)
            if not self.or_fewer
            else replace(self, num_prompts=min(self.num_prompts, left), or_fewer=False)._select(prompts)
        )
