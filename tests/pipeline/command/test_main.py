"""Command lines: their plans, and the errors of invalid ones before any work."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pipeline import api
from pipeline.command.main import main
from pipeline.errors import INTERRUPTED, UserError
from pipeline.running import run_to_exit_status
from tests.support.tiny_models import save_checkpoints

TOY = ("model=toy", "workload=smoke", "stage=plan")


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def refusal(self) -> str:
        """The one line of an error; fails on anything else, a traceback most of all."""
        assert "Traceback" not in self.err, self.err
        assert (self.code, self.err.count("error: ")) == (2, 1), self
        return self.err.partition("error: ")[2].strip()


Say = Callable[..., Said]


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Say:
    """Runs a command line in this process, with its outputs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as main sets it, for this test alone
    # Its set-up of logs closes every handler there is; absl's, once loaded, takes pytest's captured stream with it.
    monkeypatch.setattr("hydra._internal.logging_config.configure_logging", lambda config: None)

    def say(*argv: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["pipeline", *argv])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        captured = capfd.readouterr()
        assert not list(Path("outputs").glob("artifacts/[!.]*"))
        return Said(code if isinstance(code, int) else int(bool(code)), captured.out, captured.err)

    return say


def planned(said: Said) -> list[str]:
    assert said.code == 0, said
    return [line.split()[1].rpartition("-")[0] for line in said.out.splitlines() if line.startswith("  ")]


# Policies.


def test_a_policy_may_be_named_with_or_without_a_plus(say: Say) -> None:
    assert say("policy=synera", *TOY).out == say("+policy=synera", *TOY).out


@pytest.mark.parametrize("word", ["policy=sled,edge_centric", "+policy=sled,edge_centric"])
def test_a_sweep_over_policies(say: Say, word: str) -> None:
    said = say("-m", word, *TOY)
    assert said.code == 0
    assert [line.split()[:2] for line in said.out.splitlines() if line[:1].isdigit()][:2] == [
        ["0", "sled"],
        ["1", "edge_centric"],
    ]
    assert not list(Path("outputs").glob("sweeps/*"))


def test_slots_and_values_beside_swept_policies_reach_every_job(say: Say) -> None:
    full, slot, value = (*TOY, "report=full"), "policy/lookahead=none", "policy.draft.k=3"
    alone = [say(f"policy={name}", slot, value, *full).out for name in ("sled", "synera")]
    assert len({alone[1], *(say("policy=synera", *words, *full).out for words in ((), (slot,), (value,)))}) == 4
    assert say("-m", "+policy=sled,synera", slot, value, *full).out == "".join(alone)
    assert say(slot, value, "-m", "policy=sled,synera", *full).out == "".join(alone)


def test_flags_and_overrides_stand_in_any_order(say: Say, tmp_path: Path) -> None:
    said = say("seed=1", "-m", "+policy=sled,synera", "--config-dir", str(tmp_path), *TOY, "report=full")
    assert said.out.count("stages, in the order") == 2, said


def test_a_configuration_folder_that_is_missing_is_said(say: Say) -> None:
    assert "there is no configuration folder" in say("--config-dir", "nope", "+policy=sled", *TOY).refusal


def test_no_words_at_all_list_the_policies_and_are_no_error(say: Say, tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "mine.yaml").write_text("# My own.")
    alone, own = say(), say("--config-dir", str(tmp_path))
    assert (alone.code, alone.err, own.code, own.err) == (0, "", 0, "")
    usage, *policies = alone.out.splitlines()
    assert usage.startswith("usage: python -m pipeline +policy=NAME")
    assert {"synera", "wisp"} <= {line.split()[0] for line in policies}
    assert own.out.splitlines()[1].split() == ["mine", "My", "own."]


@pytest.mark.parametrize("folder", [("--config-dir", "{}"), ("--config-dir={}",), ("-cd", "{}")])
def test_a_configuration_folder_may_stand_before_a_command(say: Say, tmp_path: Path, folder: tuple[str, ...]) -> None:
    (tmp_path / "policy" / "offload").mkdir(parents=True)
    (tmp_path / "policy" / "offload" / "mine.yaml").write_text("# My own.")
    words = [word.format(tmp_path) for word in folder]
    said = say(*words, "show", "policy/offload")
    assert said == say("show", "policy/offload", *words)
    assert said.out.split()[:3] == ["mine", "My", "own."]
    assert "no command 'shw'. Did you mean show?" in say(*words, "shw").refusal


@pytest.mark.parametrize(
    "argv", [("-m",), ("--config-dir",), ("model=toy",), ("policy=synra",), ("-m", "+policy=sled,synra", *TOY)]
)
def test_a_command_without_a_policy_lists_the_policies(say: Say, argv: tuple[str, ...]) -> None:
    lines = say(*argv).refusal.splitlines()
    assert lines[0].endswith("Choose one with +policy=NAME:")
    assert [line.split()[0] for line in lines[1:]] == [
        "citer", "cloud_centric", "cloud_speculative", "co_llm", "delay_adaptive", "edge_centric", "edgefm", "gpipe",
        "hat", "heft", "hybrid", "hyperion", "sled", "specedge", "synera", "tandem", "tandem_device", "u_medusa",
        "u_sarathi", "u_shape", "wisp", "wisp_deadline",
    ]  # fmt: skip


def test_a_plan_shows_which_stages_would_run_and_why(say: Say) -> None:
    said = say("+policy=synera", *TOY)
    assert planned(said) == ["corpus", "cloud_model", "device_model", "thresholds", "serve"]
    assert said.out.count("  new") == 5


def test_a_plan_of_one_job_writes_no_notes_of_hydras(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr("hydra.core.utils._save_config", lambda config, name, folder: written.append(name))
    assert say("+policy=synera", *TOY).code == 0
    assert (written, os.listdir("outputs")) == ([], [".composed"])


def test_an_experiment_takes_a_policy_on_the_command_line(say: Say, tmp_path: Path) -> None:
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text("# @package _global_\nseed: 7\n")
    mine = f"--config-dir={tmp_path / 'conf'}"
    plain = say("policy=edge_centric", *TOY).out
    for words in (("experiment=mine", "+policy=edge_centric"), ("+experiment=mine", "policy=edge_centric")):
        said = say(mine, *words, *TOY)
        assert said.code == 0
        assert said.out != plain


# Other commands take their words as they were written.


@pytest.mark.parametrize(
    ("words", "last"),
    [
        (("+experiment=wisp/table11",), "table11"),
        (("table11", "experiment=wisp/table11"), "table11"),
        (("+policy=synera", "goal=quality"), "quality"),
        (("+policy=synera", "stage=quality"), "quality"),
        (("+policy=synera", "stage=plan"), "serve"),
    ],
)
def test_cache_why_explains_the_stages_of_any_run(say: Say, words: tuple[str, ...], last: str) -> None:
    said = say("cache", "why", *words)
    assert said.code == 0, said
    name, why = said.out.splitlines()[-1].split(": ")
    assert (name.rpartition("-")[0], why) == (last, "new")


def test_cache_why_names_a_stage_that_is_not_there(say: Say) -> None:
    assert (
        "stage is 'qualty'; allowed are all, plan, train"
        in say("cache", "why", "+policy=synera", "stage=qualty").refusal
    )


@pytest.mark.parametrize("options", [("--keep", "serve", "--older-than", "3"), ("serve", "--older-than", "7")])
def test_options_of_cache_keep_their_values(say: Say, options: tuple[str, ...]) -> None:
    assert say("cache", "clean", *options).refusal.startswith("nothing stored is called 'serve'")


def test_a_sweep_is_resumed_with_an_experiment_among_the_words(say: Say) -> None:
    assert "there is no readable sweep.json in" in say("sweep", "resume", ".", "+experiment=wisp/table11").refusal


# What is refused, with the words that help.

REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "a mode": (
        ("hardware.device.mode=17W",),
        "chip jetson_agx_orin_32gb has no mode '17W'. Its modes: MAXN, 15W, 30W, 40W",
    ),
    "a mode of another chip": (
        ("hardware=jetson_orin_nano", "hardware.device.mode=40W"),
        "chip jetson_orin_nano_8gb has no mode '40W'. Its modes: 15W, 7W",
    ),
    "a chip": (
        ("hardware.device.chip=orin",),
        "hardware.device.chip: there is no 'orin' in hardware/chip. There are: a100_80gb,",
    ),
    "an architecture": (("model.cloud.timed_architecture=llama9",), "model/architecture. There are: falcon_40b,"),
    "no bandwidth": (("network.uplink_mbps=0",), "network.uplink_mbps=0.0 Mbit/s must be more than 0"),
    "negative bandwidth": (("network.downlink_mbps=-2",), "network.downlink_mbps=-2.0 Mbit/s must be more than 0"),
    "bandwidth in words": (("network.uplink_mbps=fast",), "network.uplink_mbps: got 'fast'; a number is wanted"),
    "no number": (("decoding.temperature=nan",), "decoding.temperature: got nan; a finite number is wanted"),
    "a model too large": (
        ("model.cloud.timed_architecture=llama2_70b",),
        "llama2_70b does not fit into rtx_a6000 (48.00 GB) in fp16: weights",
    ),
    "a model too large for the device": (
        ("hardware=jetson_orin_nano", "model.device.timed_architecture=llama2_13b"),
        "llama2_13b does not fit into jetson_orin_nano_8gb",
    ),
    "a checkpoint that is not there": (
        ("model.device.path=/no/such",),
        "pair.device.path: there is nothing at /no/such",
    ),
    "a stage to force": (("force=[fly]",), "force: there is no stage 'fly' in this run; there are corpus,"),
    "an option's range": (("policy.draft.k=0",), "policy.draft.k is 0; a window holds at least 1 token"),
    "a choice written as an option": (
        ("policy.draft=window",),
        "a file of conf is chosen with a slash, as in policy/draft=window",
    ),
    "choices that do not go together": (
        ("policy/draft=none",),
        "policy synera: policy/offload=synera decides on a draft, and policy/draft=none makes none",
    ),
    "thresholds that are none": (
        ("policy.offload.thresholds.path={tmp}",),
        "thresholds.json; thresholds.path names a folder",
    ),
    "a tier": (("policy.placement.tier=edge",), "policy.placement: there is no tier 'edge' in the testbed"),
    "a cache too small": (
        ("policy.kv_cache.capacity_tokens=50",),
        "policy.kv_cache.capacity_tokens is 50, and one request may need",
    ),
    "a data set that is not there": (
        ("workload=gsm8k", "workload.path=/no/such.jsonl"),
        "there is nothing at /no/such.jsonl",
    ),
}


@pytest.mark.parametrize("words", [("model=tiny_160m",), ("model=tiny_7b", "hardware.cloud.tensor_parallel=4")])
def test_the_other_embedded_pairs_are_planned(words: tuple[str, ...], tmp_path: Path) -> None:
    planned = api.stages(["+policy=synera", *words, "stage=plan", f"outputs={tmp_path / 'outputs'}"])
    assert "device_model" in {stage.name for stage in planned}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_values_are_refused_before_any_stage_runs(case: str, tmp_path: Path) -> None:
    words, message = REFUSED[case]
    (tmp_path / "notes.txt").write_text("no thresholds here")
    given = (word.format(tmp=tmp_path) for word in words)
    with pytest.raises(UserError, match=re.escape(message)):
        api.stages(["+policy=synera", *TOY, f"outputs={tmp_path / 'outputs'}", *given])
    assert not list(tmp_path.glob("outputs/artifacts/[!.]*"))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("stage=fly", "stage is 'fly'; allowed are all, plan, train, profile"),
        ("network.uplink_mbps=0", "network.uplink_mbps=0.0 Mbit/s must be more than 0"),
    ],
)
def test_a_refused_configuration_ends_in_one_line(say: Say, word: str, message: str) -> None:
    assert message in say("+policy=synera", *TOY, word).refusal


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("policy/offlod=synera", "no group 'policy/offlod'. Did you mean offload? Below policy there are: "),
        ("network.uplnk_mbps=3", "network has no 'uplnk_mbps'. Did you mean uplink_mbps? It lists uplink_mbps"),
        ("network.detct_ms=3", "network has no 'detct_ms'. Did you mean +network.detect_ms? It lists uplink_mbps"),
        ("network.colour=3", "(added as +network.NAME=VALUE)."),
        ("policy.x.y=3", "policy has no 'x'. It lists draft, artifacts, offload"),
        ("sede=3", "the configuration has no 'sede'. Did you mean seed? It lists workload, model, policy"),
        ("+seed=3", "An item is already at 'seed'"),
        ("seed=[1", "no viable alternative at input '[1'"),
    ],
)
def test_errors_of_hydra_itself_end_in_one_line(say: Say, word: str, message: str) -> None:
    assert message in say("+policy=synera", word, *TOY).refusal


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "- synera\n- override offlod: synera",
            "in policy/mine.yaml: there is no group 'policy/offlod'. Did you mean off",
        ),
        (
            "- synera\n- override offload: snera",
            "there is no policy/offload 'snera'. Did you mean synera? There are: al",
        ),
        (
            "- synra",
            "in policy/mine.yaml, or in a file with it among its defaults: there is no policy 'synra'. Did you",
        ),
    ],
)
def test_a_misspelt_default_of_a_users_policy_is_refused_with_what_was_meant(
    say: Say, tmp_path: Path, lines: str, message: str
) -> None:
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "mine.yaml").write_text(f"defaults:\n{lines}\n- _self_\nname: mine\n")
    refusal = say("--config-dir", str(tmp_path), "+policy=mine", *TOY).refusal
    assert message in refusal
    assert "\n" not in refusal


def test_the_refusal_of_an_unlisted_option_says_how_to_add_it(say: Say) -> None:
    refusal = say("+policy=synera", "network.detect_ms=9", *TOY).refusal
    assert "added: +network.detect_ms=VALUE" in refusal
    assert say("+policy=synera", "+network.detect_ms=9", *TOY).code == 0


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("policy/offload=sinera", "there is no policy/offload 'sinera'"),
        ("network=ltee", "there is no network 'ltee'"),
        ("experiment=none_such", "there is no experiment 'none_such'"),
        ("policy=edge-centrik", "there is no policy 'edge-centrik'"),
        ("policy=", "there is no policy ''"),
    ],
)
def test_a_misspelt_choice_is_refused_with_the_choices(say: Say, word: str, message: str) -> None:
    words = [word] if word.startswith("policy=") else ["+policy=synera", word]
    said = say(*words, *TOY)
    assert said.code == 2
    assert message in said.err
    assert "\n  " in said.err


def test_force_accepts_a_single_stage_name(say: Say) -> None:
    assert say("+policy=edge_centric", *TOY, "force=serve").code == 0


@pytest.mark.parametrize("outputs", ["/proc/nowhere", "{tmp}/a file/below"])
def test_an_unwritable_outputs_folder_is_refused(say: Say, outputs: str, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    refusal = say("+policy=synera", *TOY, "outputs=" + outputs.format(tmp=tmp_path)).refusal
    assert refusal.startswith("cannot write below /")
    assert refusal.endswith("choose another folder with outputs=DIR.")


def test_a_failed_job_of_a_sweep_does_not_stop_the_others(say: Say) -> None:
    said = say("-m", "+policy=edge_centric", *TOY, "network.uplink_mbps=0,8,-1", "report=full")
    assert said.code == 2
    assert said.out.count("stages, in the order") == 1
    assert said.err.count("must be more than 0") == 2


def test_what_keeps_jobs_from_running_is_said_before_any_begins(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.running.run_to_exit_status", lambda *_: print("a job begins") or 0)
    words = ("model=toy", "workload=tiny", "tracking.uri=none", "report=quiet", "network.uplink_mbps=8,0,-1")
    lines = say("-m", "+policy=edge_centric", *words).out.splitlines()
    assert lines[0].startswith("cannot run, while the others do: job 1: ")
    assert lines[1].startswith("cannot run, while the others do: job 2: ")
    assert all("must be more than 0" in line for line in lines[:2])
    assert lines[2:5] == ["a job begins"] * 3


# Own checkpoints and data.


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints that a user might bring."""
    return save_checkpoints(tmp_path_factory.mktemp("checkpoints"))


def own(folders: dict[str, Path], device: str, cloud: str) -> tuple[str, ...]:
    return f"model.device.path={folders[device]}", f"model.cloud.path={folders[cloud]}"


def data_file(tmp_path: Path, *lines: str) -> tuple[str, ...]:
    file = tmp_path / "gsm8k.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines))
    return (
        "workload=gsm8k",
        f"workload.path={file}",
        "workload.dataset.shots=0",
        "workload.num_prompts=2",
        "workload.profiling.num_prompts=1",
    )


GOOD = [json.dumps({"question": f"{i} and {i}?", "answer": f"It is {2 * i}. #### {2 * i}"}) for i in range(5)]


@pytest.mark.parametrize(
    ("device", "cloud", "message"),
    [
        ("device", "stranger", "differ: token 5 is 'red' in the one and 'blue' in the other"),
        ("encoder", "cloud", "holds BertForMaskedLM, which is not a causal LM; give a ...ForCausalLM checkpoint"),
        ("device", "empty", "holds no file, so nothing identifies it; name the folder with the files"),
        ("device", "words", "holds no config.json; give the directory of a Hugging Face checkpoint"),
    ],
)
def test_checkpoints_that_are_no_pair_are_refused(
    brought: dict[str, Path],
    tmp_path: Path,
    device: str,
    cloud: str,
    message: str,
) -> None:
    folders = {**brought, "empty": tmp_path / "empty", "words": tmp_path / "words"}
    for name in ("empty", "words"):
        folders[name].mkdir()
    (folders["words"] / "notes.txt").write_text("no model here")
    words = [
        "+policy=edge_centric",
        f"outputs={tmp_path / 'o'}",
        *own(folders, device, cloud),
        *data_file(tmp_path, *GOOD),
    ]
    with pytest.raises(UserError, match=re.escape(message)):
        api.stages(words)


def test_with_the_users_own_checkpoints_no_training_is_planned(
    say: Say, brought: dict[str, Path], tmp_path: Path
) -> None:
    words = ("model=tiny", "stage=plan", *own(brought, "device", "cloud"), *data_file(tmp_path, *GOOD))
    assert planned(say("+policy=sled", *words)) == ["serve"]
    assert planned(say("+policy=synera", *words)) == ["thresholds", "serve"]


def test_a_broken_row_is_named_by_its_line(say: Say, tmp_path: Path) -> None:
    lines = data_file(tmp_path, *GOOD[:2], '{"question": "cut o', *GOOD[2:])
    refusal = say("+policy=edge_centric", "model=toy", "stage=plan", *lines).refusal
    assert "gsm8k.jsonl line 3" in refusal


def test_a_dataset_with_too_few_rows_is_refused_before_any_work(say: Say, tmp_path: Path) -> None:
    lines = data_file(tmp_path, *GOOD[:1])
    assert "1" in say("+policy=edge_centric", "model=toy", "stage=plan", *lines).refusal


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("compare", "Did you mean +experiment=compare?"),
        ("synera", "Did you mean +policy=synera?"),
        ("export", "Files are asked for by export=latex,csv,figures behind a run, or behind `report FOLDER`."),
    ],
)
def test_a_word_that_is_no_command_is_answered_with_how_it_is_written(say: Say, word: str, meant: str) -> None:
    assert f"there is no command {word!r}. {meant} There are cache, " in say(word).refusal


# A reader that goes away.


@pytest.mark.parametrize(
    ("stream", "argv"),
    [
        ("stdout", ("show", "metrics")),
        ("stdout", ("+policy=sled", *TOY)),
        ("stdout", ("-m", "+policy=sled", *TOY, "report=full")),
        ("stderr", ("nonsense",)),
    ],
)
def test_a_command_ends_quietly_where_nobody_reads_its_output(
    say: Say, monkeypatch: pytest.MonkeyPatch, stream: str, argv: tuple[str, ...]
) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(sys, stream, closed)
        said = say(*argv)
    assert (said.code, said.out, said.err) == (141, "", "")


# A process of its own.


def test_a_refusal_of_the_real_command_is_one_line(tmp_path: Path) -> None:
    words = [
        "+policy=synera",
        "model=toy",
        "workload=smoke",
        "hardware.device.mode=17W",
        f"outputs={tmp_path / 'o'}",
        "tracking.uri=none",
    ]
    done = subprocess.run([sys.executable, "-m", "pipeline", *words], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "error: chip jetson_agx_orin_32gb has no mode '17W'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "o").glob("artifacts/[!.]*"))


def test_ctrl_c_before_any_stage_says_what_to_do_next(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    told = "interrupted; all finished stages are kept, and the same command goes on from there."
    for place in ("pipeline.running.create_job", "pipeline.config.compose.prepare_hydra"):
        with monkeypatch.context() as patched:
            patched.setattr(place, stopped)
            said = say("+policy=synera", *TOY)
        assert (said.code, said.err.strip()) == (INTERRUPTED, told), place


def test_ctrl_c_in_a_stage_is_told_by_the_stage_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        problem = KeyboardInterrupt()
        problem.add_note("corpus: interrupted")
        raise problem

    monkeypatch.setattr("pipeline.running.run", stopped)
    assert run_to_exit_status(OmegaConf.create()) == INTERRUPTED
    assert capsys.readouterr().err == ""
