"""Why a model cannot be divided: which tier lacks what, and what to do."""

from serving.policy.partition.problem import PartitionProblem

ADVICE = "Keep the weights in fewer bits (precision), give a tier more memory, or add a tier."


def infeasibility_error(problem: PartitionProblem, allow_empty: bool = False) -> ValueError:
    """The error for a problem without a split; `allow_empty`: may a tier have no block?"""
    if not allow_empty:
        if problem.num_blocks < len(problem.tiers):
            return ValueError(
                f"partition: {problem.num_blocks} blocks leave less than one for each of {len(problem.tiers)} tiers "
                f"({', '.join(problem.tiers)}); name fewer tiers."
            )
        for tier in range(len(problem.tiers)):
            if said := _no_block_fits(problem, tier):
                return ValueError(f"partition: {said}. {ADVICE[:-1]}, or leave {problem.tiers[tier]} out.")
    return ValueError(f"partition: {_memory_exceeded(problem, allow_empty)}. {ADVICE}")


def _no_block_fits(problem: PartitionProblem, tier: int) -> str:
    """The first tier begins with the first block, the last one ends with the last."""
    last = len(problem.tiers) - 1
    possible = range(tier, problem.num_blocks - last + tier)
    possible = possible[:1] if tier == 0 else possible[-1:] if tier == last else possible
    block = min(possible, key=lambda block: problem.block_nbytes[tier][block])
    if problem.fits(tier, block, block + 1):
        return ""
    which = "block" if len(possible) == 1 else "the smallest that it could have, block"
    return (
        f"{problem.tiers[tier]} cannot hold even one block: {which} {block + 1} of {problem.num_blocks} takes "
        f"{_gb(problem.block_nbytes[tier][block])}, a node has {_gb(problem.memory_nbytes[tier])}"
    )


def _memory_exceeded(problem: PartitionProblem, allow_empty: bool) -> str:
    """Tiers filled from the front, which no other split reaches beyond."""
    filled, said, idle = 0, [], ""
    for tier, name in enumerate(problem.tiers):
        last, most = filled, problem.num_blocks - (0 if allow_empty else len(problem.tiers) - 1 - tier)
        while last < most and problem.fits(tier, filled, last + 1):
            last += 1
        said.append(_tier_usage(problem, tier, filled, last))
        idle = idle or (name if last == filled else "")
        filled = last
    left = problem.num_blocks - filled
    if left:
        over = f"{_count_blocks(left)} of {problem.num_blocks} left over, which {problem.tiers[-1]} would need "
        over += f"{_gb(problem.range_nbytes(len(problem.tiers) - 1, filled, problem.num_blocks))} more for"
    else:
        over = f"{idle} would have no block"
    return f"the tiers' memory does not hold the model. Filled from the front: {'; '.join(said)}; {over}"


def _tier_usage(problem: PartitionProblem, tier: int, first: int, last: int) -> str:
    name, memory = problem.tiers[tier], _gb(problem.memory_nbytes[tier])
    if first == last:
        return f"{name} none (block {last + 1} takes {_gb(problem.block_nbytes[tier][last])} of {memory})"
    return f"{name} {_count_blocks(last - first)} ({_gb(problem.range_nbytes(tier, first, last))} of {memory})"


def _count_blocks(count: int) -> str:
    return f"{count} block{'s' if count > 1 else ''}"


def _gb(nbytes: float) -> str:
    from serving.hardware.fleet import GB

    return f"{nbytes / GB:.4g} GB"
