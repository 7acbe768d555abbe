"""Hidden states in the form in which they cross a link, and back: rounded once, whoever carries them."""

import torch

from serving.hardware.payload_size import SCALE_NBYTES, Number

_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def as_sent(hidden: torch.Tensor, number: Number) -> torch.Tensor:
    """Hidden states of shape (rows, width) as a tensor of its own, of the same shape.

    int8 has the shape (rows, width + 4): each row's numbers, then its fp32 scale. What is too large for fp16 becomes
    its largest number.
    """
    if number == "int8":
        return _scaled(hidden.float())
    if number == "fp16":
        most = torch.finfo(torch.float16).max
        return hidden.to(torch.float16, copy=True).clamp_(-most, most)
    return hidden.to(_TYPES[number], copy=True)


def _scaled(hidden: torch.Tensor) -> torch.Tensor:
    scale = hidden.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / 127
    return torch.cat([(hidden / scale).round().to(torch.int8), scale.contiguous().view(torch.int8)], 1)


def as_received(sent: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Hidden states of shape (rows, width), of the type and on the device of `like`."""
    if sent.dtype == torch.int8:
        scale = sent[:, -SCALE_NBYTES:].clone(memory_format=torch.contiguous_format).view(torch.float32)
        sent = sent[:, :-SCALE_NBYTES].float() * scale
    return sent.to(device=like.device, dtype=like.dtype)
