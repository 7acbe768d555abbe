"""A model sharded over two processes against the same model in one process."""

import multiprocessing as mp
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch

from serving.engines.tensor_parallel.engine import TPEngine
from serving.engines.tensor_parallel.worker_group import WorkerGroupError, load_tensor_parallel
from serving.engines.torch.engine import TorchEngine
from serving.engines.torch.model import load_model
from serving.engines.torch.model_runner import ModelRunner
from serving.engines.torch.tensor_store import TensorStore
from serving.hardware.executor import CacheFullError, CacheHoleError
from serving.messages import DraftStopRule, DraftWork, ForwardWork, SequenceSlice, Span
from tests.serving.engines.tensor_parallel.dialogue import answers_of, run_random_work
from tests.support.tiny_models import build_model

WHOLE = Span(0, 4, embedding=True, lm_head=True)
PROMPT = (5, 17, 40, 8, 23, 61, 9, 30, 77, 12, 55)
VARIANTS = ("llama_yarn", "qwen2_mixed", "qwen3", "mistral", "phi3", "phi3_longrope", "neox", "neox_sequential")


@pytest.fixture
def logits(monkeypatch):
    """All logits, computed in this process."""
    said, plain = [], ModelRunner.apply_lm_head

    def spy(self, normed):
        said.append(plain(self, normed))
        return said[-1]

    monkeypatch.setattr(ModelRunner, "apply_lm_head", spy)
    return said


@pytest.fixture
def saved(tmp_path_factory):
    def save(variant):
        path = tmp_path_factory.mktemp(variant)
        build_model(variant).save_pretrained(path)
        return str(path)

    return save


@contextmanager
def shared(path, ways=2, **how):
    model, team = load_tensor_parallel(path, ways, **how)
    try:
        yield model, team
    finally:
        team.close()
        assert not [pid for pid in team.pids if alive(pid)]
        assert not torch.distributed.is_initialized()


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def ask(engine, *rows, span=WHOLE, out="last"):
    return engine.execute(ForwardWork(span, rows, (out,) * len(rows)))[0]


def same_talk(one, two, logits, rounds):
    write, said = answers_of(TorchEngine(one.model)), []
    for engine in (one, two):
        logits.clear()
        said.append((run_random_work(engine, 4, rounds, write), torch.cat(logits)))
    assert said[0][0] == said[1][0]
    verdicts = [verdict for found, _ in said[0][0] for verdict in found if verdict]
    assert any(verdict.kept_tree_nodes and len(verdict.kept_tree_nodes) > 1 for verdict in verdicts)
    assert any(verdict.accepted > 1 for verdict in verdicts if verdict.kept_tree_nodes is None)
    torch.testing.assert_close(said[1][1], said[0][1], atol=1e-4, rtol=0)


def same_drafts(one, two):
    options = {"stop_tokens": (), "requested_scores": ("confidence",)}
    for work in (
        DraftWork("g", 0, PROMPT, DraftStopRule(6), **options),
        DraftWork("g", len(PROMPT) + 2, (9,), DraftStopRule(4), **options),
        DraftWork("g", len(PROMPT) + 3, (), DraftStopRule(1), branches=((4, 5), (6,)), **options),
    ):
        (a, _), (b, _) = one.execute(work), two.execute(work)
        assert (a.tokens, a.cached_len) == (b.tokens, b.cached_len)
        assert a.scores["confidence"] == pytest.approx(b.scores["confidence"], abs=1e-5)


def same_spans(one, two):
    """A part with the embedding, one without either, one with the head; each has a cache of its own."""
    rows, ends = SequenceSlice("p", 0, len(PROMPT), PROMPT, 0, "greedy"), []
    for engine in (one, two):
        first = ask(engine, rows, span=Span(0, 1, embedding=True), out="all")[0].hidden_states
        states = engine.tensor_store.get(first)
        asked = SequenceSlice("p", 0, len(PROMPT), (), 0, "greedy", hidden_states=first)
        middle = ask(engine, asked, span=Span(1, 3), out="all")[0].hidden_states
        asked = SequenceSlice("p", 0, len(PROMPT), (), 0, "greedy", hidden_states=middle)
        (result,) = ask(engine, asked, span=Span(3, 4, lm_head=True))
        ends.append((result.verdict, states))
    assert ends[0][0] == ends[1][0]
    torch.testing.assert_close(ends[1][1], ends[0][1], atol=1e-4, rtol=0)


def refusals_leave_it_whole(engine, plain):
    with pytest.raises(CacheHoleError, match="begins at token 7"):
        ask(engine, SequenceSlice("a", 0, 2, (5, 6), 0, "greedy"), SequenceSlice("h", 7, 1, (5,), 0, "greedy"))
    blob = engine.tensor_store.put(torch.zeros(2, 8), "test", 0)
    with pytest.raises(ValueError, match=r"hidden states of shape \(2, 8\)"):
        ask(engine, SequenceSlice("w", 0, 2, (), hidden_states=blob), span=Span(1, 2), out="all")
    with pytest.raises(ValueError, match="importance is averaged over all heads"):
        engine.execute(DraftWork("i", 0, PROMPT, DraftStopRule(2), requested_scores=("importance",)))
    with pytest.raises(CacheFullError):
        ask(engine, SequenceSlice("f", 0, 480, (5,) * 480))
    asked = SequenceSlice("a", 0, 3, (5, 6, 7), 0, "greedy")
    assert ask(engine, asked) == ask(plain, asked)


def ends_with_its_follower(engine, team):
    os.kill(team.pids[0], signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(WorkerGroupError, match=rf"rank 1 \(process {team.pids[0]}\) died \(exit code -9\)"):
            ask(engine, SequenceSlice("a", 0, 2, (5, 6), 0, "greedy"))
    engine.drop("a", 0)


@pytest.mark.slow
def test_a_model_on_two_processes_answers_as_on_one_until_a_process_dies(saved, logits):
    """One test for several assertions, since starting a process takes seconds."""
    path = saved("llama")
    with shared(path) as (model, team):
        assert (model.kv_heads, load_model(path).kv_heads) == (1, 2)
        blobs = TensorStore()
        led, other = (
            TPEngine(team, i, model, tensor_store=blobs, hidden_dtype="fp32", budget_tokens=400) for i in range(2)
        )
        plain = TorchEngine(load_model(path), hidden_dtype="fp32")
        same_talk(plain, led, logits, 40)
        same_drafts(plain, other)
        same_spans(plain, other)
        refusals_leave_it_whole(led, plain)
        with pytest.raises(ValueError, match="this process shares a model already"):
            load_tensor_parallel(path, 2)
        ends_with_its_follower(led, team)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_architecture_can_be_shared(variant, saved, logits):
    path = saved(variant)
    with shared(path) as (model, team):
        same_talk(TorchEngine(load_model(path)), TPEngine(team, 0, model), logits, 40)


@pytest.mark.slow
def test_four_processes_share_four_heads(saved, logits):
    path = saved("llama_yarn")
    with shared(path, 4) as (model, team):
        assert model.kv_heads == 1
        same_talk(TorchEngine(load_model(path)), TPEngine(team, 0, model), logits, 20)
        os.kill(team.pids[1], signal.SIGKILL)
        with pytest.raises(WorkerGroupError, match=rf"rank 2 \(process {team.pids[1]}\) died"):
            ask(TPEngine(team, 1, model), SequenceSlice("a", 0, 2, (5, 6), 0, "greedy"))


@pytest.mark.slow
def test_a_sharded_pipeline_stage_holds_only_its_layers(saved):
    path = saved("llama")
    with shared(path, span=Span(1, 3)) as (model, team):
        led, plain = TPEngine(team, 0, model, hidden_dtype="fp32"), TorchEngine(load_model(path), hidden_dtype="fp32")
        found = []
        for engine in (plain, led):
            blob = engine.tensor_store.put(torch.randn(5, 32, generator=torch.Generator().manual_seed(1)), "test", 0)
            (result,) = ask(engine, SequenceSlice("a", 0, 5, (), hidden_states=blob), span=Span(1, 3), out="all")
            found.append(engine.tensor_store.get(result.hidden_states))
        torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=0)
        for span in (Span(0, 2, embedding=True), Span(2, 4)):
            seq = SequenceSlice("b", 0, 2, (5, 6), hidden_states=led.tensor_store.put(torch.zeros(2, 32), "test", 0))
            with pytest.raises(RuntimeError, match="is not held here"):
                ask(led, seq, span=span, out="all")
        blob = led.tensor_store.put(torch.zeros(2, 32), "test", 0)
        ask(led, SequenceSlice("c", 0, 2, (), hidden_states=blob), span=Span(1, 3), out="all")


@pytest.mark.slow
def test_a_stalled_worker_process_is_an_error(saved):
    with shared(saved("llama"), timeout_s=2) as (model, team):
        os.kill(team.pids[0], signal.SIGSTOP)
        with pytest.raises(WorkerGroupError, match=r"rank 1 \(process \d+\) did not answer"):
            ask(TPEngine(team, 0, model), SequenceSlice("a", 0, 2, (5, 6), 0, "greedy"))


@pytest.mark.slow
def test_a_worker_process_that_fails_to_start_is_named(saved, monkeypatch):
    path = saved("llama")
    from serving.engines.tensor_parallel import worker_group

    plain = worker_group.load_unsharded

    def gone(seat):
        for process in mp.active_children():
            process.kill()
        return plain(seat)

    monkeypatch.setattr(worker_group, "load_unsharded", gone)
    with pytest.raises(WorkerGroupError, match=r"rank 1 \(process \d+\) died"):
        load_tensor_parallel(path, 2)
    assert not torch.distributed.is_initialized()
    assert not mp.active_children()


LEAD = """
import os, signal, sys
from serving.engines.tensor_parallel.worker_group import load_tensor_parallel
if __name__ == "__main__":
    model, team = load_tensor_parallel(sys.argv[1], 2)
    print(team.pids[0], flush=True)
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["killed", "forgotten"])
def test_worker_processes_end_with_their_leader(end, saved, tmp_path):
    program = tmp_path / "lead.py"
    program.write_text(LEAD)
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, program, saved("llama"), end], capture_output=True, text=True, env=os.environ | path
    )
    assert done.returncode == (-signal.SIGKILL if end == "killed" else 0), done.stderr
    pid = int(done.stdout)
    with open_pidfd(pid) as fd:  # ready when it has ended
        assert fd is None or mp.connection.wait([fd], 20)


@contextmanager
def open_pidfd(pid):
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)
