from __future__ import annotations

from pathlib import Path

from training.embedded_pair import corpus, tokenizer


def test_encoding_and_decoding_restores_any_text(toy_corpus: Path) -> None:
    words = tokenizer.load(toy_corpus / "tokenizer")
    texts = [row["reference"] for row in corpus.load(toy_corpus, "test")] + ["Unseen: œuvre, 東京 1984!"]
    assert [words.decode(words(text)["input_ids"]) for text in texts] == texts


def test_every_digit_is_one_token(toy_corpus: Path) -> None:
    words = tokenizer.load(toy_corpus / "tokenizer")
    assert words.tokenize("1984 07") == ["1", "9", "8", "4", "Ġ", "0", "7"]


def test_the_chat_template_gives_the_training_format(toy_corpus: Path) -> None:
    words = tokenizer.load(toy_corpus / "tokenizer")
    row = corpus.load(toy_corpus, "test")[0]
    user, assistant = {"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["reference"]}
    [prompt], [answer] = tokenizer.prompt_ids(words, [row["prompt"]]), tokenizer.answer_ids(words, [row["reference"]])
    assert words.apply_chat_template([user], add_generation_prompt=True)["input_ids"] == prompt
    assert words.apply_chat_template([user, assistant])["input_ids"] == prompt + answer
    assert words.convert_ids_to_tokens(prompt)[:2] == ["<s>", "<|user|>"]
    assert answer[-1] == words.eos_token_id
