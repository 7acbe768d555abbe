"""The sealed half of each public data set, which no recipe, threshold or choice of this project has seen.

sealed.json lists it by digests of the questions, so that a user's own file of the same format has nothing sealed. The
half was drawn by another digest of the question (tests/serving/workload/test_datasets.py).
"""

import json
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Literal

Evaluation = Literal["open", "sealed"]
MANIFEST = Path(__file__).with_name("sealed.json")
_DIGEST_CHARS = 12


def digest(question: str) -> str:
    """The name of a question in the manifest."""
    return sha256(question.encode()).hexdigest()[:_DIGEST_CHARS]


def is_sealed(dataset: str, question: str) -> bool:
    """True for a question that the manifest lists under the data set's name."""
    return digest(question) in _sealed_digests(dataset)


@cache
def _sealed_digests(dataset: str) -> frozenset[str]:
    return frozenset(json.loads(MANIFEST.read_text(encoding="utf-8")).get(dataset, "").split())
