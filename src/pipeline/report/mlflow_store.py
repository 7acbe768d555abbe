"""The MLflow store: SQLite below `outputs` by default, or a server or another database.

Configuration is logged flat, within MLflow's limits, and with secrets masked.
"""

import json
import logging
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.report.choices import split_override

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from mlflow.tracking import MlflowClient

KEY_CHARS = 250
VALUE_CHARS = 6000
MASK = "***"

_SECRET_KEY = re.compile(
    r"(^|(?<!_per)[^a-z])((api|auth|private|access)?(key|token)|(api|auth|private|access)[_-]?(keys|tokens)"
    r"|passwords?|passwds?|pwd|passphrase|secrets?|credentials?|bearer|authorization)([^a-z]|$)"
)
_LOGINS = (
    re.compile(r"(sql(?:\+\w+)?://)\S+(?=@)"),  # SQLAlchemy takes a password with any sign
    re.compile(r"(://)[^/:@\s\"'\[]*:(?!\d+[/,?#])\S+(?=@)"),  # but HOST:PORT/PATH@VERSION is none
    re.compile(r"(://)[^/\s]+(?=@)"),
)
_QUERY_VALUE = re.compile(r"(?<=[?&])([\w.-]+)=[^&#\s\"']+")
_INNER_KEY = re.compile(r"[{,]\s*[\"']?([\w.-]+)[\"']?\s*:")
_FORBIDDEN_CHARS = re.compile(r"[^\w\-. :/]")
_FORBIDDEN_DOTS = re.compile(r"\.$|\.\.+")


def mask_secrets(node: Any, key: str = "") -> Any:
    """The same plain data with `***` for values under keys that look like secrets, and for logins and such values in
    addresses.
    """
    if node is not None and not isinstance(node, bool) and _is_secret(key):
        return MASK
    if isinstance(node, Mapping):
        return {str(name): mask_secrets(value, str(name)) for name, value in node.items()}
    if isinstance(node, list | tuple):
        return [mask_secrets(value) for value in node]
    return _mask_addresses(node) if isinstance(node, str) else node


def _mask_addresses(text: str) -> str:
    for login in _LOGINS:
        text = login.sub(rf"\1{MASK}", text)
    return _QUERY_VALUE.sub(lambda one: f"{one[1]}={MASK}" if _is_secret(one[1]) else one[0], text)


def _is_secret(key: str) -> bool:
    """True for a key that looks like a secret's: `api_key`, `clientSecret`, ..."""
    return bool(_SECRET_KEY.search(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()))


def mask_override(override: str) -> str:
    """`key=value` with the value masked as `mask_secrets` does; as a whole if a key inside it looks like a secret's."""
    key, equals, value = override.partition("=")
    if "{" in value and any(map(_is_secret, _INNER_KEY.findall(value))):
        return f"{key}={MASK}"
    last = re.split(r"[./]", key)[-1]  # the folder of `variant/token_routing/router` names no secret
    return f"{key}{equals}{mask_secrets(value, last)}" if equals else override


_BESIDE_RESULT = ("outputs", "tracking", "report", "force", "stage", "hydra", "data_root")
"""Settings that change no result."""


def split_masked(override: str) -> tuple[str, str]:
    """Key and masked value of `+key=value`; the key without its sign and package."""
    key, value = split_override(mask_override(override))
    return key.partition("@")[0], value


def changes_result(key: str) -> bool:
    """True if the setting or group may change what a run finds."""
    return key.partition("/")[0].partition(".")[0] not in _BESIDE_RESULT


def flatten(config: Mapping[str, Any]) -> dict[str, str]:
    """Masked leaves by dotted key; lists of plain values stay whole, long keys and values are cut."""
    return dict(_flat_items(mask_secrets(config), "")) if config else {}


def key_text(name: str) -> str:
    """The name as MLflow takes it for a metric or a parameter: other signs become `_`, as do a part `.` and dots that
    begin with `..`; empty parts are left out, and a long name is cut.
    """
    parts = _FORBIDDEN_CHARS.sub("_", name)[:KEY_CHARS].split("/")
    return "/".join(_begin_plainly(part) for part in parts if part) or "_"


def _begin_plainly(part: str) -> str:
    dots = _FORBIDDEN_DOTS.match(part)
    return "_" + part[dots.end() :] if dots else part


def _flat_items(node: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _flat_items(value, f"{place}.{key}".lstrip("."))
    elif isinstance(node, list) and any(isinstance(item, dict | list) for item in node):
        for index, item in enumerate(node):
            yield from _flat_items(item, f"{place}.{index}")
    else:
        text = node if isinstance(node, str) else json.dumps(node, ensure_ascii=False, default=str)
        yield key_text(place), _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_CHARS else text[: VALUE_CHARS - 1] + "…"


OFF = "none"
_SQLITE = "sqlite:///"
_SERVERS = ("http://", "https://")
_SCHEMES = (_SQLITE, *_SERVERS, "postgresql", "mysql", "mssql")

_MLFLOW_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # 7 by default: minutes of silence where a server is down
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
}


@dataclass(frozen=True)
class Tracking:
    """An MLflow store and the experiment in it. `uri`: null is mlflow.db below `outputs`; `none` logs nothing.

    Raises ValueError for an address without a store and for an experiment without a name.
    """

    uri: str | None = None
    experiment: str = "tandem"
    outputs: str = "outputs"

    def __post_init__(self) -> None:
        if self.uri not in (None, OFF) and not str(self.uri).startswith(_SCHEMES):
            raise ValueError(
                f"tracking.uri is {mask_secrets(self.uri)!r}; allowed are null (SQLite below outputs), {OFF} (log "
                "nothing), the http(s) address of an MLflow server, or a database as sqlite:///FILE, postgresql://, "
                "mysql://, mssql://. MLflow no longer has a store of plain files."
            )
        if not self.experiment.strip():
            raise ValueError("tracking.experiment is empty; name the MLflow experiment that the runs go to.")

    @property
    def enabled(self) -> bool:
        return self.uri != OFF

    @property
    def address(self) -> str:
        """The address for MLflow, with an absolute path of a SQLite file."""
        uri = self.uri or f"{_SQLITE}{self.outputs}/mlflow.db"
        return _SQLITE + str(Path(uri.removeprefix(_SQLITE)).absolute()) if uri.startswith(_SQLITE) else uri

    @property
    def database(self) -> Path | None:
        """The SQLite file, if the store is one."""
        return Path(self.address.removeprefix(_SQLITE)) if self.address.startswith(_SQLITE) else None

    def connect(self) -> "tuple[MlflowClient, str]":
        """A client and the experiment's id. Creates what is missing, one process at a time: concurrent migrations leave
        a database broken.
        """
        with _silence_mlflow(), self.database_lock():
            from mlflow.tracking import MlflowClient

            for name in ("mlflow", "alembic"):  # both say on standard error what they do to the database
                logging.getLogger(name).setLevel(logging.ERROR)
            client = MlflowClient(self.address, self.address)
            found = client.get_experiment_by_name(self.experiment)
            return client, found.experiment_id if found else self._create_experiment(client)

    def _create_experiment(self, client: "MlflowClient") -> str:
        from mlflow.exceptions import MlflowException

        place = None if self.address.startswith(_SERVERS) else (Path(self.outputs).absolute() / "mlflow").as_uri()
        try:
            return str(client.create_experiment(self.experiment, place))
        except MlflowException:
            found = client.get_experiment_by_name(self.experiment)  # on a server, another user may have been faster
            if not found:
                raise
            return str(found.experiment_id)

    def database_lock(self) -> "AbstractContextManager[Any]":
        """Held by one process at a time; a server needs no lock."""
        from filelock import FileLock

        if not self.database:
            return nullcontext()
        self.database.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(f"{self.database}.lock")

    def ui_hint(self, page: str) -> str:
        """A line that tells how to open a page of the MLflow UI."""
        if self.address.startswith(_SERVERS):
            return f"MLflow: open {mask_secrets(self.address).rstrip('/')}{page}"
        address = shlex.quote(mask_secrets(self.address))
        command = f"{_mlflow_command()} ui --backend-store-uri {address} --host 127.0.0.1 --port 5000"
        return f"MLflow: MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false {command} # then open http://127.0.0.1:5000{page}"


@contextmanager
def tolerate_mlflow_errors(tracking: Tracking, report: Callable[[str], None]) -> Iterator[None]:
    """Runs a block that logs to MLflow, silently. An error is reported once and ends only the logging."""
    with _silence_mlflow():
        try:
            yield
        except Exception as problem:  # whatever a store or server may raise: a finished job is not lost for it
            lines = str(problem).strip().splitlines()
            reason = f"{type(problem).__name__}: {mask_secrets(lines[0])[:300]}" if lines else type(problem).__name__
            report(
                f"MLflow: could not log to {mask_secrets(tracking.address)} ({reason}). "
                "Tables, records and figures are written all the same. Set tracking.uri to a store that works, or to "
                f"{OFF}, and run the same command again: what was served is cached."
            )


@contextmanager
def _silence_mlflow() -> Iterator[None]:
    """Applies MLflow's settings, unless the user has set them, and hides the warnings of its libraries."""
    for name, value in _MLFLOW_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _mlflow_command() -> str:
    """The command of this Python, which may be missing on the PATH."""
    beside = Path(sys.executable).with_name("mlflow")
    if not beside.exists():
        return "mlflow"
    inside = beside.is_relative_to(Path.cwd())
    return shlex.quote(str(beside.relative_to(Path.cwd()) if inside else beside))
