"""Into how many shares a model's blocks can be parted."""

from collections.abc import Mapping
from typing import Any


def check_heads(ways: int, config: Mapping[str, Any], name: str) -> None:
    """Raises ValueError for a checkpoint's `config` whose heads, or KV heads, are not a multiple of `ways`.

    Attention is parted by whole heads; a head that two processes had halves of would be wrong.
    """
    heads = config.get("num_attention_heads")
    counts = {"heads": heads, "KV heads": config.get("num_key_value_heads") or heads}
    for what, count in counts.items():
        if isinstance(count, int) and count % ways:
            allowed = ", ".join(str(n) for n in range(1, count + 1) if not count % n)
            raise ValueError(
                f"model.cloud.ways is {ways}, and {name} has {count} {what}, which cannot be shared out evenly; set it "
                f"to a divisor of that: {allowed}"
            )
