"""Tokens that exit early, are suspended and continued: every layer's output is the whole model's."""

import random

import pytest
import torch

from serving.engines.torch.early_exit_pass import EarlyExitPass
from serving.engines.torch.model import decompose
from serving.engines.torch.model_runner import ModelRunner, RunnerInput
from serving.engines.torch.sequence_cache import SequenceCache

VARIANTS = (
    "llama", "llama_yarn", "qwen2", "qwen2_mixed", "qwen3", "mistral", "mistral_open", "phi3", "phi3_longrope", "neox",
    "neox_sequential",
)  # fmt: skip
LAYERS, LONGEST = 4, 38  # phi3_longrope changes its keys at 40


class Text:
    """A session's text and cache, and what both models say of them."""

    def __init__(self, causal, variant, seed=0):
        self.whole, model = causal(variant), decompose(causal(variant))
        self.stack, self.slot = ModelRunner(model, model.vocab_size), SequenceCache(model, 0, LAYERS)
        self.tokens, self.r = [], random.Random(seed)

    def some(self, n):
        return [self.r.randrange(3, 97) for _ in range(n)]

    def feed(self, tokens, depth, parents=None):
        descent = EarlyExitPass(self.stack, self.slot, tokens, parents)
        logits = self.stack.logits(descent.run_to(depth))
        descent.finish()
        return logits

    def full(self, tokens):
        return self.whole(torch.tensor([tokens])).logits[0]

    def shallow(self, tokens, depth):
        """The head's opinion after `depth` layers, without any cache."""
        slot = SequenceCache(self.stack.model, 0, LAYERS)
        return self.stack.logits(self.stack.run(self.stack.embed(tokens), [RunnerInput(slot, len(tokens))], 0, depth))

    def wanted(self, tokens, depth):
        return self.full(tokens) if depth == LAYERS else self.shallow(tokens, depth)

    def append(self, n, depth):
        new = self.some(n)
        got = self.feed(new, depth)
        self.tokens += new
        assert (got - self.wanted(self.tokens, depth)[-n:]).abs().max() < 1e-4

    def branch(self, n, depth):
        """A random forest behind the text, rolled back at once."""
        tokens, parents = self.some(n), [self.r.randrange(-1, i) for i in range(n)]
        got = self.feed(tokens, depth, tuple(parents))
        for node in range(n):
            path, at = [], node
            while at >= 0:
                path.insert(0, tokens[at])
                at = parents[at]
            assert (got[node] - self.wanted([*self.tokens, *path], depth)[-1]).abs().max() < 1e-4
        self.cut(len(self.tokens))

    def cut(self, length):
        self.slot.truncate(length, "a")
        del self.tokens[length:]

    def consistent(self):
        assert len(self.slot.exit_depths) == self.slot.length == len(self.tokens)
        assert len(self.slot.suspended_hidden) == self.slot.exit_depths.num_incomplete

    def step(self):
        n, depth = self.r.randint(1, 5), self.r.choice((1, 2, 2, 3, 3, LAYERS))
        kind = self.r.choice(("append", "append", "append", "branch", "cut"))
        if kind == "cut" or len(self.tokens) + n > LONGEST:
            self.cut(self.r.randint(len(self.tokens) // 2, len(self.tokens)))
        elif kind == "branch":
            self.branch(n, depth)
        else:
            self.append(n, depth)
        self.consistent()


@pytest.mark.parametrize("variant", VARIANTS)
@torch.inference_mode()
def test_every_token_has_the_logits_of_its_exit_depth(causal, variant):
    for seed in range(2):
        text = Text(causal, variant, seed)
        text.append(12, LAYERS)  # longer than a sliding window
        for _ in range(16):
            text.step()
        text.append(1, LAYERS)
        assert text.slot.exit_depths.num_incomplete == 0


@pytest.mark.parametrize("variant", ["llama", "qwen2_mixed", "phi3", "neox"])
@torch.inference_mode()
def test_scattered_blocks_do_not_change_early_exits(causal, scattered, variant):
    text = Text(causal, variant, seed=3)
    text.slot = SequenceCache(text.stack.model, 0, LAYERS, scattered(text.stack.model))
    text.append(12, LAYERS)
    for _ in range(16):
        text.step()
    text.append(1, LAYERS)
    assert text.slot.num_runs >= 6


@pytest.mark.parametrize("variant", ["llama", "mistral", "neox"])
@torch.inference_mode()
def test_tokens_of_a_prompt_may_exit_early(causal, variant):
    text = Text(causal, variant)
    text.append(15, 1)
    text.append(2, 3)
    text.append(3, 2)
    assert [text.slot.exit_depths.cached_at(layer) for layer in range(LAYERS)] == [20, 20, 17, 0]
    text.append(1, LAYERS)


@torch.inference_mode()
def test_branches_carry_suspended_tokens_to_their_depth(causal):
    text = Text(causal, "llama")
    text.append(10, LAYERS)
    text.append(2, 2)
    text.append(1, 1)
    text.branch(4, 3)
    assert [text.slot.exit_depths.cached_at(layer) for layer in range(LAYERS)] == [13, 13, 13, 10]
    text.branch(4, LAYERS)
    assert (text.slot.exit_depths.num_incomplete, text.slot.suspended_hidden) == (0, [])


@torch.inference_mode()
def test_a_rollback_keeps_the_suspended_tokens_before_it(causal):
    text = Text(causal, "llama")
    text.append(9, LAYERS)
    text.append(3, 3)
    text.append(3, 1)
    text.cut(11)
    text.consistent()
    assert len(text.slot.suspended_hidden) == 2
    text.append(2, LAYERS)


@torch.inference_mode()
def test_a_pass_may_stop_at_several_layers_on_its_way(causal):
    """Each check sees its layer; tokens suspended at a layer between are continued from there."""
    text = Text(causal, "llama")
    text.append(8, LAYERS)
    text.append(2, 2)
    new = text.some(2)
    text.tokens += new
    descent = EarlyExitPass(text.stack, text.slot, new)
    for depth in range(1, LAYERS + 1):
        got = text.stack.logits(descent.run_to(depth))
        assert got.shape[0] == 2
        assert (got - text.wanted(text.tokens, depth)[-2:]).abs().max() < 1e-4
    assert [(one.layers, one.num_tokens, one.cached_tokens) for one in descent.finish()] == [(2, 2, 10), (2, 4, 8)]


@torch.inference_mode()
def test_suspended_hidden_states_survive_a_growing_cache(causal):
    text = Text(causal, "llama")
    text.append(60, 2)
    text.append(30, 1)
    text.append(1, LAYERS)


@torch.inference_mode()
def test_the_check_of_this_file_detects_a_lost_hidden_state(causal):
    text = Text(causal, "llama")
    text.append(8, LAYERS)
    text.append(2, 2)
    text.slot.suspended_hidden[0] = text.slot.suspended_hidden[0] + 1.0
    new = text.some(1)
    got = text.feed(new, LAYERS)
    assert (got - text.full([*text.tokens, *new])[-1:]).abs().max() > 1e-2
