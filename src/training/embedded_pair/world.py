"""An invented world: which things there are, where each is kept, who makes it and what it is for."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass


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
class World:
    """What is true: one value for each (object, relation), drawn at random, so that it can only be memorised."""

    facts: Mapping[tuple[str, str], str]

    @classmethod
    def draw(cls, seed: int) -> World:
        rng = random.Random(f"world {seed}")
        return cls(
            {(thing, relation): rng.choice(values) for thing in OBJECTS for relation, values in RELATIONS.items()}
        )
