import pytest

from serving.workload.encoding import encode_prompt


class Letters:
    """One token a letter; `^` (1) begins a text, `<` and `>` frame a chat turn."""

    bos_token_id = 1

    def __init__(self, chat=False):
        self.chat_template = "yes" if chat else None

    def __call__(self, text, *, add_special_tokens):
        return {"input_ids": [1] * add_special_tokens + [ord(letter) for letter in text]}

    def apply_chat_template(self, conversation, *, tokenize, add_generation_prompt):
        assert not tokenize
        assert add_generation_prompt
        return f"<{conversation[0]['content']}>"


def read(text, chat=False, template="auto", limit=100, truncate="refuse", recorded=None):
    encoded = encode_prompt(
        text, Letters(chat), template=template, max_tokens=limit, truncate=truncate, recorded_tokens=recorded
    )
    return "".join(chr(token) if token > 1 else "^" for token in encoded.tokens), encoded.num_dropped


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, ("^abcdef", 0)),
        ({"chat": True}, ("<abcdef>", 0)),
        ({"chat": True, "template": "plain"}, ("^abcdef", 0)),
        ({"limit": 5, "truncate": "left"}, ("^cdef", 2)),
        ({"limit": 5, "truncate": "middle"}, ("^abef", 2)),
        ({"limit": 4, "truncate": "middle"}, ("^aef", 3)),
        ({"chat": True, "limit": 5, "truncate": "left"}, ("<def>", 3)),
        ({"chat": True, "limit": 5, "truncate": "middle"}, ("<aef>", 3)),
        ({"limit": 7}, ("^abcdef", 0)),
        ({"chat": True, "truncate": "left", "recorded": 4}, ("<ef>", 4)),
        ({"chat": True, "truncate": "left", "recorded": 1}, ("<f>", 5)),
        ({"chat": True, "truncate": "middle", "recorded": 200, "limit": 5}, ("<aef>", 3)),
    ],
)
def test_prompts_are_encoded_by_template_and_limit(arguments, expected):
    assert read("abcdef", **arguments) == expected


def test_a_long_prompt_is_refused_with_what_to_do():
    with pytest.raises(ValueError, match=r"has 7 tokens, the limit is 6: raise workload.max_prompt_tokens, or cut"):
        read("abcdef", limit=6)
    with pytest.raises(
        ValueError, match=r"has 7 tokens, the trace's row has 4: cut with .* or set .*use_lengths=false"
    ):
        read("abcdef", recorded=4)
    with pytest.raises(ValueError, match=r"limit is 2, and its template alone has 2: raise .*, or set workload.templ"):
        read("abcdef", chat=True, limit=2, truncate="left")


def test_a_prompt_that_is_a_word_of_the_template_is_cut_at_its_place():
    class Named(Letters):
        def apply_chat_template(self, conversation, *, tokenize, add_generation_prompt):
            return f"<user>{conversation[0]['content']}<model>"

    encoded = encode_prompt(
        "model", Named(chat=True), template="chat", max_tokens=100, truncate="left", recorded_tokens=15
    )
    assert "".join(map(chr, encoded.tokens)) == "<user>el<model>"


def test_a_chat_without_a_template_is_refused():
    with pytest.raises(ValueError, match=r"workload.template=chat, but this tokenizer has no chat template"):
        read("abcdef", template="chat")
