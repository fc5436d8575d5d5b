"""A version that is well -> its place in an engine; whoever stood there ends its requests and goes.

A version that cannot be loaded, or does not answer, never takes traffic: the one before goes on.
"""

import gc
import logging
from pathlib import Path
from threading import Thread

from bert_core.machine import release_memory
from serving.engine import Engine
from serving.followed import Place, title_of
from serving.models import ServedModel
from serving.pointers import Pointer, good_pointer_path, switch_pointer
from serving.probe import open_model
from serving.traffic import Share

_LOG = logging.getLogger(__name__)

_RETIRE_SECONDS = 300.0
"""A request that takes longer than that has no answer when its version is switched off."""


class Places:
    """Changes who stands at the places of an engine; one caller at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def at(self, place: Place) -> ServedModel | None:
        """Who stands there now."""
        role, name = place
        if role is None:
            return self._engine.models[name]
        share = self._engine.traffic.beside(name, role)
        return None if share is None else share.model

    def put(
        self, place: Place, found: Path | Pointer, share: float, pointer_path: Path | None
    ) -> None:
        """Loads a version, has it answer its example, and then the requests to this place.

        `share` is for those beside a model. Raises where the version does not answer as it should,
        `UserError` for one of another task or other labels than the model's; nothing has changed.
        """
        engine, (role, name) = self._engine, place
        model = open_model(engine.loader, name, found, engine.traffic.present)
        try:
            if role is None:
                before = engine.switch(model)
            else:
                before = engine.set_beside(name, role, Share(model, share))
        except BaseException:
            engine.retire(model, 0.0)
            raise
        self.note(place, found, pointer_path)
        engine.metrics.count_switch(title_of(place))
        stood = "nobody" if before is None else before.version
        _LOG.warning(
            "%s is version %s from now on, no longer %s", title_of(place), model.version, stood
        )
        retired = [] if before is None else [before]
        del before
        self._let_go(retired)

    def note(self, place: Place, found: Path | Pointer, pointer_path: Path | None) -> None:
        """Takes in which version stands there, which may be before this was made."""
        if isinstance(found, Pointer):
            self._engine.metrics.note_version(title_of(place), found.version)
            if pointer_path is not None:
                self._note_good(pointer_path, found)
        else:
            self._engine.metrics.forget(title_of(place))

    def _note_good(self, pointer_path: Path, pointer: Pointer) -> None:
        try:
            switch_pointer(good_pointer_path(pointer_path), pointer)
        except OSError as error:  # it is for another start; the version answers already
            _LOG.warning("warning: %s cannot be written: %s", pointer_path, error)

    def set_share(self, place: Place, share: float) -> None:
        """Gives whoever stands there, beside a model, another share of its requests."""
        role, name = place
        assert role is not None
        beside = self._engine.traffic.beside(name, role)
        if beside is not None and beside.share != share:
            self._engine.set_beside(name, role, Share(beside.model, share))
            _LOG.warning("%s has a share of %g from now on", title_of(place), share)

    def clear(self, place: Place) -> None:
        """Has nobody stand there any more, beside a model."""
        role, name = place
        assert role is not None
        before = self._engine.set_beside(name, role, None)
        self._engine.metrics.forget(title_of(place))
        if before is not None:
            _LOG.warning("%s, version %s, is there no longer", title_of(place), before.version)
            retired = [before]
            del before
            self._let_go(retired)

    def _let_go(self, retired: list[ServedModel]) -> None:
        """Takes what is in the list out of it: callers and threads hold what they were given."""
        if retired:
            Thread(target=self._retire, args=(retired,), daemon=True).start()

    def _retire(self, retired: list[ServedModel]) -> None:
        model = retired.pop()
        if not self._engine.retire(model, _RETIRE_SECONDS):
            _LOG.warning("%s version %s left requests unanswered", model.name, model.version)
        del model
        gc.collect()
        release_memory()
