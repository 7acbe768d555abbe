"""The pair's tokenizer: byte-level BPE with single digits and a one-turn chat format."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, BOS, EOS, USER, ASSISTANT = SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>")

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|user|>{{ message['content'] }}"
    "{% else %}<|assistant|>{{ message['content'] }}{{ eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train(texts: Iterable[str], vocab_size: int) -> "PreTrainedTokenizerFast":
    """A tokenizer of at most `vocab_size` tokens; the texts decide the merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    # With a prefix space, a space would appear before every digit.
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    return _with_chat_template(bpe)


def _with_chat_template(bpe: object) -> "PreTrainedTokenizerFast":
    from transformers import PreTrainedTokenizerFast

    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        additional_special_tokens=[USER, ASSISTANT],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def load(directory: Path) -> "PreTrainedTokenizerFast":
    from transformers import PreTrainedTokenizerFast

    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(str(directory))
    return tokenizer


def prompt_ids(tokenizer: "PreTrainedTokenizerFast", prompts: list[str]) -> list[list[int]]:
    """Token ids of each prompt in chat format, up to where the assistant's answer begins."""
    bos, user, assistant = (_token_id(tokenizer, token) for token in (BOS, USER, ASSISTANT))
    return [[bos, user, *ids, assistant] for ids in _encode(tokenizer, prompts)]


def answer_ids(tokenizer: "PreTrainedTokenizerFast", answers: list[str]) -> list[list[int]]:
    """Token ids of each answer, end of sequence included."""
    return [[*ids, _token_id(tokenizer, EOS)] for ids in _encode(tokenizer, answers)]


def _token_id(tokenizer: "PreTrainedTokenizerFast", token: str) -> int:
    return cast(int, tokenizer.convert_tokens_to_ids(token))


def _encode(tokenizer: "PreTrainedTokenizerFast", texts: list[str]) -> list[list[int]]:
    encoded: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return encoded
