"""Which of a picked batch a cache budget lets in, and whose caches go for it: idle sessions', the longest unused first;
for the batch's first also those of sessions that wait here, the youngest first, because something must run.
"""

from collections.abc import Mapping, Sequence

from serving.core.kv_accounting import CacheKey, KVAccounting
from serving.core.queued_request import QueuedRequest
from serving.messages import INF

PickedBatch = list[tuple[QueuedRequest, int]]
RequestQueue = Mapping[str, Sequence[QueuedRequest]]
"""Session -> its parts in order."""


def admit(picked: PickedBatch, kv_accounting: KVAccounting, queue: RequestQueue) -> tuple[PickedBatch, list[CacheKey]]:
    """What runs now, and the caches that the ledger has struck out for it; who lost its own will miss.

    Raises RuntimeError when the budget is too small for the first alone.
    """
    if (
        kv_accounting.capacity_tokens == INF
        or not kv_accounting.keep_caches
        or _extra_tokens(picked, kv_accounting) <= kv_accounting.free_tokens
    ):
        return picked, []
    used = kv_accounting.used_tokens
    fit: PickedBatch = []
    evicted: list[CacheKey] = []
    for item, rows in picked:
        if not has_required_cache(item, kv_accounting):
            continue
        need = kv_accounting.extra_tokens(item.slice, item.span, rows, item.done_tokens)
        over = used + need - kv_accounting.capacity_tokens
        if over > 0:
            gone, freed = _evict_until(
                over,
                kv_accounting,
                kv_accounting.idle_caches(queue) + ([] if fit else _queued_caches(item, kv_accounting, queue)),
            )
            used -= freed
            evicted += gone
        if used + need <= kv_accounting.capacity_tokens:
            used += need
            fit.append((item, rows))
        elif not fit:
            whole = kv_accounting.round_up_to_blocks(item.cached_len + rows)
            raise RuntimeError(
                f"{item.slice.session} needs {whole} cached tokens, the budget is {kv_accounting.capacity_tokens}"
            )
    return fit, evicted


def _extra_tokens(picked: PickedBatch, kv_accounting: KVAccounting) -> int:
    """Blocks that the batch takes, in tokens, at any time while it starts."""
    return sum(
        [max(0, kv_accounting.extra_tokens(item.slice, item.span, rows, item.done_tokens)) for item, rows in picked]
    )


def has_required_cache(queued: QueuedRequest, kv_accounting: KVAccounting) -> bool:
    """Is the cache as long as what this item builds on?"""
    return kv_accounting.valid_len(queued.slice, queued.span) >= queued.cached_len


def _evict_until(tokens: float, kv_accounting: KVAccounting, victims: Sequence[CacheKey]) -> tuple[list[CacheKey], int]:
    """Strikes out caches in this order until `tokens` are free; returns them, and how many became free."""
    gone: list[CacheKey] = []
    freed = 0
    for key in victims:
        if freed >= tokens:
            break
        freed += kv_accounting.allocated_tokens(key)
        kv_accounting.evict(key)
        gone.append(key)
    return gone, freed


def _queued_caches(excluded: QueuedRequest, kv_accounting: KVAccounting, queue: RequestQueue) -> list[CacheKey]:
    """Caches of sessions that wait here, the youngest first."""
    young = [i for i in reversed([parts[0] for parts in queue.values()]) if i is not excluded]
    keys = [(i.slice.session, i.span.start_layer) for i in young]
    return [key for key in keys if key in kv_accounting.cached_lens]
