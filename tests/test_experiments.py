"""Every experiment of conf/ runs at toy size; a policy on the command line wins."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from pipeline import api

RUNNER = Path(__file__).parent / "programs" / "run_commands.py"
CONF = Path(__file__).parents[1] / "conf" / "experiment"
NAMES = sorted(str(file.relative_to(CONF).with_suffix("")) for file in CONF.rglob("[!_]*.yaml"))
QUANTISED = "synera/table6"
DISTINCT = (
    "buy", "capacity", "compare", "hat/fig1b", "hat/fig1d", "hyperion/drafting", "hyperion/fig5",
    "hyperion/node_failures", "synera/fig14", "synera/fig4", "synera/table3", "token_routing/commonsense_qa",
    "what_if",
    "wisp/fig1", "wisp/fig11", "wisp/fig4", "wisp/fig9", "wisp/table12", "wisp/table2", "wisp/table7",
)  # fmt: skip
"""One experiment of a set of stages and runtime; the others add choices and figures to one of these, or are longer."""
LONGER = (
    "hat/fig1a", "hat/hidden_inversion", "hat/hidden_precision", "hat/table4", "hat/table5", "synera/fig13",
    "synera/fig18", "token_routing/frontier", "validate", "validate_grpc_pacing", "wisp/embedded_pair", "wisp/fig10",
    "wisp/fig2", "wisp/matched_recall", "wisp/slo", "wisp/table11", "wisp/table5", "wisp/table9", "wisp/theorem1",
)  # fmt: skip
"""Sets of stages of their own, whose functions have tests, and which take four seconds and more; run with the others.
real_run's processes take a minute, validate_grpc_pacing's a quarter of one.
"""
TOY = (
    "model=toy",
    "workload.num_prompts=6",
    "workload.devices=2",
    "workload.profiling.num_prompts=24",
    "trainer.threads=1",
    "tracking.uri=none",
)


EFFORT = "hardware.stages.local_latency.options"
SMALL = (f"{EFFORT}.configurations=12", f"{EFFORT}.held_out=6", f"{EFFORT}.repeats=1", f"{EFFORT}.bootstraps=100")
SHORT = (
    "model=qwen3",
    "capacity_search.max_devices=2",
    "capacity_search.window_s=1",
    "capacity_search.warmup_s=5",
    "workload.max_new_tokens=8",
    "stages.capacity._resources_.processes=1",
)
FEW = (
    "model=qwen3",
    "stages.load.device_counts=[2]",
    "stages.load.seeds=[0]",
    "load_test.answers=1",
    "load_test.window_s=1",
    "load_test.warmup_s=5",
    "workload.max_new_tokens=8",
    "stages.load._resources_.processes=1",
)
RECORDED = "runtime.stages.record_outcomes.workload.num_prompts=6"
QUICK = (
    "capacity_search.seeds=[0]",
    "capacity_search.max_devices=2",
    "capacity_search.answers=2",
    "capacity_search.warmup_s=5",
    "capacity_search.window_s=2",
    "workload.max_new_tokens=16",
    "runtime.stages.record_outcomes.workload.num_prompts=12",
)
HAT = ("workload.max_new_tokens=8", "runtime.stages.record_outcomes.workload.num_prompts=12")
ROUTES = "policy.artifacts.routes_1"
ROUTED = (
    "training.seed=0",
    f"{ROUTES}.prompt_factor=2",
    f"{ROUTES}.max_comparisons=1",
    "policy.artifacts.router_1.mlp.epochs=2",
)
FIRST = (*ROUTED, "policy.offload.scorer.path=${stage:router_1}")
TIERS = ("model=llama3_8b", "workload.seed=0", "workload.arrivals.tasks_per_episode=3", "workload.max_new_tokens=4")
PLACES = (
    "stages.winners.grid.round_trips_ms=[0,50]",
    "stages.winners.grid.acceptances=[0.4]",
    "stages.winners.grid.num_devices=[1,2]",
    "stages.winners.seeds=[0,1]",
    "workload.max_new_tokens=8",
)
QUESTIONS = (
    "workload=commonsense_qa",
    f"workload.path={Path(__file__).with_name('questions.jsonl')}",
    "workload.max_prompt_tokens=160",
    "workload.max_new_tokens=6",
    "workload.dataset.shots=0",
)
LESS = {
    "choose": (
        "+policy=cloud_centric,sled,synera",
        "require.lossless=false",
        "require.quality_min=0.0",
        RECORDED,
        "choose.networks={wifi:0.6,lte:0.4}",
        "choose.efforts.first={trials:3,requests:[4,6,6],keep:[2,2],seeds:[0],batch:3}",
        "~choose.sensitivity.devices",
        "~choose.sensitivity.delay_ms",
    ),
    "leaderboard": (
        "+policy=cloud_centric,sled,hyperion",
        RECORDED,
        "leaderboard.requests=6",
        "leaderboard.seeds=[0]",
        "leaderboard.in=[synera]",
    ),
    "capacity": ("policy=cloud_centric,edge_centric", "stages.capacity._resources_.processes=1", *QUICK),
    "buy": (
        "policy=cloud_centric,sled",
        "stages.capacity._resources_.processes=1",
        "buy.users=[10,1000]",
        "buy.chips=[rtx_4090,a100_80gb]",
        "buy.apis=[deepinfra_qwen3_14b]",
        *QUICK,
    ),
    "what_if": ("+variant/what_if=load", "policy=cloud_centric,sled", "workload.devices=1,2", "seed=0", *QUICK[-2:]),
    "validate": (
        f"{EFFORT}.configurations=12",
        f"{EFFORT}.held_out=6",
        f"{EFFORT}.repeats=1",
        f"{EFFORT}.bootstraps=100",
        'stages.validate.real={local: ["${stage:local_1}"], grpc: ["${stage:grpc_1}"]}',
    ),
    "real_run": (
        *SMALL,
        "stages.measured.repeats=1",
        "~policies.cloud_centric",
        "~policies.synera",
        "~policies.wisp",
    ),
    "synera/table4": (
        "training.seed=0",
        "+variant/shared/model_pair=1b_13b",
        "+variant/synera/method=edgefm,edgefm_whole_answer,synera_percentile",
    ),
    "synera/table5": ("training.seed=0", "+variant/synera/method=edge_centric,edge_centric_early_exit"),
    "synera/table6": ("training.seed=0", "+variant/synera/method=edge_centric", "model.device.quantization=none,nf4"),
    "synera/fig11": (
        "training.seed=0",
        "+variant/shared/model_pair=1b_13b_15w",
        "+variant/synera/method=edge_centric,no_lookahead",
    ),
    "synera/fig12": (
        "training.seed=0",
        "+variant/shared/model_pair=1b_13b",
        "+variant/synera/method=synera,cloud_centric",
    ),
    "synera/fig13": ("training.seed=0", "network=mbps_0_1", "+variant/synera/method=synera,no_compression"),
    "synera/fig14": ("training.seed=0", "policy.offload.budget=0,0.2", "policy.offload.calibration=share"),
    "synera/fig16": ("training.seed=0", "policy.offload.budget=0.2", "+variant/synera/method=importance,random"),
    "synera/fig17": ("training.seed=0", "policy.early_exit.margin=0.7,1.0"),
    "synera/fig18": ("training.seed=0", "policy.offload.budget=0.2,0.8"),
    "synera/schedulers": (
        "seed=0",
        "policy/scheduler=verification_aware,continuous",
        "workload.max_prompt_tokens=64",
        "workload.arrivals.rate_per_s=1",
        "model=qwen3",
    ),
    "synera/fig15": ("training.seed=0", "policy.offload.budget=0.3", "workload.arrivals.rate_per_s=1,80"),
    "synera/stalls": (
        "training.seed=0",
        "policy.offload.budget=0.2",
        "+variant/synera/bottleneck=kbps_50,verify_400ms",
        "+variant/synera/method=compression_only",
    ),
    "synera/lookahead": ("training.seed=0", "policy.offload.budget=0.2", "+variant/synera/lookahead=default,published"),
    "synera/early_exit": (
        "training.seed=0",
        "+variant/shared/model_pair=1b_13b",
        "+variant/synera/early_exit=none,at_half",
    ),
    "synera/frontier": (
        "training.seed=0",
        "+variant/shared/model_pair=1b_13b",
        "policy.offload.budget=0.1",
        "+variant/synera/method=edgefm,synera",
    ),
    "beyond/where": PLACES,
    "beyond/published": (
        "seed=0",
        "workload.devices=2",
        "workload.max_new_tokens=16",
        "runtime.outcomes.task=multi_turn",
        "+variant/beyond/published=eagle2_by_load,device_68m",
        "runtime.outcomes.published.tokens_per_round=2",
        *QUICK[-1:],
    ),
    "beyond/prefix_caching": (
        "seed=0",
        "workload.devices=2",
        "+variant/beyond/method=cloud_decoding,wisp,wisp_kept",
        "+workload/sharing=conversation",
        *QUICK[-2:],
    ),
    "beyond/tandem_places": ("+variant/beyond/testbed=hat", "workload.devices=4", "seed=0"),
    "beyond/tandem_synera": ("training.seed=0",),
    "beyond/tandem_tiers": ("workload.devices=4", "seed=0"),
    "beyond/where_smollm2": (*PLACES, "workload=tiny", "runtime.stages.record_outcomes.workload.num_prompts=8"),
    "beyond/tandem_capacity": ("policy=cloud_centric,tandem", "stages.capacity._resources_.processes=1", *QUICK),
    "beyond/colocated": ("training.seed=0", "workload.devices=2"),
    "beyond/colocated_more": ("training.seed=0", "+variant/beyond/method=cloud_speculative,device_drafts,wisp"),
    "beyond/borders": (
        *PLACES,
        "stages.border_search.window.acceptances=[0.4]",
        "stages.border_search.window.num_devices=[1]",
        "stages.border_search.max_refined=1",
    ),
    "wisp/table1": FEW,
    "wisp/busy_time": (*FEW, "~stages.load.variants"),
    "wisp/busy_time_speed_8": (*FEW, "~stages.load.variants"),
    "wisp/table3": FEW,
    "wisp/table6": FEW,
    "wisp/fig1": FEW,
    "wisp/fig7": FEW,
    "wisp/fig8": FEW,
    "wisp/table2": (*SHORT, "capacity_search.seeds=[0]", "capacity_search.answers=1"),
    "wisp/table2_predictor": (*SHORT, "capacity_search.seeds=[0]", "capacity_search.answers=1"),
    "wisp/sensitivity": (*SHORT, "stages.capacity.search.seeds=[0]", "~stages.capacity.variants"),
    "wisp/embedded_pair": (*FEW[1:], "workload.profiling.num_prompts=24"),
    "wisp/table5": ("training.seed=0", "+variant/shared/model_pair=1b_13b"),
    "wisp/table7": SMALL,
    "wisp/table12": SMALL,
    "wisp/fig9": SMALL,
    "wisp/fig11": SMALL,
    "wisp/fig4": (*SMALL, "stages.interference.local.repeats=2", "stages.interference.local.long_tokens=[32,224]"),
    "wisp/table9": ("hydra.sweeper.n_trials=2", "stages.searched_predictor.family.epochs=2"),
    "wisp/table11": ("stages.predictor_latency.num_calls=20",),
    "wisp/fig2": ("training.seed=0,3",),
    "wisp/fig3": ("training.seed=0",),
    "wisp/table8": ("training.seed=0",),
    "synera/fig4": ("training.seed=0",),
    "wisp/theorem1": ("stages.waste.recalls=[0.95]",),
    "wisp/slo": (
        "training.seed=0",
        "policy/scheduler=continuous,slo_aware,deadline",
        "runtime.device_processes=1",
        "workload.num_prompts=4",
        "workload.max_new_tokens=6",
    ),
    **{f"token_routing/{name}": (*FIRST, "policy.offload.threshold=0,0.9") for name in ("fig6", "fig7", "fig8")},
    "token_routing/table1": (*FIRST, "policy.offload.threshold=0.4,0.9"),
    "token_routing/frontier": (*ROUTED, "+variant/token_routing/router=citer,citer_round_1", "routed_share=0.07"),
    "token_routing/cost": (*ROUTED, "+variant/token_routing/router=citer,small_only"),
    "token_routing/kv_cache": (*ROUTED, "+variant/token_routing/router=citer,no_cache"),
    "token_routing/spans": (*ROUTED, "+variant/token_routing/router=citer,span_2", "routed_share=0.2"),
    "token_routing/commonsense_qa": (*FIRST, "policy.offload.threshold=0,0.9", *QUESTIONS),
    "real/precision": (*QUESTIONS, "workload.dataset.evaluation=open", "+variant/real/precision=fp32,bf16_exact"),
    "real/alignment": ("training.seed=0", *QUESTIONS),
    "real/importance": ("training.seed=0", *QUESTIONS),
    "real/agreement": ("training.seed=0", *QUESTIONS),
    "real/drafters": (*QUESTIONS, "+variant/real/drafter=layers_24,lookup"),
    "real/compare": (
        *QUESTIONS,
        "workload.dataset.evaluation=open",
        "+variant/real/method=cloud_centric,lookup,synera",
    ),
    "real/compare_seeds": (
        "training.seed=0",
        *QUESTIONS,
        "workload.dataset.evaluation=open",
        "+variant/real/method=cloud_centric,sled,synera",
    ),
    "real/trees": (
        "training.seed=0",
        *QUESTIONS,
        "workload.dataset.evaluation=open",
        "+variant/beyond/tree=chain_5,tree_16",
    ),
    "real/long_texts": (
        "training.seed=0",
        *QUESTIONS,
        "workload.dataset.evaluation=open",
        RECORDED,
        "workload.devices=2",
        "+variant/real/texts=long_prompts",
        "workload.max_prompt_tokens=160",
        "runtime.outcomes.prompt_lengths.mean=100",
        "+variant/beyond/method=cloud_decoding,device_drafts",
    ),
    "real/conversations": (
        "training.seed=0",
        *QUESTIONS,
        "workload.dataset.evaluation=open",
        RECORDED,
        "workload.devices=2",
        "+workload/sharing=conversation",
        "runtime.outcomes.prompt_lengths.mean=20",
        "runtime.outcomes.prompt_lengths.std=5",
        "+variant/beyond/method=cloud_decoding,device_drafts,device_drafts_kept",
        "policy/kv_cache=shared",
    ),
    "real/long_prompts": (
        *QUESTIONS,
        "workload.dataset.evaluation=open",
        "workload.profiling.num_prompts=24",
        "+variant/real/method=cloud_centric,lookup,hybrid",
    ),
    "real/long_summaries": (
        *QUESTIONS,
        "workload.dataset.evaluation=open",
        "workload.profiling.num_prompts=24",
        "+variant/real/method=cloud_centric,lookup,synera",
    ),
    "real/long_problems": (
        *QUESTIONS,
        "workload.dataset.evaluation=open",
        "workload.profiling.num_prompts=24",
        "+variant/real/method=cloud_centric,sled,u_shape",
    ),
    "real/long_answers": (
        *QUESTIONS,
        "workload.dataset.evaluation=open",
        "workload.profiling.num_prompts=24",
        "+variant/real/method=cloud_centric,lookup,sled",
    ),
    "real/synera": (
        *QUESTIONS,
        "workload.dataset.evaluation=open",
        "offload_budget=0.2",
        "+variant/real/selection=cloud_centric,both,hybrid",
    ),
    "real/wisp": (*QUESTIONS, "workload.dataset.evaluation=open", "stages.predictors.seeds=[0]"),
    "real/theorem1": (*QUESTIONS, "workload.dataset.evaluation=open", "stages.waste.recalls=[0.95]"),
    "real/hidden_drafters": (*QUESTIONS, "workload.dataset.evaluation=open", "+variant/real/drafter=adapter,lookup"),
    "real/hyperion": (
        *QUESTIONS,
        "workload.dataset.evaluation=open",
        RECORDED,
        "workload.seed=0",
        "workload.arrivals.rate_per_s=4",
        "+variant/hyperion/orchestrator=hyperion,heft",
    ),
    "real/hat": (
        *QUESTIONS,
        "workload.dataset.evaluation=open",
        "workload.profiling.skip=6",
        "+variant/real/hidden_drafter=u_shape,hat,hat_eta_04",
    ),
    "real/citer": (
        *ROUTED[1:],
        *QUESTIONS,
        "workload.dataset.evaluation=open",
        "workload.profiling.skip=6",
        "routed_share=0.07",
        "+variant/token_routing/router=citer_one_state",
    ),
    "hat/table4": ("training.seed=0", "+variant/hat/model=vicuna_7b", "policy=u_shape,hat"),
    "hat/hidden_inversion": ("stages.inversion.probe.steps=20",),
    "hat/fig1a": ("seed=0", "workload.max_new_tokens=4"),
    "hat/fig1b": ("seed=0", "runtime.outcomes.prompt_tokens=128,512"),
    **{
        f"hat/fig{n}": ("seed=0", "workload.arrivals.rate_per_s=4", "+variant/hat/method=u_shape,link_bound", *HAT)
        for n in (6, 7)
    },
    **{
        f"hat/fig{n}": ("seed=0", f"+variant/hat/method=u_shape,{name}", *HAT)
        for n, name in ((9, "hat"), (10, "u_sarathi"))
    },
    "hat/accept_length": (
        "seed=0",
        "workload.arrivals.rate_per_s=4",
        "+variant/hat/method=u_medusa,hat",
        *HAT,
        "runtime.outcomes.acceptance=0.8",
        "runtime.outcomes.medusa_accept_length=1.2",  # a toy's reach
    ),
    "hat/fig8": ("seed=0", "+variant/hat/dataset=spec_bench", "+variant/hat/method=u_shape,u_medusa", *HAT),
    **{
        f"hat/fig{n}": ("seed=0", "policy.placement.pipeline_stages=3", "+variant/hat/method=u_shape,hat", *HAT)
        for n in (11, 12)
    },
    "hat/table5": ("seed=0", "+variant/hat/dataset=spec_bench", "+variant/hat/ablation=none,sd_pd", *HAT),
    "hat/device_time": (
        "seed=0",
        "+variant/hat/dataset=spec_bench",
        "+variant/hat/devices=instant,maxn",
        "+variant/hat/method=u_medusa,hat_batched,hat_printed_chunks",
        *HAT,
    ),
    "validate_grpc_pacing": (
        'stages.validate_grpc_pacing.real={grpc: ["${stage:grpc_1}"]}',
        "workload.devices=1",
        "workload.num_prompts=3",
        "workload.max_new_tokens=12",
    ),
    **{
        f"hyperion/fig{n}": (*TIERS, "network=lan_1gbps", "+variant/hyperion/orchestrator=hyperion,heft")
        for n in (5, 6)
    },
    "hyperion/readings": (
        *TIERS,
        "+variant/hyperion/orchestrator=hyperion,heft_nearest_first",
        "+variant/hyperion/nodes=nano_15w,one_each_nano_15w",
    ),
    "hyperion/fig7": (*TIERS, "+variant/hyperion/orchestrator=hyperion,heft_nearest_first"),
    "hyperion/fig8": TIERS,
    "hyperion/fig10": TIERS,
    "hyperion/fig9": (*TIERS, "+variant/hyperion/orchestrator=hyperion,least_latency"),
    "hyperion/fig11": (*TIERS[:-1], "workload.max_new_tokens=4,5"),
    "hyperion/fig12": (*TIERS, "hardware=hyperion_2_tiers,hyperion_4_tiers"),
    "hyperion/table2": (*TIERS, "network=lan_100mbps"),
    "hyperion/capacity": (*TIERS, "hardware.tiers.nano.nodes.mode=15W"),
    "hyperion/dispatch": (*TIERS, "policy/dispatch=hypsched,round_robin", "+variant/hyperion/nodes=heterogeneous"),
    "hyperion/node_failures": (*TIERS, "+variant/hyperion/node_failures=none,all_tiers"),
    "hyperion/batching": (*TIERS, "+variant/hyperion/orchestrator=most_throughput", "workload.arrivals.rate_per_s=0.4"),
    "hyperion/drafting": ("training.seed=0", "+variant/hyperion/drafting=sled,hat", "workload.max_new_tokens=6"),
}
"""Further overrides that make an experiment smaller."""
AT_EACH_CHANGE = {
    "hyperion/drafting": ("+variant/hyperion/drafting=sled",),
}
"""Parts of an experiment, where the whole takes as long as ten others; the whole where slow tests run."""
SAID = {
    "beyond/where": ("Who wins where", "\nOrin, 2"),
    "beyond/where_smollm2": ("Who wins where", "\nOrin, 2"),
    "beyond/borders": ("beside closed forms", "window: a device that"),
    "choose": ("keeps the requirements", "held-out requests", "quality", "run it: python -m pipeline +policy=chosen"),
    "leaderboard": ("Synera's testbed, 4 devices", "without hyperion", "leaderboard.md"),
    "capacity": ("Devices that one cloud carries under an SLO", "any number", "best"),
    "buy": ("What serves so many users", "cloud_centric, deepinfra_qwen3_14b", "sled has drafts verified"),
    "what_if": ("What changes along one thing", "2 devices"),
    **{f"wisp/table{n}": (f"WISP, Table {n}",) for n in (1, 2, 3, 4, 6, 7, 8, 10, 11, 12)},
    "wisp/table2_predictor": ("WISP, Table 2", "with and without the predictor"),
    **{f"wisp/fig{n}": (f"WISP, Fig. {n}",) for n in (1, 2, 3, 4, 7, 8, 9, 10, 11)},
    "hat/fig1c": ("HAT, Fig. 1c", "32 tokens"),
    "hat/fig1d": ("HAT, Fig. 1d", "chunks of 32"),
    "hat/hidden_inversion": ("linear probe",),
    "hat/hidden_precision": ("int8",),
    "wisp/sensitivity": ("under other assumptions",),
    "wisp/busy_time": ("What the chip is busy with",),
    "wisp/busy_time_speed_8": ("8 tokens/s promised to all",),
    "wisp/embedded_pair": ("with the embedded pair",),
    "wisp/matched_recall": ("WISP, Table 4, at one recall", "XGBoost"),
    "wisp/theorem1": ("WISP, Theorem 1", "one token at least"),
    "real/theorem1": ("WISP, Theorem 1 on SmolLM2", "one token at least"),
    "real/wisp": ("Predictors of rejection on SmolLM2", "tokens a round, of a full window's"),
    "clock": ("The clock against published speeds", "another source"),
    "synera/fig4": ("Synera, Fig. 4 and 5b", "importance of drafts"),
    "synera/table3": ("Synera, Table 3", "llama_160m"),
    "wisp/slo": ("jobs complete", "note     transport check: the run replays the clock of"),
    "real_run": ("2 policies, 1 repeats of 6 requests", "written down at", "sled 6 of 6"),
    "validate": ("simulated against local", "6 of 6 requests have the same text"),
    "validate_grpc_pacing": (
        "simulated against grpc",
        "transport check: the run replays the clock of",
        "3 of 3 requests have the same text",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("part", [0, 1])
def test_experiments_run_at_toy_size(part: int, outputs: Path, tmp_path: Path) -> None:
    """One of each distinct set of stages and runtime; every second one in one process."""
    assert set(NAMES) >= {*DISTINCT, *LONGER}
    run(list(DISTINCT)[part::2], outputs, tmp_path, AT_EACH_CHANGE, "png")


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1])
def test_all_other_experiments_run_at_toy_size(part: int, outputs: Path, tmp_path: Path) -> None:
    others = [name for name in NAMES if name in AT_EACH_CHANGE or name not in (QUANTISED, *DISTINCT)]
    run(others[part::2], outputs, tmp_path)


def test_the_experiment_on_quantised_models_runs_at_toy_size(outputs: Path, tmp_path: Path) -> None:
    if not find_spec("bitsandbytes"):
        pytest.skip("bitsandbytes is not installed: pip install -e '.[quantization]'")
    run([QUANTISED], outputs, tmp_path)


def run(
    names: list[str], outputs: Path, folder: Path, parts: Mapping[str, tuple[str, ...]] | None = None, *kinds: str
) -> None:
    """kinds: of files of figures; all if there is none."""
    smaller = {name: (*LESS.get(name, ()), *(parts or {}).get(name, ())) for name in names}
    commands = [[f"+experiment={name}", *TOY, *smaller[name], f"outputs={outputs}"] for name in names]
    commands += [["+policy=chosen", *TOY, f"outputs={outputs}"]] if "choose" in names else []
    (folder / "commands.json").write_text(json.dumps(commands), encoding="utf-8")
    command = [sys.executable, str(RUNNER), str(folder / "commands.json"), *kinds]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    printed = re.split(r"^ended (\d+)$", done.stdout, flags=re.MULTILINE)
    assert printed[1::2] == ["0"] * len(commands), done.stderr
    for name, text in zip(names, printed[::2], strict=False):
        for said in SAID.get(name, ("jobs complete", "comparison.csv")):
            assert said in text, name


@pytest.mark.parametrize("word", ["policy=sled", "+policy=sled"])
def test_a_policy_beside_an_experiment_replaces_its_own(word: str) -> None:
    with api.composed("experiment=synera/fig14", word) as cfg:
        assert cfg.policy.name == "sled"
