"""A plan of the same words, files and variables composes nothing, and prints what it would print otherwise."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl

from pipeline import running
from pipeline.command import main as command
from pipeline.config import arguments, composed_cache
from pipeline.config.arguments import conf_dir
from pipeline.config.composed_cache import CacheEntry, find_entry

TOY = ("+policy=synera", "model=toy", "workload=smoke", "stage=plan")


class Plans:
    """Plans commands in one folder: what each printed, its digests, and how many were composed."""

    def __init__(self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capfd, self._patch = capfd, monkeypatch
        self.num_composed, self.digests = 0, list[str]()
        compose, describe = command._run_hydra, running.describe_plan

        def count(*args: object) -> None:
            self.num_composed += 1
            compose(*args)  # type: ignore[arg-type]

        def note(job: running.Job, plan: running.Plan) -> str:
            self.digests = [stage.digest for stage in plan.stages.values()]
            return describe(job, plan)

        monkeypatch.setattr(command, "_run_hydra", count)
        monkeypatch.setattr(running, "describe_plan", note)

    def __call__(self, *argv: str) -> tuple[int, str, str]:
        """Exit status, standard output and error."""
        self.digests = []
        self._patch.setattr(sys, "argv", ["pipeline", *argv])
        with pytest.raises(SystemExit) as ended:
            command.main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, *self._capfd.readouterr()


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Plans:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as main sets it, for this test alone
    monkeypatch.setattr("hydra._internal.logging_config.configure_logging", lambda config: None)
    return Plans(capfd, monkeypatch)


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of conf/ that this test may change."""
    copied = shutil.copytree(conf_dir(), tmp_path / "conf")
    monkeypatch.setattr(arguments, "CHECKOUT_CONF", copied)
    return copied


def entries() -> list[Path]:
    return sorted(Path("outputs", composed_cache.FOLDER).glob("*.json"))


@pytest.mark.parametrize(
    "words",
    [
        ("+policy=synera", "hardware=jetson_orin"),
        ("policy=synera", "policy.offload.budget=0.4", "policy/scheduler=continuous", "network=lte"),
        ("+policy=sled", "policy/offload=synera", "decoding.temperature=0.8"),
        ("+policy=wisp", "+slo=mixed"),
        ("+policy=hat", "policy.payload.hidden_dtype=int8"),
        ("+policy=citer", "model.device.backend=onnx"),
        ("+policy=gpipe", "hardware=hyperion"),
        ("+policy=cloud_centric", "runtime=simulated", "report=quiet"),
        ("+policy=edge_centric", "model=toy", "hardware.device.mode=15W"),
        ("+policy=synera", "policy.draft.k=100", "model=tiny_160m"),
        ("+experiment=wisp/embedded_pair",),
        ("experiment=hat/fig1c",),
        ("+experiment=clock",),
    ],
    ids=" ".join,
)
def test_a_known_plan_is_printed_as_if_it_was_composed(plan: Plans, words: tuple[str, ...]) -> None:
    composed, digests = plan(*words, "stage=plan"), plan.digests
    assert composed[0] == 0
    assert (plan(*words, "stage=plan"), plan.digests) == (composed, digests)
    assert digests
    assert plan.num_composed == 1


def test_a_command_of_one_job_composes_once(plan: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra composes twice: it first looks whether the command is a sweep."""
    composed, load = list[tuple[object, ...]](), ConfigLoaderImpl.load_configuration

    def load_and_note(*args: object, **named: object) -> object:
        composed.append(args)
        return load(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", load_and_note)
    assert plan(*TOY)[0] == 0
    assert len(composed) == 1


def test_other_words_are_another_entry(plan: Plans) -> None:
    outputs = {plan(*TOY, word)[1] for word in ("seed=0", "seed=1")}
    assert (len(outputs), plan.num_composed, len(entries())) == (2, 2, 2)


def test_an_edited_file_is_composed_again(plan: Plans, conf: Path) -> None:
    before, file = plan(*TOY), conf / "network" / "wifi.yaml"
    file.write_text(file.read_text().replace("\ndelay_ms: 2\n", "\ndelay_ms: 77\n"))
    after, digests = plan(*TOY), plan.digests
    assert before != after
    assert after[0] == 0
    assert plan(*TOY) == after
    assert plan.digests == digests
    assert plan.num_composed == 2


def test_a_file_that_is_as_large_as_before_and_says_to_be_as_old_is_composed_again(plan: Plans, conf: Path) -> None:
    before, file = plan(*TOY), conf / "config.yaml"
    stat = file.stat()
    file.write_text(file.read_text().replace("\nseed: 0 ", "\nseed: 7 "))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert file.stat().st_size == stat.st_size
    after = plan(*TOY)
    assert after != before
    assert after[0] == 0


def test_a_file_that_was_added_is_seen(plan: Plans, conf: Path) -> None:
    plan(*TOY)
    (conf / "network" / "mine.yaml").write_text("# Mine.\n")
    plan(*TOY)
    assert plan.num_composed == 2


def test_a_variable_that_conf_reads_is_compared(plan: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TANDEM_DATA", raising=False)
    plan(*TOY)
    assert json.loads(entries()[0].read_text())["environment"] == {"TANDEM_DATA": None}
    monkeypatch.setenv("TANDEM_DATA", str(tmp_path))
    for _ in range(2):
        plan(*TOY)
    assert plan.num_composed == 2
    assert json.loads(entries()[0].read_text())["config"]["data_root"] == str(tmp_path)


def test_any_variable_of_the_users_conf_is_compared(plan: Plans, conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (conf / "config.yaml").write_text(
        (conf / "config.yaml").read_text().replace("\nseed: 0 ", "\nseed: ${oc.decode:${oc.env:MINE}} ")
    )
    outputs = []
    for value in ("3", "4"):
        monkeypatch.setenv("MINE", value)
        outputs += [plan(*TOY), plan(*TOY)]
    assert outputs[0] == outputs[1] != outputs[2] == outputs[3]
    assert outputs[0][0] == 0
    assert plan.num_composed == 2


def test_a_changed_source_is_seen(plan: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "src" / "training" / "stages.py"
    source.parent.mkdir(parents=True)
    source.write_text("x = 1\n")
    monkeypatch.setattr(composed_cache, "_SOURCES", tmp_path / "src")
    for text in ("x = 1\n", "x = 23\n"):
        source.write_text(text)
        for _ in range(2):
            plan(*TOY)
    assert plan.num_composed == 2


def test_another_hydra_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = find_entry(TOY)
    for name in composed_cache._INSTALLED:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_entry(TOY) != before


REFUSED = {
    "an unknown option": ("policy.draft.kk=3",),
    "an unknown choice of a slot": ("policy/draft=windw",),
    "a mode": ("hardware.device.mode=17W",),
    "a chip": ("hardware.device.chip=orin",),
    "a value of another type": ("policy.draft.k=many",),
    "a word that does not parse": ("policy.draft.k=[",),
    "a sweep without -m": ("seed=0,1",),
    "a goal": ("goal=sreve",),
    "a report": ("report=ful",),
}


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_is_not_kept(plan: Plans, words: tuple[str, ...]) -> None:
    plan(*TOY)
    first = plan(*TOY, *words)
    assert first[0] == 2
    assert plan(*TOY, *words) == first
    assert len(entries()) == 1


def test_what_went_wrong_since_is_said_as_hydra_says_it(plan: Plans, tmp_path: Path) -> None:
    """The configuration is known, the file that it names is gone."""
    words = (*TOY, "network=throughput_trace", "network.downlink.path=trace.txt", "policy.draft.k=100")
    Path("trace.txt").write_text("1 10\n2 20\n")
    assert plan(*words)[0] == 0
    Path("trace.txt").unlink()
    known = plan(*words)
    assert (known[0], plan.num_composed, entries()) == (2, 2, [])
    assert "there is nothing at" in known[2]
    assert known[2].count("note: ") == known[2].count("error: ") == 1
    assert plan(*words) == known


def test_an_entry_that_cannot_be_planned_is_composed_again(plan: Plans) -> None:
    plan(*TOY)
    whole = json.loads(entries()[0].read_text())
    whole["config"]["stages"]["serve"]["setup"]["policy"]["draft"] = None
    entries()[0].write_text(json.dumps(whole))
    assert plan(*TOY)[0] == 0
    assert plan.num_composed == 2


@pytest.mark.parametrize(
    "damaged", ["", "{", "[]", "{}", '{"environment": {}}', '{"environment": {}, "config": {}, "nodes": []}']
)
def test_a_damaged_entry_is_composed_again(plan: Plans, damaged: str) -> None:
    first = plan(*TOY)
    entries()[0].write_text(damaged)
    assert plan(*TOY) == first
    assert plan.num_composed == 2
    plan(*TOY)
    assert plan.num_composed == 2


@pytest.mark.parametrize(
    "word",
    ["--config-dir=conf", "hydra.verbose=false", "network.delay_ms=${network.jitter_ms}", "-m", "stage=all"],
)
def test_commands_that_hydra_always_composes(word: str) -> None:
    assert find_entry(["+policy=synera", "stage=plan"]) is not None
    assert find_entry(["+policy=synera", *(["stage=plan"] if word != "stage=all" else []), word]) is None


@pytest.mark.parametrize(
    "words",
    [
        ("hardware=local",),
        ("tracking.uri=https://me:secret@host",),
        ("+service.endpoint.password=x",),
        ("+experiment=compare",),
    ],
    ids=["the machine", "a login", "a password", "a sweep"],
)
def test_what_depends_on_more_or_must_not_be_written_is_not_kept(plan: Plans, words: tuple[str, ...]) -> None:
    plan("+policy=synera", *words, "stage=plan")
    assert entries() == []


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("${goal}", 1),
        ("${oc.env:MINE,1}", 1),
        ("${oc.env:MINE_${goal},1}", 0),
        ("${now:%H}", 0),
        ("${process:}", 0),
        ("${machine:}", 0),
        ("${hydra:job.name}", 0),
    ],
)
def test_a_configuration_that_reads_the_clock_or_the_process_is_not_kept(
    plan: Plans, conf: Path, value: str, kept: int
) -> None:
    file = conf / "config.yaml"
    file.write_text(file.read_text().replace("\nexhibit: null ", f"\nexhibit: {{x: '{value}'}} "))
    assert plan(*TOY)[0] == 0
    assert len(entries()) == kept


def test_a_class_of_the_users_own_is_not_kept(plan: Plans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_tasks.py").write_text("from serving.core.decoding import Decoding\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert plan(*TOY, "decoding._target_=own_tasks.Decoding")[0] == 0
    assert entries() == []


def test_a_variable_with_a_secret_is_not_kept(plan: Plans, conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = conf / "config.yaml"
    file.write_text(file.read_text().replace("\nexhibit: null ", "\nexhibit: {x: '${oc.env:MY_TOKEN,null}'} "))
    monkeypatch.setenv("MY_TOKEN", "1234")
    assert plan(*TOY)[0] == 0
    assert entries() == []


def test_a_folder_keeps_a_bounded_number_of_configurations(plan: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composed_cache, "MAX_ENTRIES", 3)
    for seed in range(5):
        plan(*TOY, f"seed={seed}")
        os.utime(max(entries(), key=lambda path: path.stat().st_mtime_ns), (seed, seed))
    kept = [json.loads(path.read_text())["config"]["seed"] for path in entries()]
    assert sorted(kept) == [2, 3, 4]


def test_entries_lie_below_the_outputs_of_the_command(plan: Plans, tmp_path: Path) -> None:
    plan(*TOY, f"outputs={tmp_path / 'other'}")
    assert entries() == []
    assert len(list((tmp_path / "other" / composed_cache.FOLDER).glob("*.json"))) == 1
    assert isinstance(find_entry(TOY), CacheEntry)
