"""One registered model at MLflow: its versions, its tags, and the alias that is its champion.

In: a name and a tracking URI. Out: plain values; whatever MLflow refuses is a `UserError`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bert_core.errors import UserError, nearest
from serving.registry import (
    as_user_error,
    filter_value,
    lineage_of_tags,
    mlflow_environment,
    store_exists,
)
from workflows.tracking.mlflow_run import check_artifacts, open_client

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

CHAMPION = "champion"
_PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "15", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
"""For requests of a few bytes, so that a server that is down is reported within a minute."""


@dataclass(frozen=True)
class Version:
    """A version of a registered model, and what was recorded of it in training.

    `metrics` go by the last part of their names, `accuracy` of `dev/accuracy`.
    """

    number: int
    run_id: str | None
    metrics: Mapping[str, float]
    data_sha256: str | None


@dataclass(frozen=True)
class ModelState:
    """Tags of a registered model, and the version of each alias, as MLflow has them now."""

    tags: Mapping[str, str]
    aliases: Mapping[str, int]

    @property
    def champion(self) -> int | None:
        """The version that is champion."""
        return self.aliases.get(CHAMPION)


class ModelRegistry:
    """Asks MLflow about one registered model and writes to it; may be used by several threads.

    Every call raises `UserError` where MLflow does not answer or refuses.
    """

    def __init__(self, client: "MlflowClient", name: str, tracking_uri: str) -> None:
        self.name = name
        self.tracking_uri = tracking_uri
        self._client = client

    def state(self) -> ModelState:
        """Tags and aliases; raises `UserError` with the nearest name for a model that is not."""
        from mlflow.exceptions import MlflowException

        with self._asking():
            try:
                found = self._client.get_registered_model(self.name)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
                others = self._client.search_registered_models(max_results=1000)
                raise _unknown("model", self.name, [each.name for each in others]) from error
        aliases = {str(alias): int(number) for alias, number in found.aliases.items()}
        return ModelState(dict(found.tags), aliases)

    def versions(self) -> dict[int, Version]:
        """All versions by their numbers."""
        with self._asking():
            found: list[ModelVersion] = []
            token = None
            while True:
                condition = f"name = {filter_value(self.name)}"
                page = self._client.search_model_versions(condition, page_token=token)
                found += page
                token = page.token
                if not token:
                    break
        return {int(each.version): _version(each) for each in found}

    def version(self, text: str) -> Version:
        """The version of a number or an alias.

        Raises `UserError`, with what there is, for one that is not.
        """
        versions, aliases = self.versions(), self.state().aliases
        if text.isdecimal():
            if int(text) in versions:
                return versions[int(text)]
            newest = sorted(versions)[-5:]
            raise _unknown(f"version of {self.name}", text, [str(each) for each in newest])
        if aliases.get(text) in versions:
            return versions[aliases[text]]
        raise _unknown(f"alias of {self.name}", text, sorted(aliases))

    def set_tag(self, key: str, value: str) -> None:
        """Writes a tag of the model, whole or not at all."""
        with self._asking():
            self._client.set_registered_model_tag(self.name, key, value)

    def delete_tag(self, key: str) -> None:
        """Removes a tag of the model, if it is there."""
        with self._asking():
            self._client.delete_registered_model_tag(self.name, key)

    def replace_version_tags(self, number: int, prefix: str, tags: Mapping[str, str]) -> None:
        """Writes tags of a version, and removes those with this prefix that are not among them."""
        version = str(number)
        with self._asking():
            there = self._client.get_model_version(self.name, version).tags
            for key, value in tags.items():
                self._client.set_model_version_tag(self.name, version, key, value)
            for key in there:
                if key.startswith(prefix) and key not in tags:
                    self._client.delete_model_version_tag(self.name, version, key)

    def log_json(self, run_id: str, content: dict[str, Any], path: str) -> None:
        """Writes a JSON file among the artifacts of a run."""
        with self._asking():
            check_artifacts(self._client, run_id)
            self._client.log_dict(run_id, content, path)

    def move_champion(self, number: int) -> None:
        """Points the alias at a version: MLflow does it in one transaction.

        An answer that is lost on its way is no failure: then the alias says whether it was moved.
        """
        try:
            with self._asking():
                self._client.set_registered_model_alias(self.name, CHAMPION, str(number))
        except UserError:
            if self.state().champion != number:
                raise

    @contextmanager
    def _asking(self) -> Iterator[None]:
        remedy = "repeat the command when MLflow answers"
        with as_user_error(f"the registry did not do it for {self.name}", remedy):
            yield


@contextmanager
def open_registry(name: str, tracking_uri: str) -> Iterator[ModelRegistry]:
    """The registered model of a store that exists; MLflow's environment is set meanwhile.

    Raises `UserError` where there is no store, and for a model that is not there.
    """
    if not store_exists(tracking_uri):
        remedy = "register a model first, or give another --storage or --tracking_uri"
        raise UserError(f"no registered model {name}", f"no MLflow store at {tracking_uri}", remedy)
    with mlflow_environment(tracking_uri, _PATIENCE):
        with as_user_error("MLflow not reached", "is --tracking_uri right?"):
            client = open_client(tracking_uri)
        registry = ModelRegistry(client, name, tracking_uri)
        registry.state()
        yield registry


def _version(found: "ModelVersion") -> Version:
    lineage = lineage_of_tags(found.tags)
    metrics = {name.rpartition("/")[2]: value for name, value in lineage.metrics.items()}
    return Version(int(found.version), found.run_id or None, metrics, lineage.data_sha256)


def _unknown(kind: str, text: str, known: list[str]) -> UserError:
    there = f"there are {', '.join(known)}" if known else "there is none"
    return UserError(f"unknown {kind}{nearest(text, known)}", text, there[:300])
