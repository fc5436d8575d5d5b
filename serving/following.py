"""Pointers that move, and what is wanted beside models -> an engine whose places are so.

A version that cannot be loaded, or does not answer, never takes traffic: the one before goes on.
"""

import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from bert_core.errors import UserError
from serving.coordination import Beside
from serving.engine import Engine
from serving.followed import Followed, Place, Refusal, source_of, title_of
from serving.model_sources import SharedSource
from serving.models import ServedModel
from serving.places import Places
from serving.pointers import Address, Pointer, UnreachableError, read_pointer, read_status

_LOG = logging.getLogger(__name__)

_LOOK_SECONDS = 0.25
_AGAIN_SECONDS = 30.0
"""After which MLflow is asked again about an address that it did not answer about."""
_END_SECONDS = 10.0
_NICE = 10
"""To load a model is work that requests are to wait for as little as possible."""


class Asker(Protocol):
    """Whoever asks MLflow: a `Watcher` of `serving.startup`, as it is used here."""

    pointers: dict[Address, Path]

    def add(self, address: Address) -> Path:
        """Asks about one more address from now on; its pointer, once it is there.

        Raises `UserError`, `UnreachableError` where MLflow does not say.
        """
        ...

    def look(self) -> None:
        """Asks about all addresses now; does not wait for that."""
        ...


class Following:
    """Has an engine's places be what is wanted there, on a thread of its own; a `Listener`.

    `models` and `beside` are what the engine begins with. With `is_kept_up` pointers are followed;
    without, an address stands for what it was when it was set.
    """

    def __init__(
        self,
        engine: Engine,
        watch: Asker,
        models: Mapping[str, Path | Address],
        beside: Beside,
        *,
        is_kept_up: bool,
    ) -> None:
        self._engine, self._watch, self._is_kept_up = engine, watch, is_kept_up
        self._places = Places(engine)
        self._wanted: Beside = dict(beside)
        self._noting = threading.Lock()  # for a moment
        self._changing = threading.Lock()  # for as long as a model is loaded
        self._is_closed = threading.Event()
        sources: dict[Place, Path | Address] = {(None, name): each for name, each in models.items()}
        sources |= {place: each.source for place, each in beside.items()}
        for place, source in sources.items():
            if self._places.at(place) is not None:  # or it is begun as what is wanted later
                engine.followed[place] = self._begun(place, source)
        self._thread = threading.Thread(target=self._run, name="following", daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def close(self) -> None:
        """Ends; what is being loaded is left."""
        self._is_closed.set()
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)  # it may be waiting for MLflow

    def look(self) -> None:
        """As `Listener.look`."""
        self._watch.look()

    def want(self, beside: Beside) -> None:
        """As `Listener.want`: what is not well is refused, and all else goes on."""
        names = self._engine.models
        with self._noting:
            self._wanted = {place: each for place, each in beside.items() if place[1] in names}

    @property
    def registered_names(self) -> set[str]:
        """The names at MLflow of all that is wanted by an address."""
        sources = [each.source for each in list(self._engine.followed.values())]
        return {each.name for each in sources if isinstance(each, Address)}

    def set_beside(self, place: Place, wanted: SharedSource | None) -> None:
        """Has this stand at a place beside a model from now on, or nobody, before it returns.

        Whoever stands there by the same source only gets another share. Raises `UserError` for a
        version that is not well, and where MLflow does not say which it is; nothing has changed.
        """
        if wanted is None:
            with self._changing:
                self._note_wanted(place, None)
                self._clear(place)
            return
        with self._changing:
            model, followed = self._places.at(place), self._engine.followed.get(place)
            sources = (model and source_of(model), followed and followed.source)
            if sources == (wanted.source, wanted.source):
                self._note_wanted(place, wanted)
                self._places.set_share(place, wanted.share)
                return
        path = self._path_of(wanted.source)  # without the lock: MLflow may take its time
        with self._changing:
            self._set(place, wanted, path)

    def catch_up(self) -> None:
        """Has each place be what is wanted there, and what its pointer says, if that is well."""
        for place, each in self._wanted.items():
            if self._is_new(place, each.source):
                self._begin(place, each.source)
        with self._changing:
            for place, followed in list(self._engine.followed.items()):
                try:
                    self._catch_up(place, followed)
                except Exception:  # the others go on
                    _LOG.exception("following %s", title_of(place))

    def _catch_up(self, place: Place, followed: Followed) -> None:
        wanted = self._wanted.get(place)
        if place[0] is None:
            self._attend(place, followed, 1.0)
        elif wanted is None:
            self._clear(place)
        elif wanted.source == followed.source:
            self._attend(place, followed, wanted.share)

    def _begun(self, place: Place, source: Path | Address) -> Followed:
        """What is known of a place that the engine begins with."""
        if isinstance(source, Path):
            return Followed(source, seen=source)
        model = self._places.at(place)
        assert model is not None and model.pointer is not None
        served, path = model.pointer, self._watch.pointers[source]
        followed = Followed(source, path, seen=served)
        self._note_registry(place, followed)
        now = read_pointer(path)
        if now is None or now == served:
            self._places.note(place, served, path)
        else:  # the server has begun with the one before
            self._places.note(place, served, None)
            followed.seen = now
            self._refuse(place, followed, now.version, "it was not well when the server began")
        return followed

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while not self._is_closed.wait(_LOOK_SECONDS):
            try:
                self.catch_up()
            except Exception:
                _LOG.exception("following the registry")

    def _is_new(self, place: Place, source: Path | Address) -> bool:
        """Whether nothing was done yet about a source that is wanted."""
        followed = self._engine.followed.get(place)
        if followed is None or followed.source != source:
            return True
        # A folder has no pointer either, but is never refused before it was tried.
        is_unknown = isinstance(source, Address) and followed.pointer_path is None
        refused = followed.refused
        return is_unknown and (refused is None or time.time() - refused.at > _AGAIN_SECONDS)

    def _begin(self, place: Place, source: Path | Address) -> None:
        """Asks where the pointer to what is wanted lies; refuses it where MLflow does not say."""
        followed, fault = Followed(source), None
        try:
            followed.pointer_path = self._path_of(source)
        except UserError as error:
            fault = str(error)
        with self._changing:
            wanted = self._wanted.get(place)
            if wanted is None or wanted.source != source or not self._is_new(place, source):
                return  # something else was set meanwhile
            before = self._engine.followed.get(place)
            self._engine.followed[place] = followed
            if fault is None:
                return
            refused = before.refused if before is not None and before.source == source else None
            if refused is not None and refused.reason == fault:
                followed.refused = Refusal(None, fault, time.time())  # and was said already
            else:
                self._refuse(place, followed, None, fault)

    def _path_of(self, source: Path | Address) -> Path | None:
        if isinstance(source, Path):
            return None
        try:
            return self._watch.add(source)
        except UserError:
            raise
        except Exception as error:
            said = f"{source}, {str(error) or type(error).__name__}"
            remedy = "run python -m serving.watch by hand to see more"
            raise UnreachableError("MLflow could not be asked", said, remedy) from error

    def _attend(self, place: Place, followed: Followed, share: float) -> None:
        """Has a place be what its source stands for now, if that is well."""
        model = self._places.at(place)
        is_by_source = model is not None and source_of(model) == followed.source
        if is_by_source and place[0] is not None:
            self._places.set_share(place, share)
        if is_by_source and not self._is_kept_up:
            return
        self._note_registry(place, followed)
        found = _found(followed.source, followed.pointer_path)
        if found is None or found == followed.seen:
            return
        followed.seen, followed.refused = found, None
        if is_by_source and _are_same(found, model):  # the alias has come back
            return
        try:
            self._places.put(place, found, share, followed.pointer_path)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it is not let in
            version = found.version if isinstance(found, Pointer) else None
            self._refuse(place, followed, version, str(error) or type(error).__name__)

    def _set(self, place: Place, wanted: SharedSource, path: Path | None) -> None:
        """Puts what is wanted at a place; raises `UserError`, and nothing has changed."""
        found = _found(wanted.source, path)
        if found is None:
            what, remedy = "the folder of the version is not there", "set it again: it is fetched"
            raise UserError(what, str(path), remedy)
        model = self._places.at(place)
        is_there = model is not None and source_of(model) == wanted.source
        if not is_there or not _are_same(found, model):
            try:
                self._places.put(place, found, wanted.share, path)
            except UserError:
                raise
            except Exception as error:
                said = str(error) or type(error).__name__
                where, remedy = f"{wanted.source}, {said}", "name a version that is whole"
                raise UserError("it cannot be served", where, remedy) from error
        followed = self._engine.followed[place] = Followed(wanted.source, path, seen=found)
        self._note_registry(place, followed)
        self._note_wanted(place, wanted)
        self._places.set_share(place, wanted.share)

    def _clear(self, place: Place) -> None:
        self._engine.followed.pop(place, None)
        self._places.clear(place)

    def _note_wanted(self, place: Place, wanted: SharedSource | None) -> None:
        with self._noting:
            others = {each: source for each, source in self._wanted.items() if each != place}
            self._wanted = others if wanted is None else others | {place: wanted}

    def _refuse(self, place: Place, followed: Followed, version: int | None, reason: str) -> None:
        followed.refused = Refusal(version, reason, time.time())
        self._engine.metrics.count_switch(title_of(place), is_refused=True)
        model = self._places.at(place)
        which = followed.source if version is None else f"version {version}"
        _LOG.warning(
            "warning: %s as %s is not let in, %s: %s",
            *(which, title_of(place)),
            "nobody is there" if model is None else f"{model.version} goes on",
            reason,
        )

    def _note_registry(self, place: Place, followed: Followed) -> None:
        path = followed.pointer_path
        status = None if path is None else read_status(path)
        if status is not None and status != followed.registry:
            followed.registry = status
            self._engine.metrics.note_registry(
                title_of(place),
                is_reachable=status.fault is None,
                asked_at=status.asked_at,
                newest_version=status.newest_version,
            )


def _found(source: Path | Address, pointer_path: Path | None) -> Path | Pointer | None:
    """What a source stands for now; None where nobody knows."""
    if isinstance(source, Path):
        return source
    return None if pointer_path is None else read_pointer(pointer_path)


def _are_same(found: Path | Pointer, model: ServedModel | None) -> bool:
    if model is None or isinstance(found, Path) or model.pointer is None:
        return model is not None and model.pointer is None and found == model.folder
    served = model.pointer
    return (found.version, found.folder) == (served.version, served.folder)
