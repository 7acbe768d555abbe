"""Connects to a server and checks, before any work, its model, context, tokenizer, and ability to verify drafts."""

from typing import TYPE_CHECKING, Any

from serving.engines.remote.client import RemoteClient
from serving.engines.remote.dialect import DIALECT_BY_OWNER, DIALECTS, Dialect, token_id_list
from serving.engines.remote.engine import RemoteEngine
from serving.engines.remote.errors import RemoteError, one_line, redact, short_repr
from serving.engines.remote.generator import RemoteGenerator
from serving.engines.remote.prompt_logprobs import REPLACEMENT_CHAR, decode
from serving.engines.remote.server import RemoteServer

if TYPE_CHECKING:
    from serving.engines.tokenizer import Tokenizer

PROBE_TEXTS = ("The key is in the red box, isn't it?", "x = [3.14, 1,000]  # \u00fcber \u4e16\u754c\n\tdone")
_NUM_SAMPLED_TOKENS = 512
"""How many tokens of the vocabulary are compared by text."""
_NUM_PROBE_TOKENS = 6


def connect_remote(
    server: RemoteServer,
    tokenizer: "Tokenizer",
    vocab_size: int,
    verifies: bool,
    context_tokens: int | None = None,
    wait_for_cooldown: bool = False,
) -> RemoteEngine:
    """Raises ValueError that says what the server lacks, and what to do.

    `context_tokens` is the longest prompt and answer together; `wait_for_cooldown`: see `CircuitBreaker`.
    """
    client = RemoteClient(server, wait_for_cooldown=wait_for_cooldown)
    try:
        return _checked_engine(client, tokenizer, vocab_size, verifies, context_tokens)
    except RemoteError as problem:
        client.close()
        raise ValueError(f"model.cloud.server: {problem}") from None


def _checked_engine(
    client: RemoteClient, tokenizer: "Tokenizer", vocab_size: int, verifies: bool, needed_tokens: int | None
) -> RemoteEngine:
    server = client.server
    card = _model_card(client)
    owner = str(card.get("owned_by", "")).lower()
    dialect = DIALECTS[DIALECT_BY_OWNER.get(owner, "openai") if server.dialect == "auto" else server.dialect]
    context = _context_length(server, card, needed_tokens)
    _check_tokenization(client, dialect, tokenizer)
    _check_vocabulary(client, dialect, tokenizer, vocab_size)
    generator = RemoteGenerator(client, dialect, tokenizer, vocab_size, context_tokens=context)
    _probe_completion(generator)
    if verifies:
        _probe_prompt_logprobs(generator)
    return RemoteEngine(generator)


def _model_card(client: RemoteClient) -> dict[str, Any]:
    """The model's entry in the server's list."""
    listed = client.get(f"{client.server.api_url}/models").get("data")
    cards = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    for card in cards:
        if client.server.model in (card.get("id"), *_aliases(card)):
            return card
    names = ", ".join(one_line(str(card.get("id"))) for card in cards[:16]) or "none"
    raise RemoteError(
        f"there is no model {client.server.model!r} at {client.server.api_url}; it lists: {names}. Set "
        "model.cloud.server.model"
    )


def _aliases(card: dict[str, Any]) -> list[Any]:
    found = card.get("aliases")
    return found if isinstance(found, list) else []


def _context_length(server: RemoteServer, card: dict[str, Any], needed_tokens: int | None) -> int | None:
    """The configured context, else the server's: max_model_len (vLLM, SGLang) or meta.n_ctx (llama.cpp)."""
    meta = card.get("meta")
    value = card.get("max_model_len") or (meta.get("n_ctx") if isinstance(meta, dict) else None)
    reported = value if type(value) is int and value > 0 else None
    if reported and server.context_tokens and reported < server.context_tokens:
        raise RemoteError(
            f"model.cloud.server.context_tokens is {server.context_tokens}, and the server takes {reported}; ask for "
            "fewer, or give it a longer context"
        )
    known = server.context_tokens or reported
    if known and needed_tokens and known < needed_tokens:
        subject = "model.cloud.server.context_tokens allows" if server.context_tokens else "the server takes"
        raise RemoteError(
            f"a prompt and its answer may become {needed_tokens} tokens long, and {subject} {known}; give the server a "
            "longer context, or ask for less: workload.max_prompt_tokens and max_new_tokens, of a service "
            "service.context_tokens"
        )
    return known


def _check_tokenization(client: RemoteClient, dialect: Dialect, tokenizer: "Tokenizer") -> None:
    """Raises RemoteError if the server splits text into other tokens, or, without /tokenize, into another number."""
    for text in PROBE_TEXTS:
        own = list(tokenizer.hf(text, add_special_tokens=False)["input_ids"])
        answer = _post_if_supported(client, dialect.tokenize_request(client.server, text))
        if answer is None:
            _check_token_count(client, dialect, text, len(own))
            continue
        theirs = list(token_id_list(answer.get("tokens"), "tokens"))
        if theirs != own:
            at = next(
                (i for i, (a, b) in enumerate(zip(own, theirs, strict=False)) if a != b), min(len(own), len(theirs))
            )
            raise RemoteError(
                f"its tokenizer is not the pair's: {text!r} is {own} here and {one_line(str(theirs))} there, from "
                f"token {at} on; "
                "serve a model of the device's family"
            )


def _post_if_supported(client: RemoteClient, request: tuple[str, dict[str, Any]] | None) -> dict[str, Any] | None:
    """None if the server has no such URL."""
    try:
        return client.post(*request) if request else None
    except RemoteError as problem:
        if problem.not_found:
            return None
        raise


def _check_token_count(client: RemoteClient, dialect: Dialect, text: str, num_tokens: int) -> None:
    url, body = dialect.completion_request(client.server, text, 1, None)
    usage = client.post(url, body).get("usage")
    theirs = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if theirs != num_tokens:
        raise RemoteError(
            f"its tokenizer is not the pair's, or it adds tokens of its own: {text!r} is {num_tokens} tokens here and "
            f"{short_repr(theirs)} there; serve a model of the device's family"
        )


def _check_vocabulary(client: RemoteClient, dialect: Dialect, tokenizer: "Tokenizer", vocab_size: int) -> None:
    """Raises RemoteError if tokens of the vocabulary have another text on the server."""
    hf = tokenizer.hf
    step = max(1, vocab_size // _NUM_SAMPLED_TOKENS)
    special = {i for i, token in hf.added_tokens_decoder.items() if token.special}
    sampled = [i for i in range(0, vocab_size, step) if i not in special and REPLACEMENT_CHAR not in decode(hf, [i])]
    question = dialect.detokenize_request(client.server, sampled)
    answer = _post_if_supported(client, question[:2] if question else None)
    if question is None or answer is None:
        return
    theirs, own = answer.get(question[2]), decode(hf, sampled)
    said = theirs if isinstance(theirs, str) else ""
    if said.lstrip() in (own.lstrip(), hf.decode(sampled).lstrip()):
        return
    own, said = redact(own), redact(said)
    at = next((i for i, (a, b) in enumerate(zip(own, said, strict=False)) if a != b), min(len(own), len(said)))
    raise RemoteError(
        f"its vocabulary is not the pair's: {len(sampled)} tokens are {own[at : at + 24]!r} here and "
        f"{said[at : at + 24]!r} there (from character {at} on); serve a model of the device's family"
    )


def _probe_completion(generator: RemoteGenerator) -> None:
    """Requests one token after a prompt of ids; a server that rejects ids gets text from now on."""
    prompt = generator.tokenizer.hf(PROBE_TEXTS[0], add_special_tokens=False)["input_ids"]
    try:
        generator.generate(prompt, 1)
    except RemoteError as problem:
        if problem.transient or problem.unauthorized or generator.dialect.returns_token_ids:
            raise
        generator.prompts_as_text = True
        generator.generate(prompt, 1)


def _probe_prompt_logprobs(generator: RemoteGenerator) -> None:
    """The server must accept its own text and reject another; some servers echo the next position's values."""
    named = generator.client.server.display_name
    if not generator.dialect.supports_prompt_logprobs:
        raise RemoteError(_no_prompt_logprobs(named, "llama.cpp ignores echo"))
    prompt = tuple(generator.tokenizer.hf(PROBE_TEXTS[0], add_special_tokens=False)["input_ids"])
    try:
        own = tuple(
            t for t in generator.generate(prompt, _NUM_PROBE_TOKENS) if t not in generator.tokenizer.eos_token_ids
        )
        accepted = generator.verify(prompt, own).accepted if own else 0
        other = next(t for t in (*prompt, *range(generator.vocab_size)) if not own or t != own[0])
        wrongly_accepted = generator.verify(prompt, (other,)).accepted
    except RemoteError as problem:
        if problem.transient:
            raise
        raise RemoteError(_no_prompt_logprobs(named, str(problem))) from None
    if accepted < len(own) or wrongly_accepted:
        why = f"of {len(own)} tokens of its own {accepted} stand, and of 1 other {wrongly_accepted}"
        raise RemoteError(_no_prompt_logprobs(named, why))


def _no_prompt_logprobs(server_name: str, reason: str) -> str:
    return (
        f"{server_name} returns no log-probabilities of prompts that a verdict could be made of ({reason}). Policies "
        "that verify drafts need them (synera, sled, wisp); use a server that has them (vLLM, SGLang), or a policy "
        "whose drafts do not travel: hybrid, edgefm, cloud_centric, or policy/verify=replace"
    )
