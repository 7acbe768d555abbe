"""A trained score as an artifact: a small network, and what the slot that decides by it reads."""

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from serving.core.scores import LOGIT_SCORES
from serving.learned.artifact import ArtifactFormat, check_digest
from serving.learned.mlp import NumpyMLP, layers_from


@dataclass(frozen=True, eq=False, repr=False)
class MLPScorer(NumpyMLP):
    """Base class. A subclass names its score, its features and its files; a field that it adds has a default.

    Raises ValueError for layers that do not fit each other or the features.
    """

    threshold: float = 0.5
    metrics: Mapping[str, Any] = field(default_factory=dict)
    made_from: Mapping[str, str] = field(default_factory=dict)
    name: ClassVar[str]
    """The score."""
    feature_kind: ClassVar[Literal["scores", "hidden"]]
    files: ClassVar[ArtifactFormat]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.feature_kind == "scores" and self.num_features != len(LOGIT_SCORES):
            raise ValueError(f"a {self.files.kind} reads {len(LOGIT_SCORES)} scores, this one {self.num_features}")

    def __repr__(self) -> str:
        """Both ends of a link compare policies by it."""
        return f"{self.files.kind} {self.hidden_widths} {self.digest[:12]} at {self.threshold!r}"

    def save(self, folder: Path) -> None:
        header = {
            "features": self._features,
            "layers": [len(bias) for _, bias in self.layers],
            "sha256": self.digest,
            **{each.name: getattr(self, each.name) for each in self._header_fields()},
        }
        self.files.save(folder, header, self.arrays())

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads what `save` wrote. Raises ValueError that names the file when it is missing, damaged, or not of this
        form.
        """
        header, saved = cls.files.read_header(folder), cls.files.read_weights(folder)
        with cls.files.parsing(folder):
            layers = layers_from(saved, len(header["layers"]))
            more = {each.name: _typed(header[each.name], each.default) for each in cls._header_fields()}
            found = cls(layers, saved["mean"], saved["std"], **more)
            if header["features"] != found._features:
                raise ValueError(f"it reads {header['features']}, a drafter computes {found._features}")
            check_digest(header["sha256"], found.digest)
            return found

    @property
    def _features(self) -> list[str] | dict[str, int]:
        return list(LOGIT_SCORES) if self.feature_kind == "scores" else {"hidden": self.num_features}

    @classmethod
    def _header_fields(cls) -> list[Field[Any]]:
        """All but the network's own."""
        return [each for each in fields(cls) if each.name not in {network.name for network in fields(NumpyMLP)}]


def _typed(value: Any, default: Any) -> Any:
    """A value from JSON, of the type of its field's default."""
    return type(default)(value) if isinstance(default, float | tuple) else value
