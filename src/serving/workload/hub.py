"""Records of a data set on the Hugging Face Hub; the package `datasets` is optional and imported here only."""

from __future__ import annotations

from collections.abc import Iterator

from serving.workload.row import DataRecord

_LOCAL_COPY_ADVICE = "set workload.path=FILE to read a local copy"


def hub_records(
    name: str, config: str | None, split: str, revision: str | None, columns: tuple[str, ...]
) -> Iterator[DataRecord]:
    """Stream one split; `columns`, if any are named, are the only ones fetched (HeySQuAD also holds audio).

    Raises ValueError when `datasets` is not installed, or the Hub cannot be reached or refuses.
    """
    where = f"{name} {split}" if revision is None else f"{name}@{revision} {split}"
    for index, fields in enumerate(_fetch(name, config, split, revision, columns)):
        yield DataRecord(fields, f"{where} row {index}", index)


def _fetch(
    name: str, config: str | None, split: str, revision: str | None, columns: tuple[str, ...]
) -> list[dict[str, object]]:
    try:
        from datasets import load_dataset
    except ModuleNotFoundError:
        raise ValueError(
            f"reading {name} from the Hugging Face Hub needs the package `datasets` and a network: "
            f"pip install 'tandem-llm[hub]', or {_LOCAL_COPY_ADVICE}"
        ) from None
    try:
        stream = load_dataset(name, config, split=split, revision=revision, streaming=True)
        return [dict(fields) for fields in (stream.select_columns(list(columns)) if columns else stream)]
    except Exception as error:  # `datasets` raises its own, requests', fsspec's and huggingface_hub's errors
        raise ValueError(
            f"{name} (config {config}, split {split}) could not be read from the Hugging Face Hub, which needs a "
            f"network ({type(error).__name__}: {error}); {_LOCAL_COPY_ADVICE}"
        ) from error
