"""Delay of decoding sessions by prefills in the same batches, by the cloud's latency model (HAT, section 2.3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from serving.deployment.setup import Setup
from serving.deployment.topology import Topology
from serving.hardware.latency import batch_load


@dataclass(frozen=True)
class PrefillInterference:
    """`num_steps` batches of one prompt, whole or in chunks, and `num_decodes` sessions with `cached_tokens` tokens
    each. In a pipeline a batch's time is the sum over its nodes.
    """

    setup: Setup
    num_decodes: int = 9
    cached_tokens: int = 512
    num_steps: int = 64

    def batch_s(self, prompt_tokens: int, prompt_cached_tokens: int = 0, num_decodes: int | None = None) -> float:
        """Seconds of one batch; without prompt tokens it has decoding sessions only."""
        others = [(self.cached_tokens, 1)] * (self.num_decodes if num_decodes is None else num_decodes)
        spans = [*others, *([(prompt_cached_tokens, prompt_tokens)] if prompt_tokens else [])]
        topology = Topology(self.setup, self.setup.pair.cloud.timed_architecture.layers)
        layers = sum(hop.span.end_layer - hop.span.start_layer for hop in topology.hops if hop.node in topology.tiers)
        return topology.cloud_latency(topology.workers[0]).seconds(batch_load(layers, spans))

    def chunked_s(self, prompt_tokens: int, chunk_tokens: int) -> tuple[float, float]:
        """(seconds of all steps, seconds up to the end of the prompt) for a prompt in chunks."""
        starts = range(0, prompt_tokens, chunk_tokens)
        prefill = [self.batch_s(min(chunk_tokens, prompt_tokens - start), start) for start in starts]
        after = [self.batch_s(0, num_decodes=self.num_decodes + 1)] * max(0, self.num_steps - len(prefill))
        return sum(prefill) + sum(after), sum(prefill)

    def by_prompt_length(self, lengths: Sequence[int]) -> Mapping[str, Mapping[str, float]]:
        """A batch's seconds, and relative to a batch whose prompt has one token, by prompt length (Fig. 1c)."""
        alone_s = self.batch_s(1)
        return {
            f"{n} tokens": {"batch_s": self.batch_s(n), "relative_to_one_token": self.batch_s(n) / alone_s}
            for n in lengths
        }

    def by_chunk_size(self, prompt_tokens: int, chunk_sizes: Sequence[int]) -> Mapping[str, Mapping[str, float]]:
        """The time of all steps that chunks save, and the time that they add to the prompt (Fig. 1d)."""
        whole_s, first_s = self.chunked_s(prompt_tokens, prompt_tokens)
        found = {}
        for chunk in chunk_sizes:
            all_s, ttft_s = self.chunked_s(prompt_tokens, chunk)
            found[f"chunks of {chunk}"] = {
                "total_s": all_s,
                "saved_s": whole_s - all_s,
                "ttft_s": ttft_s,
                "ttft_relative_to_unchunked": ttft_s / first_s,
            }
        return found
