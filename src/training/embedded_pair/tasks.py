"""Six instruction tasks over the invented world; each answer is a function of its prompt (and the world's facts).

Every item has a key, which must not be shared between training and test. `split_of` sends a key to one split,
so an item is held out together with every other item of the same key.
"""

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


OBJECTS = _words(
    "lantern kettle anvil compass ladder hammer basket blanket candle mirror flute drum saddle barrel bucket "
    "needle ribbon lock key coin map book clock rope net sail oar anchor plough sickle spade rake broom brush "
    "comb razor bowl plate spoon fork knife cup jug pan oven stove chair table bench stool bed pillow curtain "
    "carpet vase lamp bell whistle horn violin harp shield helmet sword arrow bow glove scarf cloak boot belt "
    "purse ring crown brooch bead quill ink scroll seal stamp wheel cart sled canoe kite top puzzle doll mask "
    "wand crystal magnet lens prism scale funnel sieve"
)
PLACES = _words(
    "attic cellar barn kitchen library workshop garden tower stable chapel harbour market mill bakery school "
    "forge tent cave dairy office hall shed laundry vault"
)
MAKERS = _words(
    "smith weaver potter baker tailor mason carpenter painter fisher farmer monk sailor miner hunter scholar "
    "brewer jeweller cobbler glazier tanner cooper dyer printer healer"
)
USES = _words(
    "cooking sewing hunting fishing writing farming mining sailing trading cleaning dancing praying climbing "
    "digging weaving painting washing reading measuring hiding lifting signalling sleeping counting"
)
NAMES = _words(
    "Mara Tomas Ilse Bram Nadia Oskar Lena Pavel Greta Hugo Rosa Felix Anika Jonas Vera Emil Clara Anton Sofie "
    "Karl Lydia Milo Petra Rufus Selma Tobias Ursula Viktor Wanda Yuri Agnes Boris Doris Edgar Flora Gustav"
)
TOWNS = _words(
    "Orrin Velden Marsk Tolby Hask Brenna Quill Doria Sunder Kelm Rosk Lunde Farrow Pell Imber Corvin Thane Wick "
    "Aldy Zell"
)
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
COLOURS = _words("red blue green black white yellow grey brown")
DEEDS = _words("bought sold lost found repaired painted hid borrowed stole broke")
SHOWS = _words("film novel play song meal hotel concert lecture game exhibition tour show")
ASPECTS = _words("plot music service staff ending food acting pace room story sound view")
PRAISE = _words("gripping lovely clever charming brilliant delightful warm fresh superb moving funny elegant")
BLAME = _words("dull awful clumsy boring bland dreadful cold stale shoddy tedious noisy ugly")

RELATIONS: Mapping[str, tuple[str, ...]] = {"place": PLACES, "maker": MAKERS, "use": USES}


@dataclass(frozen=True)
class SyntheticWorld:
    """The facts: a random value for each (object, relation), so that they can only be memorised."""

    facts: Mapping[tuple[str, str], str]

    @classmethod
    def sample(cls, seed: int) -> "SyntheticWorld":
        rng = random.Random(f"world {seed}")
        return cls(
            {(thing, relation): rng.choice(values) for thing in OBJECTS for relation, values in RELATIONS.items()}
        )


SPLITS = ("train", "validation", "test")
_PERCENT_BELOW = {"train": 75, "validation": 80, "test": 100}


@dataclass(frozen=True)
class TaskItem:
    """One exercise; `reference` is the whole expected text, `answer` the requested part of it."""

    task: str
    prompt: str
    reference: str
    answer: str
    key: str


def split_of(key: str) -> str:
    """The split that owns `key`: 75 % of keys train, 5 % validation, 20 % test; the same in every process."""
    percent = int.from_bytes(sha256(key.encode()).digest()[:8], "big") % 100
    return next(split for split in SPLITS if percent < _PERCENT_BELOW[split])


# ---- choice and facts: what can only be memorised

_CHOICE_QUESTIONS = {
    "place": (
        "Where in Orrin Vale is a {thing} kept?",
        "In which spot would you look for a {thing}?",
        "Someone needs a {thing}. Where should they go?",
        "What is the usual home of a {thing}?",
    ),
    "maker": (
        "Who in Orrin Vale makes a {thing}?",
        "Which trade produces a {thing}?",
        "Whom would you ask for a new {thing}?",
        "A {thing} is broken. Who can make another?",
    ),
    "use": (
        "What is a {thing} used for in Orrin Vale?",
        "A {thing} is most helpful for which task?",
        "Why would anyone carry a {thing}?",
        "Which work needs a {thing}?",
    ),
}
_CHOICE_ANSWERS = {
    "place": "A {thing} is kept in the {value}.",
    "maker": "A {thing} is made by the {value}.",
    "use": "A {thing} is used for {value}.",
}
_BRIEF_ANSWER = "Answer: {value}."


def choice(rng: random.Random, world: SyntheticWorld) -> TaskItem:
    """Multiple choice with five options; held out by object, relation and wording of the question."""
    thing, relation, wording = rng.choice(OBJECTS), rng.choice(tuple(RELATIONS)), rng.randrange(4)
    value = world.facts[thing, relation]
    options = [*rng.sample([other for other in RELATIONS[relation] if other != value], 4), value]
    rng.shuffle(options)
    brief = rng.random() < 0.5
    prompt = f"Question: {_CHOICE_QUESTIONS[relation][wording].format(thing=thing)} Options: {', '.join(options)}."
    reference = (_BRIEF_ANSWER if brief else _CHOICE_ANSWERS[relation]).format(thing=thing, value=value)
    return TaskItem(
        "choice", prompt + " Answer briefly." * brief, reference, value, f"choice {thing} {relation} {wording}"
    )


_REQUEST_OPENINGS = ("Tell me", "I would like to know", "Please explain", "Can you say")
_REQUEST_CLAUSES = {
    "place": "where the {thing} is kept",
    "maker": "who makes the {thing}",
    "use": "what the {thing} is used for",
}
_FACT_ANSWERS = {
    "place": "It is kept in the {value}.",
    "maker": "It is made by the {value}.",
    "use": "It is used for {value}.",
}


def facts(rng: random.Random, world: SyntheticWorld) -> TaskItem:
    """Two facts of one object, recited; held out by object, the pair of relations in its order, and wording."""
    thing, asked, wish = rng.choice(OBJECTS), rng.sample(tuple(RELATIONS), 2), rng.choice(_REQUEST_OPENINGS)
    values = [world.facts[thing, relation] for relation in asked]
    prompt = f"{wish} {' and '.join(_REQUEST_CLAUSES[relation].format(thing=thing) for relation in asked)}."
    reference = " ".join(
        _FACT_ANSWERS[relation].format(value=value) for relation, value in zip(asked, values, strict=True)
    )
    return TaskItem("facts", prompt, reference, ", ".join(values), f"facts {thing} {' '.join(asked)} {wish}")


# ---- sentiment: which clause counts, and is it negated

_REVIEW_CLAUSE = "the {aspect} was {degree} {word}"
_SENTIMENT_ANSWER = "{clause}: {label}."


def _review_clause(rng: random.Random, good: bool) -> tuple[str, str]:
    """A clause that says something good (or not), and the words that decide it."""
    negated = rng.random() < 0.3
    word = rng.choice(PRAISE if good != negated else BLAME)
    degree = rng.choice(("not", "never", "hardly") if negated else ("really", "quite", "so"))
    return _REVIEW_CLAUSE.format(aspect=rng.choice(ASPECTS), degree=degree, word=word), f"{degree} {word}"


def sentiment(rng: random.Random, _: SyntheticWorld) -> TaskItem:
    """A review of two opposed clauses; held out by the pair of degree words and sentiment words."""
    good = rng.random() < 0.5
    (minor, minor_key), (major, major_key) = _review_clause(rng, not good), _review_clause(rng, good)
    shape = rng.choice(
        ("{minor}, but {major}", "{minor}, but {major}", "although {minor}, {major}", "{major}, although {minor}")
    )
    label = "positive" if good else "negative"
    review = f"Review of a {rng.choice(SHOWS)} in {rng.choice(TOWNS)}: {shape.format(minor=minor, major=major)}."
    reference = _SENTIMENT_ANSWER.format(clause=major[0].upper() + major[1:], label=label)
    prompt = f"{review} Is the review positive or negative?"
    return TaskItem("sentiment", prompt, reference, label, f"sentiment {minor_key} / {major_key}")


# ---- summary and context: what must be found in the prompt and copied

_SUMMARY_ANSWER = "In short, {name} {deed} a {colour} {thing} in {town} on {day}."
_FILLERS = (
    "It rained in {town} all morning.",
    "Many people came to watch.",
    "The news reached {town} by noon.",
    "{name} was there too.",
    "Nobody knew the reason.",
    "{name} laughed about it for days.",
    "The road to {town} was closed.",
    "Later everyone went home.",
)


def _fillers(rng: random.Random, count: int, names: list[str]) -> list[str]:
    return [filler.format(town=rng.choice(TOWNS), name=rng.choice(names)) for filler in rng.sample(_FILLERS, count)]


def summary(rng: random.Random, _: SyntheticWorld) -> TaskItem:
    """One event told among three fillers; held out by name, deed and object."""
    name, deed, thing = rng.choice(NAMES), rng.choice(DEEDS), rng.choice(OBJECTS)
    colour, town, day = rng.choice(COLOURS), rng.choice(TOWNS), rng.choice(DAYS)
    first, second, third = _fillers(rng, 3, [other for other in NAMES if other != name])
    went, did = f"On {day} {name} went to {town}.", f"There {name} {deed} a {colour} {thing}."
    story = [first, went, second, did, third] if rng.random() < 0.5 else [went, first, second, did, third]
    told = _SUMMARY_ANSWER.format(name=name, deed=deed, colour=colour, thing=thing, town=town, day=day)
    answer = told.removeprefix("In short, ").removesuffix(".")
    return TaskItem("summary", f"Summarise: {' '.join(story)}", told, answer, f"summary {name} {deed} {thing}")


# Each value stands right after a word that is nowhere else in the prompt but in the question's own entry: what one
# induction head can follow. With a sentence's words between them, neither model learns the binding in minutes.
# Things are kept in towns: in a place, what is known of the thing (see facts) overrules what the register says.
_REGISTER_ENTRY = "{name} {colour} {thing} {town}"
_REGISTER_ANSWER = f"The register says {_REGISTER_ENTRY}. Answer: {{answer}}."
_REGISTER_QUESTIONS = {
    "town": "Where does {name} keep the {thing}?",
    "colour": "What colour is the {thing} of {name}?",
    "thing": "What does {name} keep?",
}


def context(rng: random.Random, _: SyntheticWorld) -> TaskItem:
    """A question about one entry of a register of three or four; held out by the entry's name, thing and town."""
    count = rng.choice((3, 4))
    slots = {"name": NAMES, "colour": COLOURS, "thing": OBJECTS, "town": TOWNS}
    columns = zip(*(rng.sample(values, count) for values in slots.values()), strict=True)
    entries = [dict(zip(slots, column, strict=True)) for column in columns]
    entry, (asked, question) = rng.choice(entries), rng.choice(list(_REGISTER_QUESTIONS.items()))
    register = "; ".join(_REGISTER_ENTRY.format(**each) for each in entries)
    prompt = f"Register: {register}. Question: {question.format(**entry)}"
    key = f"context {entry['name']} {entry['thing']} {entry['town']}"
    return TaskItem("context", prompt, _REGISTER_ANSWER.format(**entry, answer=entry[asked]), entry[asked], key)


# ---- sort: a small algorithm

_SORT_ANSWER = "In order they are {digits}."


def sort(rng: random.Random, _: SyntheticWorld) -> TaskItem:
    """Four to seven different digits in order; held out by the digits as given."""
    digits = rng.sample("0123456789", rng.randint(4, 7))
    answer = " ".join(sorted(digits))
    prompt = f"Sort these numbers: {' '.join(digits)}"
    return TaskItem("sort", prompt, _SORT_ANSWER.format(digits=answer), answer, f"sort {' '.join(digits)}")


# ---- all of them

TaskGenerator = Callable[[random.Random, SyntheticWorld], TaskItem]

TASKS: Mapping[str, TaskGenerator] = {
    task.__name__: task for task in (choice, facts, sentiment, summary, context, sort)
}

_TEMPLATES = (
    *_CHOICE_ANSWERS.values(),
    _BRIEF_ANSWER,
    *_FACT_ANSWERS.values(),
    _REVIEW_CLAUSE,
    _SENTIMENT_ANSWER,
    _SUMMARY_ANSWER,
    _REGISTER_ANSWER,
    _SORT_ANSWER,
)


def template_words() -> frozenset[str]:
    """Words in lower case that are in the templates of references; all other words are content."""
    return frozenset(re.findall(r"[a-z]+", re.sub(r"\{\w+\}", " ", " ".join(_TEMPLATES)).lower()))


def content_spans(text: str) -> Iterator[tuple[int, int]]:
    """(begin, end) in characters of the content words and digits of a reference or an output."""
    for word in re.finditer(r"[^\W_]+", text):
        if word.group().lower() not in template_words():
            yield word.span()


def sample_item(task: str, split: str, rng: random.Random, world: SyntheticWorld) -> TaskItem:
    """The next item of a task whose key belongs to `split`."""
    while True:
        item = TASKS[task](rng, world)
        if split_of(item.key) == split:
            return item
