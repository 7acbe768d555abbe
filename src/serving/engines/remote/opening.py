"""Opens a server: is the model there, does it speak the pair's tokens, can it judge? Before any work."""

from typing import TYPE_CHECKING, Any

from serving.engines.remote.client import Client
from serving.engines.remote.dialect import DIALECTS, OWNERS, Dialect, whole_numbers
from serving.engines.remote.engine import RemoteEngine
from serving.engines.remote.errors import RemoteError, hidden, plain, shown
from serving.engines.remote.generator import Writer
from serving.engines.remote.prompt_logprobs import HALF, decode
from serving.engines.remote.server import Server

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer

PROBES = ("The key is in the red box, isn't it?", "x = [3.14, 1,000]  # \u00fcber \u4e16\u754c\n\tdone")
_SAMPLED = 512
"""Tokens of the vocabulary whose text is compared."""
_WRITTEN = 6


def open_remote(
    server: Server,
    tokenizer: "Tokenizer",
    vocabulary: int,
    verifies: bool,
    context_tokens: int | None = None,
    waits: bool = False,
) -> RemoteEngine:
    """Raises ValueError with what the server lacks, and what to do.

    `context_tokens` is the longest that a prompt and its answer may become together; `waits`: time is virtual, so that
    a server's rests are waited out here.
    """
    client = Client(server, waits=waits)
    try:
        return _opened(client, tokenizer, vocabulary, verifies, context_tokens)
    except RemoteError as problem:
        client.close()
        raise ValueError(f"model.cloud.server: {problem}") from None


def _opened(
    client: Client, tokenizer: "Tokenizer", vocabulary: int, verifies: bool, needed: int | None
) -> RemoteEngine:
    server = client.server
    card = _card(client)
    owner = str(card.get("owned_by", "")).lower()
    dialect = DIALECTS[OWNERS.get(owner, "openai") if server.dialect == "auto" else server.dialect]
    context = _context(server, card, needed)
    _same_cut(client, dialect, tokenizer)
    _same_vocabulary(client, dialect, tokenizer, vocabulary)
    writer = Writer(client, dialect, tokenizer, vocabulary, context=context)
    _try(writer)
    if verifies:
        _try_judging(writer)
    return RemoteEngine(writer)


def _card(client: Client) -> dict[str, Any]:
    """What the server says of the model."""
    listed = client.get(f"{client.server.url}/models").get("data")
    cards = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    for card in cards:
        if client.server.model in (card.get("id"), *_aliases(card)):
            return card
    names = ", ".join(plain(str(card.get("id"))) for card in cards[:16]) or "none"
    raise RemoteError(
        f"there is no model {client.server.model!r} at {client.server.url}; it lists: {names}. Set "
        "model.cloud.server.model"
    )


def _aliases(card: dict[str, Any]) -> list[Any]:
    found = card.get("aliases")
    return found if isinstance(found, list) else []


def _context(server: Server, card: dict[str, Any], needed: int | None) -> int | None:
    """As far as anybody says it: vLLM and SGLang as max_model_len, llama.cpp as meta.n_ctx, else who configures."""
    meta = card.get("meta")
    said = card.get("max_model_len") or (meta.get("n_ctx") if isinstance(meta, dict) else None)
    told = said if type(said) is int and said > 0 else None
    if told and server.context_tokens and told < server.context_tokens:
        raise RemoteError(
            f"model.cloud.server.context_tokens is {server.context_tokens}, and the server takes {told}; ask for "
            "fewer, or give it a longer context"
        )
    known = server.context_tokens or told
    if known and needed and known < needed:
        who = "model.cloud.server.context_tokens allows" if server.context_tokens else "the server takes"
        raise RemoteError(
            f"a prompt and its answer may become {needed} tokens long, and {who} {known}; give the server a longer "
            "context, or ask for less: workload.max_prompt_tokens and max_new_tokens, of a service "
            "service.context_tokens"
        )
    return known


def _same_cut(client: Client, dialect: Dialect, tokenizer: "Tokenizer") -> None:
    """The server cuts text into the same tokens, or at least, where it cannot be asked, into as many."""
    for text in PROBES:
        own = list(tokenizer.hf(text, add_special_tokens=False)["input_ids"])
        answer = _asked(client, dialect.tokenize(client.server, text))
        if answer is None:
            _as_many(client, dialect, text, len(own))
            continue
        theirs = list(whole_numbers(answer.get("tokens"), "tokens"))
        if theirs != own:
            at = next(
                (i for i, (a, b) in enumerate(zip(own, theirs, strict=False)) if a != b), min(len(own), len(theirs))
            )
            raise RemoteError(
                f"its tokenizer is not the pair's: {text!r} is {own} here and {plain(str(theirs))} there, from "
                f"token {at} on; "
                "serve a model of the device's family"
            )


def _asked(client: Client, question: tuple[str, dict[str, Any]] | None) -> dict[str, Any] | None:
    """None, where the server has no such URL."""
    try:
        return client.post(*question) if question else None
    except RemoteError as problem:
        if problem.missing:
            return None
        raise


def _as_many(client: Client, dialect: Dialect, text: str, own: int) -> None:
    url, body = dialect.write(client.server, text, 1, None)
    usage = client.post(url, body).get("usage")
    theirs = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if theirs != own:
        raise RemoteError(
            f"its tokenizer is not the pair's, or it adds tokens of its own: {text!r} is {own} tokens here and "
            f"{shown(theirs)} there; serve a model of the device's family"
        )


def _same_vocabulary(client: Client, dialect: Dialect, tokenizer: "Tokenizer", vocabulary: int) -> None:
    """Tokens all over the vocabulary are the same text on both sides."""
    hf = tokenizer.hf
    step = max(1, vocabulary // _SAMPLED)
    special = {i for i, token in hf.added_tokens_decoder.items() if token.special}
    sampled = [i for i in range(0, vocabulary, step) if i not in special and HALF not in decode(hf, [i])]
    question = dialect.detokenize(client.server, sampled)
    answer = _asked(client, question[:2] if question else None)
    if question is None or answer is None:
        return
    theirs, own = answer.get(question[2]), decode(hf, sampled)
    said = hidden(theirs) if isinstance(theirs, str) else ""
    if said.lstrip() in (own.lstrip(), hf.decode(sampled).lstrip()):
        return
    at = next((i for i, (a, b) in enumerate(zip(own, said, strict=False)) if a != b), min(len(own), len(said)))
    raise RemoteError(
        f"its vocabulary is not the pair's: {len(sampled)} tokens are {own[at : at + 24]!r} here and "
        f"{said[at : at + 24]!r} there (from character {at} on); serve a model of the device's family"
    )


def _try(writer: Writer) -> None:
    """One token behind a prompt of ids; a server that refuses ids is asked in text from here on."""
    prompt = writer.tokenizer.hf(PROBES[0], add_special_tokens=False)["input_ids"]
    try:
        writer.write(prompt, 1)
    except RemoteError as problem:
        if problem.passing or problem.barred or writer.dialect.ids:
            raise
        writer.as_text = True
        writer.write(prompt, 1)


def _try_judging(writer: Writer) -> None:
    """Its own text must stand, and another must not; some servers answer for the next position instead."""
    named = writer.client.server.named
    if not writer.dialect.echoes:
        raise RemoteError(_cannot_judge(named, "llama.cpp ignores echo"))
    prompt = tuple(writer.tokenizer.hf(PROBES[0], add_special_tokens=False)["input_ids"])
    try:
        own = tuple(t for t in writer.write(prompt, _WRITTEN) if t not in writer.tokenizer.ends)
        stands = writer.judge(prompt, own).accepted if own else 0
        other = next(t for t in (*prompt, *range(writer.vocabulary)) if not own or t != own[0])
        falls = writer.judge(prompt, (other,)).accepted
    except RemoteError as problem:
        if problem.passing:
            raise
        raise RemoteError(_cannot_judge(named, str(problem))) from None
    if stands < len(own) or falls:
        why = f"of {len(own)} tokens of its own {stands} stand, and of 1 other {falls}"
        raise RemoteError(_cannot_judge(named, why))


def _cannot_judge(named: str, why: str) -> str:
    return (
        f"{named} returns no log-probabilities of prompts that a verdict could be made of ({why}). Policies that "
        "verify drafts need them (synera, sled, wisp); use a server that has them (vLLM, SGLang), or a policy whose "
        "drafts do not travel: hybrid, edgefm, cloud_centric, or policy/verify=replace"
    )
