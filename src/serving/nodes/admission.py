"""Which of a picked batch a cache budget lets in, and whose caches go for it: idle sessions', the longest unused first;
for the batch's first also those of sessions that wait here, the youngest first, because something must run.
"""

from collections.abc import Mapping, Sequence

from serving.core.kv_accounting import Key, Ledger
from serving.core.queued_request import Item
from serving.messages import INF

Batch = list[tuple[Item, int]]
Queue = Mapping[str, Sequence[Item]]
"""Session -> its parts in order."""


def admit(picked: Batch, ledger: Ledger, queue: Queue) -> tuple[Batch, list[Key]]:
    """What runs now, and the caches that the ledger has struck out for it; who lost its own will miss.

    Raises RuntimeError when the budget is too small for the first alone.
    """
    if ledger.capacity == INF or not ledger.keep or _need(picked, ledger) <= ledger.free:
        return picked, []
    used = ledger.used
    fit: Batch = []
    evicted: list[Key] = []
    for item, rows in picked:
        if not cached(item, ledger):
            continue
        need = ledger.need(item.rows, item.span, rows, item.done)
        over = used + need - ledger.capacity
        if over > 0:
            gone, freed = _evict(over, ledger, ledger.idle(queue) + ([] if fit else _waiting(item, ledger, queue)))
            used -= freed
            evicted += gone
        if used + need <= ledger.capacity:
            used += need
            fit.append((item, rows))
        elif not fit:
            whole = ledger.whole(item.cached + rows)
            raise RuntimeError(f"{item.rows.session} needs {whole} cached tokens, the budget is {ledger.capacity}")
    return fit, evicted


def _need(picked: Batch, ledger: Ledger) -> int:
    """Blocks that the batch takes, in tokens, at any time while it starts."""
    return sum([max(0, ledger.need(item.rows, item.span, rows, item.done)) for item, rows in picked])


def cached(item: Item, ledger: Ledger) -> bool:
    """Is the cache as long as what this item builds on?"""
    return ledger.valid(item.rows, item.span) >= item.cached


def _evict(tokens: float, ledger: Ledger, victims: Sequence[Key]) -> tuple[list[Key], int]:
    """Strikes out caches in this order until `tokens` are free; returns them, and how many became free."""
    gone: list[Key] = []
    freed = 0
    for key in victims:
        if freed >= tokens:
            break
        freed += ledger.held(key)
        ledger.evict(key)
        gone.append(key)
    return gone, freed


def _waiting(spared: Item, ledger: Ledger, queue: Queue) -> list[Key]:
    """Caches of sessions that wait here, the youngest first."""
    young = [i for i in reversed([parts[0] for parts in queue.values()]) if i is not spared]
    keys = [(i.rows.session, i.span.first) for i in young]
    return [key for key in keys if key in ledger.lengths]
