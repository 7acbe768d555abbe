"""What prompts cost those who decode beside them, batch by batch, by the cloud's coefficients (HAT, section 2.3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from serving.deployment.setup import Setup
from serving.deployment.topology import Cast
from serving.hardware.latency import load


@dataclass(frozen=True)
class Mixing:
    """Batches of one prompt, whole or in chunks, and `decodes` sessions with `cached` tokens each; `steps` in a row.

    Where the cloud is a pipeline, a batch's time is that of all its nodes together.
    """

    setup: Setup
    decodes: int = 9
    cached: int = 512
    steps: int = 64

    def batch_s(self, prompt_rows: int, prompt_cached: int = 0, decodes: int | None = None) -> float:
        """Of one batch; without rows of a prompt only the others are in it."""
        others = [(self.cached, 1)] * (self.decodes if decodes is None else decodes)
        spans = [*others, *([(prompt_cached, prompt_rows)] if prompt_rows else [])]
        cast = Cast(self.setup, self.setup.pair.cloud.timing.layers)
        layers = sum(hop.span.last - hop.span.first for hop in cast.hops if hop.node in cast.tiers)
        return cast.cloud_latency(cast.workers[0]).seconds(load(layers, spans))

    def chunked_s(self, prompt: int, chunk: int) -> tuple[float, float]:
        """(all of the steps, up to the one that ends the prompt), where a prompt is run in chunks."""
        starts = range(0, prompt, chunk)
        prefill = [self.batch_s(min(chunk, prompt - start), start) for start in starts]
        after = [self.batch_s(0, decodes=self.decodes + 1)] * max(0, self.steps - len(prefill))
        return sum(prefill) + sum(after), sum(prefill)

    def by_prompt(self, lengths: Sequence[int]) -> Mapping[str, Mapping[str, float]]:
        """A batch's seconds, and those of a batch whose prompt has one token, by the prompt's length (Fig. 1c)."""
        alone_s = self.batch_s(1)
        return {f"{n} tokens": {"batch_s": self.batch_s(n), "of_one_token": self.batch_s(n) / alone_s} for n in lengths}

    def by_chunk(self, prompt: int, chunks: Sequence[int]) -> Mapping[str, Mapping[str, float]]:
        """What chunks save of all steps, and what they add until the prompt is done (Fig. 1d)."""
        whole_s, first_s = self.chunked_s(prompt, prompt)
        found = {}
        for chunk in chunks:
            all_s, ttft_s = self.chunked_s(prompt, chunk)
            found[f"chunks of {chunk}"] = {
                "all_s": all_s, "saved_s": whole_s - all_s, "ttft_s": ttft_s, "ttft_of_whole": ttft_s / first_s,
            }  # fmt: skip
        return found
