"""Small real tokenizers of three kinds: byte-level BPE with a chat template, byte fallback, whole words."""

from functools import cache
from typing import Any

from training.embedded_pair.tokenizer import train

TEXTS = ["where is the red key? it is in the box.", "the key is on the box 🙂", "Grüße aus 東京", "one two three four"]


@cache
def byte_level() -> Any:
    return train(TEXTS * 3, 400)


@cache
def byte_fallback() -> Any:
    """As SentencePiece's: a character outside the vocabulary is a run of byte tokens."""
    from tokenizers import Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    names = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz.?"]
    vocabulary = {name: i for i, name in enumerate(names)}
    made = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


@cache
def words() -> Any:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer.from_str(tokenizer_json("where is the red key it a box in on"))
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", eos_token="<eos>")


def tokenizer_json(words: str) -> str:
    """The text of a tokenizer that knows these words and nothing else."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    names = ["<unk>", "<eos>", *words.split()]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return str(tokenizer.to_str())
