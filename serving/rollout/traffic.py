"""Chooses the version of a model that answers a request, and compares shadows with it.

A model may be switched to another version while requests are answered. Each request is answered
whole by the version that it was given, and a replaced version stays until its requests have ended.
"""

import logging
import random
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from bert_core.errors import UserError
from bert_core.tasks.answers import Codec
from bert_core.tasks.classification import Classification
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Task
from bert_core.tasks.text_embedding import TextEmbedding
from serving.batching import Batcher, DeadlineError, OverloadedError
from serving.errors import RequestError
from serving.models import Ability, ServedModel, is_embedder
from serving.request_context import AnsweringRole, current_request
from serving.rollout.aliases import ROLES, Address, Role, title_of
from serving.telemetry.metrics import Metrics

_LOG = logging.getLogger(__name__)

KindOfTask = TypeVar("KindOfTask", bound=Task)

_WORDS_FOR: dict[type[Task], str] = {
    Classification: "classification",
    Tagging: "named entities",
    QuestionAnswering: "question answering",
}
"""Kinds of tasks, as a client calls them."""

_NAME_ONE = "name one in model; in the routes of Hugging Face and TEI, with ?model=NAME"


@dataclass(frozen=True)
class Variant:
    """A canary or shadow of a model, and its share of the requests, 0 to 1."""

    model: ServedModel
    share: float


@dataclass(frozen=True)
class _Table:
    """The versions at one moment, by name."""

    active: Mapping[str, ServedModel]
    canaries: Mapping[str, Variant] = field(default_factory=dict)
    shadows: Mapping[str, Variant] = field(default_factory=dict)

    def variants(self, role: Role) -> Mapping[str, Variant]:
        return self.canaries if role == "canary" else self.shadows

    @cached_property
    def present(self) -> frozenset[ServedModel]:
        variants = (*self.canaries.values(), *self.shadows.values())
        return frozenset((*self.active.values(), *(variant.model for variant in variants)))

    @cached_property
    def batchers(self) -> dict[Batcher, list[str]]:
        found: dict[Batcher, list[str]] = {}
        for name, model in self.active.items():
            found.setdefault(model.batcher, []).append(name)
        for role in ROLES:
            for name, variant in self.variants(role).items():
                found.setdefault(variant.model.batcher, []).append(title_of((role, name)))
        return found

    @property
    def answering(self) -> set[tuple[str, str, AnsweringRole]]:
        found: set[tuple[str, str, AnsweringRole]] = set()
        for name, model in self.active.items():
            found.add((name, model.version or "", "active"))
        for name, variant in self.canaries.items():
            found.add((name, variant.model.version or "", "canary"))
        return found

    @cached_property
    def have_one_encoder(self) -> bool:
        """Whether any of the models computes the same features of the same tokens."""
        models = self.active.values()
        return len({(id(model.batcher), model.tokenizer.to_str()) for model in models}) == 1

    def drawn(self, model: ServedModel) -> ServedModel:
        """The model, or its canary for its share of requests."""
        canary = self.canaries.get(model.name)
        is_for_canary = canary is not None and random.random() < canary.share
        return canary.model if canary is not None and is_for_canary else model


class Traffic:
    """Models by name; chooses the version that answers a request."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._table = _Table(dict(models))
        self._retiring: set[ServedModel] = set()
        self._changing = threading.Lock()

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """The model that answers each name, as of now."""
        return self._table.active

    @property
    def present(self) -> Collection[ServedModel]:
        """All models that may be asked now, canaries and shadows too."""
        return self._table.present

    @property
    def batchers(self) -> Mapping[Batcher, list[str]]:
        """The batchers of all models, each with the names that it computes for."""
        return self._table.batchers

    @property
    def batchers_in_use(self) -> set[Batcher]:
        """The batchers of all models, those too that only finish their last requests."""
        with self._changing:
            return {model.batcher for model in self._table.present | self._retiring}

    @property
    def answering(self) -> set[tuple[str, str, AnsweringRole]]:
        """The versions that may answer now: name, version ("" where there is none) and role."""
        return self._table.answering

    def find(self, name: str | None, kind: type[KindOfTask]) -> tuple[ServedModel, KindOfTask]:
        """The model of this name, or the only one with such a task, and its task.

        All of these finders raise `RequestError` where there is none, or more than one to choose
        from. Take this one for a route of one kind of task.
        """

        def choose(table: _Table) -> ServedModel:
            able = {
                key: model for key, model in table.active.items() if isinstance(model.task, kind)
            }
            return _chosen(table, name, able, _WORDS_FOR[kind])

        model = self._given(choose)
        assert isinstance(model.task, kind)
        return model, model.task

    def find_encoder(self, name: str | None) -> ServedModel:
        """The model of this name, or any where all have one encoder and one vocabulary.

        Take it where the answer depends on these alone (features, tokens), not on the task.
        """
        return self._given(lambda table: _encoder_of(table, name))

    def find_any(self, name: str | None, purpose: str) -> ServedModel:
        """The model of this name, or the only one.

        Take it where every model can answer and the answer depends on the task (labels, maximum
        length). `purpose` is a noun for messages: "models for `purpose`".
        """
        return self._given(lambda table: _chosen(table, name, table.active, purpose))

    def find_embedder(self, name: str | None) -> ServedModel:
        """The model of this name, or the only one trained for it, or the only one without a task.

        Take it for sentence vectors as the model's folder says (`/embed`, `/v1/embeddings`).
        """

        def choose(table: _Table) -> ServedModel:
            models = table.active.values()
            trained = [model for model in models if is_embedder(model, "dense")]
            plain = trained or [model for model in models if model.task is None]
            only = name is None and len(plain) == 1
            return plain[0] if only else _encoder_of(table, name)

        return self._given(choose)

    def find_able(
        self, name: str | None, ability: Ability, better: Ability | None = None
    ) -> ServedModel:
        """The model of this name, or the only one, with an ability; or the only `better` one."""

        def choose(table: _Table) -> ServedModel:
            able = {key: model for key, model in table.active.items() if ability.of(model)}
            best = {key: model for key, model in able.items() if better and better.of(model)}
            return _chosen(table, name, best if best and name is None else able, ability.name)

        return self._given(choose)

    def shadow_of(self, model: ServedModel) -> ServedModel | None:
        """The shadow to compare an answer with; None if there is none, or it is not drawn.

        It is in flight until the caller ends that. The answers of a canary are not compared.
        """
        table = self._table
        shadow = table.shadows.get(model.name)
        if shadow is None or model is not table.active.get(model.name):
            return None
        if random.random() >= shadow.share:
            return None
        shadow.model.in_flight.begin()
        if shadow.model in self._table.present:
            return shadow.model
        shadow.model.in_flight.end()
        return None

    def switch(self, model: ServedModel) -> ServedModel:
        """Has a model answer its name from now on; returns the one before.

        Its canary and shadow are removed where they answer other questions than the model does.
        """
        with self._changing:
            table = self._table
            before = table.active[model.name]
            alike = {
                role: {
                    name: variant
                    for name, variant in table.variants(role).items()
                    if name != model.name or _are_alike(model, variant.model)
                }
                for role in ROLES
            }
            self._become(
                _Table({**table.active, model.name: model}, alike["canary"], alike["shadow"])
            )
        return before

    def variant(self, name: str, role: Role) -> Variant | None:
        """The canary or shadow of a model."""
        return self._table.variants(role).get(name)

    def set_variant(self, name: str, role: Role, variant: Variant | None) -> ServedModel | None:
        """Sets the canary or shadow of a model, None for nothing; returns the one before.

        Raises `UserError` for one of another task or with other labels, and for an encoder as a
        shadow, whose numbers are not compared.
        """
        with self._changing:
            table = self._table
            before = table.variants(role).get(name)
            others = {key: variant for key, variant in table.variants(role).items() if key != name}
            if variant is not None:
                _check_alike(table.active[name], variant.model)
                _check_comparable(variant.model, role)
                others[name] = variant
            changed = {"canaries" if role == "canary" else "shadows": others}
            self._become(replace(table, **changed))
        return None if before is None else before.model

    def _become(self, table: _Table) -> None:
        """Sets the versions from now on; needs the lock."""
        self._retiring |= self._table.present - table.present
        self._table = table

    def retire(self, model: ServedModel, seconds: float) -> bool:
        """Waits until the requests to a replaced model have ended, and closes it.

        Returns whether they did within so many seconds; the others get no answer.
        """
        have_ended = model.in_flight.wait(seconds)
        with self._changing:
            self._retiring.discard(model)
        # Other models that are present or retiring may use the same encoder.
        if model.batcher not in self.batchers_in_use:
            model.batcher.close(finish=have_ended)
        return have_ended

    def _given(self, choose: Callable[[_Table], ServedModel]) -> ServedModel:
        """The chosen model, which stays until the current request has ended."""
        request = current_request.get()
        while True:
            table = self._table
            chosen = choose(table)
            model = table.drawn(chosen)
            if request is None:
                return model
            role = "active" if model is chosen else "canary"
            request.use(model.name, model.version, model.in_flight, role)
            # A switch may have come in between and not have seen that it is in flight.
            if model in self._table.present:
                return model
            request.drop()


def _check_alike(active: ServedModel, other: ServedModel) -> None:
    if not _are_alike(active, other):
        what = f"a model of another task or other labels than {active.name}, or without its heads"
        raise UserError(what, str(other.folder), "name a version that answers the same questions")


def _are_alike(active: ServedModel, other: ServedModel) -> bool:
    """Whether another version answers whatever the active one does, in the same form."""
    if _form(active) != _form(other):
        return False
    return active.task is not None or set(active.model.heads) <= set(other.model.heads)


def _form(model: ServedModel) -> tuple[object, ...]:
    """What a model is asked, and the form of its answers."""
    task = model.task
    if task is None:
        return (None, model.config.hidden_size)
    size = model.config.hidden_size if isinstance(task, TextEmbedding) else None
    of_rows = (task.kind, task.reads_pairs) if isinstance(task, Classification) else None
    return (model.task_name, type(task), task.labels, of_rows, size)


def _check_comparable(other: ServedModel, role: Role) -> None:
    if role == "shadow" and other.task is None:
        what = "an encoder's answers are not compared"
        remedy = "shadow a fine-tuned model, or give this one a canary's share"
        raise UserError(what, f"{other.folder} as the shadow of {other.name}", remedy)


def _encoder_of(table: _Table, name: str | None) -> ServedModel:
    if name is None and table.have_one_encoder:
        return next(iter(table.active.values()))
    return _chosen(table, name, table.active, "features")


def _chosen(
    table: _Table, name: str | None, able: Mapping[str, ServedModel], what: str
) -> ServedModel:
    names = ", ".join(able) or "none"
    if name is not None and name not in table.active:
        known = ", ".join(table.active)
        raise RequestError(
            404, "Unknown model", f"no model {name!r}", field="model", remedy=f"one of {known}"
        )
    if name is not None and name not in able:
        detail = f"{name} is no model for {what}"
        remedy = f"those that are: {names}"
        raise RequestError(422, "Wrong model", detail, field="model", remedy=remedy)
    if name is not None:
        return able[name]
    if len(able) != 1:
        raise RequestError(
            422 if able else 404,
            "Which model?" if able else "No such model",
            f"models for {what}: {names}",
            field="model",
            remedy=_NAME_ONE if able else f"start the server with a model for {what}",
        )
    return next(iter(able.values()))


_MAX_WAITING_COMPARISONS = 64
"""Requests that wait to be compared; more are not compared."""


@dataclass(frozen=True)
class Agreement:
    """Items on which a shadow agrees or not, and requests that it was not asked."""

    agree: int = 0
    differ: int = 0
    missed: int = 0


class Shadows:
    """Asks shadows on a thread of its own."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._agreements: WeakKeyDictionary[ServedModel, Agreement] = WeakKeyDictionary()
        self._counting = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shadows")
        self._queue_slots = threading.Semaphore(_MAX_WAITING_COMPARISONS)

    def compare(
        self,
        shadow: ServedModel,
        codec: Codec,
        items: Sequence[Any],
        found: Sequence[Mapping[str, Any]],
        seconds: float,
    ) -> None:
        """Asks a shadow the same within so many seconds; then it is no longer in flight."""
        if not self._queue_slots.acquire(blocking=False):
            self._count_missed(shadow)
            shadow.in_flight.end()
            return
        asked = self._thread.submit(self._compare, shadow, codec, items, found, seconds)
        asked.add_done_callback(lambda _: self._end(shadow))

    def agreement(self, shadow: ServedModel) -> Agreement:
        """The counts of a shadow since it was opened."""
        return self._agreements.get(shadow, Agreement())

    def close(self) -> None:
        """Drops what waits."""
        self._thread.shutdown(cancel_futures=True)

    def _end(self, shadow: ServedModel) -> None:
        self._queue_slots.release()
        shadow.in_flight.end()

    def _compare(
        self,
        shadow: ServedModel,
        codec: Codec,
        items: Sequence[Any],
        found: Sequence[Mapping[str, Any]],
        seconds: float,
    ) -> None:
        try:
            rows = codec.encode(items, shadow.tokenizer)
            (outputs,) = shadow.batcher.submit(shadow.work(rows), seconds).result()
            others = codec.decode(outputs, rows, items)
            are_alike = [
                decided(mine) == decided(other) for mine, other in zip(found, others, strict=True)
            ]
        except (OverloadedError, DeadlineError):
            self._count_missed(shadow)
            return
        except Exception as error:  # noqa: BLE001 - the answer was given already
            # Its message may be a part of a text.
            kind = type(error).__name__
            _LOG.warning("warning: the shadow of %s failed: %s", shadow.name, kind)
            self._count_missed(shadow)
            return
        for agrees in are_alike:
            self._metrics.count_compared(shadow.name, agree=agrees)
        self._count(shadow, agree=sum(are_alike), differ=len(are_alike) - sum(are_alike))

    def _count_missed(self, shadow: ServedModel) -> None:
        self._metrics.count_not_compared(shadow.name)
        self._count(shadow, missed=1)

    def _count(
        self, shadow: ServedModel, *, agree: int = 0, differ: int = 0, missed: int = 0
    ) -> None:
        with self._counting:  # missed requests are counted on other threads
            now = self.agreement(shadow)
            self._agreements[shadow] = Agreement(
                now.agree + agree, now.differ + differ, now.missed + missed
            )


def decided(found: Mapping[str, Any]) -> object:
    """The decision of a prediction, whatever its scores: label, labels, entities or passage.

    Of a number the first three digits, of scores alone the highest label.
    """
    for read in _DECIDED:
        try:
            return read(found)
        except KeyError:
            continue
    raise ValueError(f"a prediction of no known kind: {sorted(found)}")


_DECIDED: tuple[Callable[[Mapping[str, Any]], object], ...] = (
    lambda found: found["label"],
    lambda found: sorted(found["labels"]),
    lambda found: f"{found['value']:.3g}",
    lambda found: [
        (entity["type"], entity["start"], entity["end"]) for entity in found["entities"]
    ],
    lambda found: found["text"],
    lambda found: _of_scores(found["scores"]),
)


def _of_scores(scores: Mapping[str, float]) -> str:
    if len(scores) == 1:
        return f"{next(iter(scores.values())):.3g}"
    return max(scores, key=lambda label: scores[label])


def source_of(model: ServedModel) -> Path | Address:
    """The source of a model: its folder, or its address at MLflow."""
    return model.folder if model.pointer is None else Address.of(model.pointer.address)
