"""MLflow's registry, the reading half: `models:/name@alias` in, a model folder in the cache out.

`workflows` use it too and have the writing half. In serving only the process of `serving.watch`
uses it: MLflow is imported when it is first needed.
"""

import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, unquote, urlsplit

from bert_core.disk import file_sha256
from bert_core.errors import UserError
from bert_core.lineage import Lineage
from serving.rollout.aliases import Address, UnreachableError, without_password, without_secrets
from serving.rollout.cache import CHECKSUMS, add_folder, damaged_file, find_folder, listed_files

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

FOLDER_NAME = "model"
"""The name of the model folder among the artifacts of a logged model."""
SQLITE_PREFIX = "sqlite:///"
METRIC_TAG = "metric."
"""What the tags of a version begin with that are its metrics."""

_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "60",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK": "true",  # 1.8 s to check what is pinned to this process
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
QUICKLY = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
"""For a question of a few bytes: a server that waits for the answer may have its model anyway."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
_NOT_THERE = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""MLflow's codes for a model, and for an alias, that it does not have."""


@dataclass(frozen=True)
class FetchedModel:
    """A version of a registered model, its folder in the cache, and what MLflow says of it."""

    folder: Path
    name: str
    version: int
    lineage: Lineage


class NotThereError(UserError):
    """MLflow has answered: there is no such model, version or alias."""


class DamagedError(UnreachableError):
    """A model folder came otherwise than its list of checksums says."""


class KnownDamage:
    """Logged models that came damaged: for ten minutes each they are not downloaded again."""

    _AGAIN_SECONDS = 600.0

    def __init__(self) -> None:
        self._found: dict[str, tuple[float, DamagedError]] = {}

    def note(self, model_id: str, error: DamagedError) -> None:
        """Takes note of one that has just come."""
        self._found[model_id] = (time.monotonic(), error)

    def check(self, model_id: str) -> None:
        """Raises what was noted of it, if that is not too long ago."""
        at, error = self._found.get(model_id, (0.0, None))
        if error is not None and time.monotonic() - at < self._AGAIN_SECONDS:
            raise DamagedError(error.what, error.where, error.remedy)


def import_mlflow() -> None:
    """Imports what is needed of MLflow, which takes seconds."""
    import mlflow.artifacts
    from mlflow import MlflowClient

    del mlflow, MlflowClient


def default_cache() -> Path:
    """The folder of fetched models where no other is given."""
    return Path.home() / ".bertline" / "models"


def default_tracking_uri(storage: Path) -> str:
    """MLFLOW_TRACKING_URI where it is set, otherwise SQLite under the storage folder.

    A relative SQLite path becomes absolute here, because workers have other working folders.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    path = sqlite_path(uri)
    if path is not None:
        _, mark, query = uri.partition("?")
        return f"{sqlite_uri(path.absolute())}{mark}{query}"
    return uri or sqlite_uri(storage.absolute() / "mlflow" / "mlflow.db")


def sqlite_uri(path: Path) -> str:
    """The tracking URI of a SQLite file, which may lie in a folder of any name.

    Where a character means something in a URI all of the path is quoted, slashes too: MLflow makes
    the folder that the URI names before it is unquoted.
    """
    text = str(path)
    if "%" not in text and "?" not in text:
        return SQLITE_PREFIX + text
    root = "/" if text.startswith("/") else ""
    return SQLITE_PREFIX + root + quote(text.removeprefix("/"), safe="")


def sqlite_path(tracking_uri: str) -> Path | None:
    """The file of a SQLite store; None for the URI of a server."""
    if not tracking_uri.startswith(SQLITE_PREFIX):
        return None
    return Path(unquote(tracking_uri.removeprefix(SQLITE_PREFIX).partition("?")[0]))


def store_exists(tracking_uri: str) -> bool:
    """Whether a SQLite store exists; True for a server, which is not asked."""
    path = sqlite_path(tracking_uri)
    return path is None or path.exists()


def artifact_root(tracking_uri: str) -> Path | None:
    """The folder of artifacts beside a SQLite store; None where the server has its own."""
    path = sqlite_path(tracking_uri)
    return None if path is None else path.absolute().parent / "artifacts"


def local_path(location: str) -> Path | None:
    """The path that an artifact address stands for; None for one that is not of a local disk."""
    if "://" not in location and not location.startswith("file:"):
        return Path(location)
    parts = urlsplit(location)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def present_location(location: str, tracking_uri: str) -> str:
    """An artifact address as it is now: beside a store that was moved or copied, the artifacts are.

    MLflow keeps absolute addresses. One below a folder `artifacts` is looked for below that of the
    store, and stays as it is where nothing is there.
    """
    root, path = artifact_root(tracking_uri), local_path(location)
    if root is None or path is None or path.is_relative_to(root):
        return location
    parts = path.parts
    for number in (number for number, part in enumerate(parts) if part == root.name):
        here = root.joinpath(*parts[number + 1 :])
        if here != root and here.exists():
            return here.as_uri()
    return location


def fetch_model(
    model_uri: str, tracking_uri: str, cache: Path, known_damage: KnownDamage | None = None
) -> FetchedModel:
    """The version that `models:/name@alias` or `models:/name/3` is now, in `cache`.

    A folder is downloaded once for each content, however many ask at once, and is whole when it is
    there. A caller that asks repeatedly passes what is known of damage, which is added to. Raises
    `UserError` for another form of URI and for a version of another kind, `NotThereError` for what
    MLflow does not have, `UnreachableError` where it or the store of its artifacts does not answer,
    `DamagedError` where not with what the folder's checksums say.
    """
    known_damage = known_damage or KnownDamage()
    address = Address.of(model_uri)
    no_such = f"no model {model_uri}"
    if not store_exists(tracking_uri):
        remedy = "register a model first, or give another --storage or tracking URI"
        raise UnreachableError(no_such, f"no MLflow store at {tracking_uri}", remedy)
    remedy = f"is MLflow at {without_password(tracking_uri)}?"
    with as_user_error(no_such, remedy, is_lookup=True):
        from mlflow import MlflowClient

        with mlflow_environment(tracking_uri, QUICKLY):
            client = MlflowClient(tracking_uri, tracking_uri)
            version = _version_of(client, address)
    source = str(version.source)
    if not source.startswith("models:/"):
        where = f"version {version.version} is at {without_secrets(source)}"
        raise UserError(no_such, where, _NOT_OURS)
    with as_user_error(no_such, remedy), mlflow_environment(tracking_uri, QUICKLY):
        model = client.get_logged_model(source.removeprefix("models:/"))
    remedy += f" Can {cache} be written?"
    with as_user_error(f"{model_uri} not fetched", remedy), mlflow_environment(tracking_uri):
        folder = find_folder(cache, model.model_id)
        if folder is None:
            known_damage.check(model.model_id)
            location = present_location(model.artifact_location, tracking_uri)
            check_location(str(location), tracking_uri)
            source = f"{location}/artifacts/{FOLDER_NAME}"
            download = _Download(model_uri, source, tracking_uri)
            try:
                folder = add_folder(cache, model.model_id, download.content, download.into)
            except DamagedError as error:
                known_damage.note(model.model_id, error)
                raise
    lineage = lineage_of_tags(version.tags).model_copy(update={"run_id": version.run_id or None})
    return FetchedModel(folder, address.name, int(version.version), lineage)


def newest_version(name: str, tracking_uri: str) -> int | None:
    """The highest number among the versions of a registered model, None where there is none.

    Raises `UnreachableError` where MLflow does not answer.
    """
    remedy = f"is MLflow at {without_password(tracking_uri)}?"
    if not store_exists(tracking_uri):
        raise UnreachableError(f"no versions of {name}", tracking_uri, remedy)
    with as_user_error(f"no versions of {name}", remedy):
        from mlflow import MlflowClient

        with mlflow_environment(tracking_uri, QUICKLY):
            found = MlflowClient(tracking_uri, tracking_uri).search_model_versions(
                f"name = {filter_value(name)}", max_results=1, order_by=["version_number DESC"]
            )
        return int(found[0].version) if found else None


def filter_value(text: str) -> str:
    """A text in quotes, as conditions of MLflow's searches have it."""
    return f'"{text}"' if "'" in text else f"'{text}'"


_NOT_OURS = "name a version that a workflow of Bertline has registered"


def _version_of(client: "MlflowClient", address: Address) -> "ModelVersion":
    if address.alias is not None:
        return client.get_model_version_by_alias(address.name, address.alias)
    return client.get_model_version(address.name, str(address.version))


class _Download:
    """A model folder at MLflow: the hash of its content, and how it comes here.

    `content` is that of its list of checksums; None of a folder without one, or with more than it
    lists, of which the list does not say what it is.
    """

    def __init__(self, model_uri: str, source: str, tracking_uri: str) -> None:
        from mlflow.artifacts import list_artifacts

        self._model_uri, self._source, self._tracking_uri = model_uri, source, tracking_uri
        there = list_artifacts(source, tracking_uri=tracking_uri)
        names = {PurePosixPath(file.path).name for file in there}
        self._checksums: str | None = None
        self.content: str | None = None
        if CHECKSUMS in names:
            with tempfile.TemporaryDirectory() as temporary:
                path = self._bring(f"{source}/{CHECKSUMS}", Path(temporary))
                self._checksums = file_sha256(path)
                listed = listed_files(path.read_text(encoding="utf-8", errors="replace"))
            self.content = self._checksums if names <= {CHECKSUMS, *listed} else None

    def into(self, place: Path) -> Path:
        self._bring(self._source, place)
        folder = place / FOLDER_NAME
        damaged = None if self._checksums is None else damaged_file(folder, self._checksums)
        if damaged is not None:
            raise DamagedError(
                f"{self._model_uri} not fetched",
                f"{damaged} is not as the folder's list of checksums says",
                "is it whole at MLflow? If not, register the model again",
            )
        return folder

    def _bring(self, artifact: str, to: Path) -> Path:
        from mlflow.artifacts import download_artifacts

        found = download_artifacts(artifact, dst_path=str(to), tracking_uri=self._tracking_uri)
        return Path(found)


def lineage_of_tags(tags: Mapping[str, str]) -> Lineage:
    """What the tags of a run or of a version say, as `workflows` write them."""
    dirty = tags.get("git.dirty")
    metrics = {
        name.removeprefix(METRIC_TAG): float(value)
        for name, value in tags.items()
        if name.startswith(METRIC_TAG) and _NUMBER.fullmatch(value)
    }
    return Lineage(
        data_sha256=tags.get("data.sha256"),
        git_commit=tags.get("mlflow.source.git.commit"),
        git_dirty=None if dirty is None else dirty == "true",
        # A tag may have any number of digits, and a pointer, as JSON, has no infinity.
        metrics={name: value for name, value in metrics.items() if isfinite(value)},
    )


@contextmanager
def mlflow_environment(
    tracking_uri: str, changes: Mapping[str, str] | None = None
) -> Iterator[None]:
    """MLflow's environment while it is called here: this store the default, waits bounded.

    Its SQLite registry looks a logged model up in the default store, whatever its own client says.
    """
    wanted = _ENVIRONMENT | dict(changes or {}) | {"MLFLOW_TRACKING_URI": tracking_uri}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def check_location(location: str, tracking_uri: str) -> None:
    """Raises `UserError` for artifacts that would be asked for with what opens MLflow to us.

    MLflow sends the token or password of its server to whatever address a model's artifacts have.
    """
    from mlflow.utils.credentials import get_default_host_creds

    parts = urlsplit(location)
    is_at_server = parts.scheme == "mlflow-artifacts" and not parts.netloc
    if parts.scheme in ("http", "https", "mlflow-artifacts") and not is_at_server:
        server = urlsplit(tracking_uri)
        scheme = server.scheme if parts.scheme == "mlflow-artifacts" else parts.scheme
        is_at_server = _origin(parts, scheme) == _origin(server, server.scheme)
    elif parts.scheme not in ("runs", "models"):  # which may lead to any address
        return
    given = get_default_host_creds(tracking_uri)
    has_secret = any((given.token, given.password, given.auth, given.aws_sigv4))
    if not is_at_server and (has_secret or given.client_cert_path):
        raise UserError(
            "its artifacts are not at the tracking server, whose token they would be sent",
            without_secrets(location),
            "register it with artifacts at the server, or in a store with keys of its own (s3://)",
        )


def _origin(parts: SplitResult, scheme: str) -> tuple[str, str | None, int | None]:
    return scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(scheme)


@contextmanager
def as_user_error(what: str, remedy: str, *, is_lookup: bool = False) -> Iterator[None]:
    """Says in one line what MLflow raises, and whatever its stores do: `UnreachableError`.

    Each kind of store has a library with errors of its own, and none of them is a reason for
    anything else to end. A lookup of what MLflow does not have is `NotThereError`, with a remedy of
    its own.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = without_secrets(" ".join(str(error).split()))[:300]
        if is_lookup and getattr(error, "error_code", None) in _NOT_THERE:
            there = "the MLflow UI lists the models, their versions and aliases"
            raise NotThereError(what, reason, there) from error
        if not isinstance(error, MlflowException | SQLAlchemyError | OSError):
            reason = f"{type(error).__name__}: {reason}"
        raise UnreachableError(what, reason, remedy) from error
