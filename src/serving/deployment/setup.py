"""What a run serves, on which hardware, by which policy; checked as a whole before any work. And the limit of a
context: prompt and answer together.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from serving.core.decoding import Decoding
from serving.core.importance import importance_scores
from serving.core.scores import UNTRAINED_SCORES, reads_hidden_states
from serving.engines.checkpoint_architecture import max_positions
from serving.engines.models import Checkpoint, ModelPair
from serving.hardware.architecture import Architecture
from serving.hardware.fleet import check_memory
from serving.hardware.testbed import CLOUD, Testbed
from serving.messages import Hop
from serving.network.link import Link
from serving.policy.by_condition import PlacedPolicy
from serving.policy.policy import EngineRequirements, Policy
from serving.policy.slots.draft import TreeDraft, drafts_trees, max_tree_nodes
from serving.policy.slots.placement import DEVICE_TIER, TieredPlacement, UShapedPlacement
from serving.workload.workload import Workload

_WITHOUT_IMPORTANCE = {
    "draft": "window", "offload": "confidence, edgefm, hybrid, always or never", "lookahead": "none",
}  # fmt: skip
"""The choices without importance of each slot that may read it, for backends that cannot compute it."""


@dataclass(frozen=True)
class Setup:
    """The model pair, hardware, network, workload and policy of a run. A policy by condition becomes what it is here.

    Raises ValueError if a model does not fit into the memory of its chip, or a request into the cloud's cache, or if
    the policy names a tier that the testbed does not have.
    """

    pair: ModelPair
    hardware: Testbed
    network: Link
    workload: Workload
    policy: Policy
    decoding: Decoding = field(default_factory=Decoding)
    seed: int = 0

    def __post_init__(self) -> None:
        here = self.policy.on_testbed(self.pair, self.hardware, self.network, self.workload)
        object.__setattr__(self, "policy", here)
        self._check_tiers()
        self._check_server()
        self._check_decoding()
        self._check_shared_prefixes()
        self._check_scores()
        self._check_backend()
        self._check_timing()
        self._check_cache()
        self._check_memory()

    def on_clock(self, hardware: Testbed) -> "Setup":
        """The same deployment on chips of other speeds. Tiers are divided anew, since Hyperion profiles them; a policy
        by condition stays what was chosen, since it was chosen by the speeds that are predicted.
        """
        policy = self.policy.settled
        if isinstance(policy.placement, TieredPlacement | UShapedPlacement) and policy.placement.partition:
            partition = replace(policy.placement.partition, tiers=hardware.tiers)
            policy = replace(policy, placement=replace(policy.placement, partition=partition))
        return replace(self, hardware=hardware, policy=policy)

    def _check_memory(self) -> None:
        tokens = session_tokens(self, self.workload.context_tokens)
        drafter = self.pair.device.timed_architecture if self.policy.drafts_on_device else None
        if drafter:
            for fleet in self.hardware.device_fleets:
                caches = self.workload.max_concurrency + self.policy.kv_cache.device_idle_sessions
                check_memory(fleet, drafter, caches, tokens)
        for hop in self.hops:
            if tier := self.hardware.tier(hop.node):
                for model, beside in self.models_on_chips(self.hop_architecture(hop)):
                    check_memory(tier.largest_memory_fleet, model, 1, self.allocated_tokens, beside)
        if here := sum(hop.span.end_layer - hop.span.start_layer for hop in self.hops if hop.node == DEVICE_TIER):
            for fleet in self.hardware.device_fleets:
                check_memory(
                    fleet,
                    self.pair.cloud.timed_architecture.part(here, embedding=True, lm_head=True),
                    self.workload.max_concurrency,
                    tokens,
                    None if self.pair.device.adapter else drafter,  # an adapter's model shares these layers
                )

    def _check_timing(self) -> None:
        """Raises ValueError for a chip without latency coefficients, except those that a profile will give."""
        for model in self.device_models:
            for fleet in self.hardware.device_fleets:
                if fleet.timing != "profile":
                    fleet.latency(model)
        for hop in self.hops:
            tier = self.hardware.tier(hop.node)
            for fleet in tier.fleets if tier else ():
                if fleet.timing != "profile":
                    fleet.latency(self.pair.cloud.timed_architecture)
                    if self.cloud_drafter:
                        fleet.latency(self.cloud_drafter)

    def _check_tiers(self) -> None:
        hops = self.hops
        for hop in hops:
            if hop.node != DEVICE_TIER and self.hardware.tier(hop.node) is None:
                raise ValueError(
                    f"policy.placement: there is no tier {hop.node!r} in the testbed; there are here and "
                    f"{self.hardware.tier_names}"
                )
        cloud = self.hardware.cloud
        if cloud and cloud.count > 1 and any(hop.node.startswith("cloud.") for hop in hops):
            raise ValueError(
                f"hardware.cloud.count is {cloud.count}, and the placement makes a pipeline of the "
                "cloud: one pipeline is all that is served; set count=1, or name the nodes of each stage in tiers"
            )

    def _check_server(self) -> None:
        """Raises ValueError for what no inference server supports."""
        if self.pair.cloud.server is None:
            return
        if len(self.hops) > 1 or any(hop.node == DEVICE_TIER for hop in self.hops):
            raise ValueError(
                f"model.cloud.server runs a whole model, and placement={type(self.policy.placement).__name__} splits "
                "it; set policy/placement=cloud, or model.cloud.server=null"
            )
        if drafts_trees(self.policy.draft):
            raise ValueError(
                f"model.cloud.server judges no trees of drafts, as verify={type(self.policy.verify).__name__} asks; "
                "choose another policy, or model.cloud.server=null"
            )
        if self.decoding.temperature and self.requires_greedy:
            raise ValueError(
                f"decoding.temperature is {self.decoding.temperature}, and policy {self.policy.name} verifies drafts, "
                "which takes the distribution that a server keeps to itself; set temperature=0, or "
                "policy/verify=replace"
            )

    def _check_shared_prefixes(self) -> None:
        """Raises ValueError where nothing copies a cache."""
        cloud = self.pair.cloud
        if self.policy.kv_cache.idle_sessions is None:
            return
        if self.policy.drafts_in_cloud and self.pair.device.backend != "torch":
            raise ValueError(
                f"policy.kv_cache={type(self.policy.kv_cache).__name__} copies the caches of a draft model in the "
                f"cloud, which {self.pair.device.backend} does not; choose policy/kv_cache=reuse, or set "
                "model.device.backend=torch"
            )
        if cloud.server is not None or cloud.tensor_parallel > 1 or cloud.backend == "llama_cpp":
            raise ValueError(
                f"policy.kv_cache={type(self.policy.kv_cache).__name__} copies caches between sessions, which only the "
                "torch engine in one process does; choose policy/kv_cache=reuse, or set model.cloud.backend=torch, "
                "tensor_parallel=1 and server=null"
            )

    def _check_decoding(self) -> None:
        cloud = self.pair.cloud
        if self.decoding.exact and (cloud.server is not None or cloud.tensor_parallel > 1):
            where = "a server computes" if cloud.server is not None else "several processes compute"
            raise ValueError(
                f"decoding.exact is true, and {where} the cloud's model in an order of additions that is not "
                "chosen here; set decoding.exact=false"
            )

    def check_decoding_used(self) -> None:
        """Raises ValueError for an option of decoding, set away from its default, that no model of this policy reads. A
        policy by condition reads it under another one.
        """
        decoding, name = self.decoding, self.policy.name
        if isinstance(self.policy, PlacedPolicy):
            return
        if decoding.exact and not self.uses_target:
            raise ValueError(
                f"decoding.exact is true, and has no effect: it is about the cloud's model, which policy {name} never "
                "asks; set decoding.exact=false, or choose a policy that asks it"
            )
        if self._runs_torch:
            return
        for option in ("packed_weights", "cuda_graphs"):
            if not getattr(decoding, option):
                raise ValueError(
                    f"decoding.{option} is false, and has no effect: it is about models that torch runs, and policy "
                    f"{name} has none here; set decoding.{option}=true, or backend=torch for a model"
                )

    @property
    def _runs_torch(self) -> bool:
        """True if torch computes one of the models that the policy uses."""
        sides = ((self.pair.device, self.policy.draft.source == "model"), (self.pair.cloud, self.uses_target))
        return any(used and model.backend == "torch" and model.server is None for model, used in sides)

    def _check_scores(self) -> None:
        known = (*UNTRAINED_SCORES, *self.policy.scorers)
        for slot in (self.policy.draft, self.policy.offload, self.policy.lookahead):
            if isinstance(slot.requested_scores, str):  # ("margin") is a text: a tuple of one has a comma
                raise ValueError(  # noqa: TRY004 - what a person wrote
                    f"policy: requested_scores of {type(slot).__name__} is the text {slot.requested_scores!r}; a tuple "
                    f"is wanted: ({slot.requested_scores!r},)"
                )
        for name in self.policy.requested_scores:
            if name not in known:
                raise ValueError(f"policy: nothing computes a score {name!r}; there are {', '.join(known)}")

    def _check_backend(self) -> None:
        """Raises ValueError that names the slot which needs what a graph or llama.cpp does not give."""
        if self.pair.cloud.backend == "llama_cpp" and self.uses_target:
            self._check_llama_cpp_cloud()
        backend = self.pair.device.backend
        if backend == "torch" or self.policy.draft.source != "model":
            return
        here = f"model.device.backend={backend} runs the device's model whole, which shows"
        for slot, instead in _WITHOUT_IMPORTANCE.items():
            chosen = getattr(self.policy, slot)
            if importance_scores(chosen.requested_scores):
                raise ValueError(
                    f"policy.{slot}={type(chosen).__name__} reads importance, and {here} no attention; choose "
                    f"policy/{slot}={instead}, or set model.device.backend=torch"
                )
        if self.policy.early_exit.layer_exit is not None:
            raise ValueError(
                f"policy.early_exit={type(self.policy.early_exit).__name__} leaves before the last layer, and {here} "
                "none of them alone; choose policy/early_exit=none or sequence_wise, or set model.device.backend=torch"
            )
        grows_trees = isinstance(self.policy.draft, TreeDraft)
        if grows_trees:
            raise ValueError(
                f"policy.draft=TreeDraft runs several tokens of a level at once, and {here} one text; choose "
                "policy/draft=window and policy/verify=lossless, or set model.device.backend=torch"
            )
        for slot in ("draft", "offload", "lookahead") if backend == "llama_cpp" else ():
            if reads_hidden_states(chosen := getattr(self.policy, slot)):
                raise ValueError(
                    f"policy.{slot}={type(chosen).__name__} has a trained score that reads hidden states, and {here} "
                    f"none; choose another policy/{slot}, or set model.device.backend=torch"
                )

    def _check_llama_cpp_cloud(self) -> None:
        here = "model.cloud.backend=llama_cpp runs the cloud's model whole, in one place"
        (hop, *more), placement = self.hops, type(self.policy.placement).__name__
        if more or hop.node == DEVICE_TIER:
            raise ValueError(
                f"policy.placement={placement} splits the cloud's model, and {here}; choose policy/placement=cloud, "
                "or set model.cloud.backend=torch"
            )
        if drafts_trees(self.policy.draft) and self.policy.draft.medusa is None:
            raise ValueError(
                f"policy.draft={type(self.policy.draft).__name__} makes trees, and {here}, which judges chains; choose "
                "policy/draft=window and policy/verify=lossless, or set model.cloud.backend=torch"
            )
        if self.policy.engine_requirements.medusa is not None:
            raise ValueError(
                f"policy.draft={type(self.policy.draft).__name__} reads hidden states of the cloud's model, and {here} "
                "without showing them; choose another policy/draft, or set model.cloud.backend=torch"
            )

    def _check_cache(self) -> None:
        cache, taken = self.policy.kv_cache, self.allocated_tokens
        capacity = cache.capacity_tokens
        if self.uses_target and capacity is not None and capacity < taken:
            raise ValueError(
                f"policy.kv_cache.capacity_tokens is {capacity:.0f}, and one request may need {taken} "
                f"(workload.max_prompt_tokens + max_new_tokens, in blocks of {cache.block_tokens}); allow more, or "
                "shorter requests"
            )

    @property
    def allocated_tokens(self) -> int:
        """Tokens of the cloud's cache that one request may count, in whole blocks."""
        return self.policy.kv_cache.allocated_tokens(session_tokens(self, self.workload.context_tokens))

    @property
    def device_models(self) -> tuple[Architecture, ...]:
        """What devices run: a draft model, and the target where a placement puts some of its layers there."""
        pair, split = self.pair, any(hop.node == DEVICE_TIER for hop in self.hops)
        run = ((pair.device, self.policy.drafts_on_device), (pair.cloud, split))
        return tuple(model.timed_architecture for model, runs in run if runs)

    @property
    def reads_device_model(self) -> bool:
        """False if no model drafts, and the cloud's checkpoint gives the pair's tokenizer."""
        drafts = self.policy.draft.source == "model" or isinstance(self.policy, PlacedPolicy)
        return drafts or not self.pair.cloud.has_weights

    @cached_property
    def models(self) -> ModelPair:
        """The checkpoints that are loaded: the pair's, but the cloud's for the device's if that is not read."""
        if self.reads_device_model:
            return self.pair
        cloud = self.pair.cloud
        device = replace(
            self.pair.device, path=cloud.path, hub=cloud.hub, dtype=cloud.dtype, quantization="none", adapter=None,
            backend="torch", graph=None, gguf=None,
        )  # fmt: skip
        return replace(self.pair, device=device)

    @property
    def unread_artifacts(self) -> tuple[object, ...]:
        """Where the pair says that the device's model lies, if that is not read."""
        return () if self.reads_device_model else self.pair.device.artifacts

    @property
    def engine_requirements(self) -> EngineRequirements:
        """What policy, decoding and workload need from the engines."""
        needed = self.policy.engine_requirements.with_decoding(self.decoding)
        return replace(needed, sessions=self.num_devices * self.workload.max_concurrency)

    @property
    def requires_greedy(self) -> bool:
        """True if the server of the large model supports greedy decoding only."""
        return self.pair.cloud.server is not None and self.policy.engine_requirements.verifies_drafts

    @property
    def uses_target(self) -> bool:
        """True if the policy uses the large model."""
        return bool(self.hops)

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The hops of the timed large model."""
        depth = self.pair.cloud.timed_architecture.layers
        return self.policy.placement.hops(depth, depth)

    def hop_architecture(self, hop: Hop) -> Architecture:
        """The part of the timed large model that a hop runs."""
        whole, span = self.pair.cloud.timed_architecture, hop.span
        if span.embedding and span.lm_head:
            return whole
        return whole.part(span.end_layer - span.start_layer, span.embedding, span.lm_head)

    @property
    def cloud_drafter(self) -> Architecture | None:
        """The draft model that runs beside the target, if one does."""
        return self.pair.device.timed_architecture if self.policy.drafts_in_cloud else None

    def models_on_chips(self, part: Architecture) -> list[tuple[Architecture, Architecture | None]]:
        """For each set of chips of a cloud node that runs `part` of the target: its model, and the one beside it."""
        if self.cloud_drafter and self.policy.drafts_apart:
            return [(part, None), (self.cloud_drafter, None)]
        return [(part, self.cloud_drafter)]

    @property
    def chip_sets_per_cloud_node(self) -> int:
        """Sets of chips of a node of the cloud: the target's, and the draft model's where it has its own."""
        return 2 if self.policy.drafts_apart else 1

    @property
    def access_link(self) -> Link:
        """The link of devices that have none of their own: the first tier's, or the run's network."""
        first = self.hardware.tier(next(iter(self.hardware.tiers), CLOUD))
        return (first and first.link) or self.network

    def check_undisturbed(self) -> None:
        """Raises ValueError for links with outages and for nodes that fail, which load tests tell no node of."""
        links = [fleet.network or self.access_link for fleet in self.hardware.device_fleets]
        for place, broken in (
            ("network.outages, or that of a fleet,", any(link.outages for link in links)),
            ("outages of hardware.tiers", any(tier.outages for tier in self.hardware.tiers.values())),
        ):
            if broken:
                raise ValueError(
                    f"{place} are set, and a load test has none: it measures what is served while all is there; set "
                    "outages=null, or serve the workload (runtime=emulated or simulated)"
                )

    @property
    def num_devices(self) -> int:
        return self.workload.devices or sum(fleet.count for fleet in self.hardware.device_fleets)

    @property
    def cloud_cache_tokens(self) -> float:
        """Cached tokens that fit into a node's memory beside the weights of the timed architecture; the minimum over
        tiers and stages.
        """
        tiers = [(self.hardware.tier(hop.node), self.hop_architecture(hop)) for hop in self.hops]
        found = [tier.cache_tokens(*own) for tier, part in tiers if tier for own in self.models_on_chips(part)]
        return min(found, default=float("inf"))


def context_tokens(setup: Setup, requested: int | None = None) -> int:
    """The longest context in tokens that the models and the cloud's cache of a setup allow; `requested` if it is given.

    Raises ValueError if they allow less than `requested`, or no token, or a device's memory holds less.
    """
    bounds = _context_limits(setup)
    most, limit = min(bounds.values()), min(bounds, key=bounds.__getitem__)
    if most < 1:
        raise ValueError(f"{limit} has no room for a token beside a draft tree; give it more, or draft smaller trees")
    if requested and requested > most:
        raise ValueError(
            f"service.context_tokens is {requested}, and {limit} takes {most}; ask for fewer, or null for all"
        )
    found = requested or most
    if setup.policy.drafts_on_device:
        for fleet in setup.hardware.device_fleets:
            caches = 1 + setup.policy.kv_cache.device_idle_sessions
            check_memory(fleet, setup.pair.device.timed_architecture, caches, found)
    return found


def session_tokens(setup: Setup, context_len: int) -> int:
    """The most tokens of one session in the cloud: a whole context, and the draft tree behind it."""
    return context_len + max_tree_nodes(setup.policy.draft)


def _context_limits(setup: Setup) -> dict[str, int]:
    found = {}
    if setup.policy.draft.source == "model":
        found["the device's model"] = _max_positions(setup.pair.device)
    if setup.uses_target:
        cloud = setup.pair.cloud
        if cloud.server and cloud.server.context_tokens:
            found["the cloud's server"] = cloud.server.context_tokens
        elif cloud.has_weights:
            found["the cloud's model"] = _max_positions(cloud)
        own = setup.policy.kv_cache.capacity_tokens
        cache = min(setup.cloud_cache_tokens, setup.cloud_cache_tokens if own is None else own)
        if cache < float("inf"):
            block = setup.policy.kv_cache.block_tokens
            found["the cloud's cache"] = int(cache // block) * block - max_tree_nodes(setup.policy.draft)
    if not found:
        raise ValueError(
            "nothing says how long a conversation may be; set model.cloud.server.context_tokens to what the server "
            "takes"
        )
    return found


def _max_positions(checkpoint: Checkpoint) -> int:
    if isinstance(checkpoint.path, Path) and (known := max_positions(checkpoint.path)):
        return known
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(checkpoint.name_or_path).max_position_embeddings)
