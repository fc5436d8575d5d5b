"""Keeps each slot of an engine at the version it should have, while requests are answered.

In: pointers that move, and the wanted canaries and shadows. A version that cannot be loaded or does
not answer never takes traffic: the previous one stays.
"""

import gc
import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Thread

from bert_core.errors import UserError
from bert_core.machine import release_memory
from serving.engine import Engine
from serving.models import ServedModel, open_model
from serving.rollout.aliases import (
    ROLES,
    Address,
    Pointer,
    Refusal,
    Slot,
    SlotState,
    UnreachableError,
    Variants,
    VariantSource,
    last_good_path,
    read_pointer,
    read_status,
    switch_pointer,
    title_of,
)
from serving.rollout.traffic import Variant, source_of
from serving.rollout.watcher import Watcher

_LOG = logging.getLogger(__name__)

_RECONCILE_SECONDS = 0.25
_AGAIN_SECONDS = 30.0
"""After which MLflow is asked again about an address that it did not answer about."""
_END_SECONDS = 10.0
_RETIRE_SECONDS = 300.0
"""Requests to a replaced version that take longer than this get no answer."""
_NICE = 10
"""Loading a model must delay requests as little as possible."""


class Switcher:
    """Puts versions into the slots of an engine; one caller at a time.

    The requests of a replaced version are answered before it is closed.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def at(self, slot: Slot) -> ServedModel | None:
        """The version in a slot."""
        role, name = slot
        if role is None:
            return self._engine.models[name]
        variant = self._engine.traffic.variant(name, role)
        return None if variant is None else variant.model

    def put(
        self, slot: Slot, found: Path | Pointer, share: float, pointer_path: Path | None
    ) -> None:
        """Loads a version, checks its example, and gives it the requests of the slot.

        `share` is that of a canary or shadow. Raises where the version does not answer as it
        should, `UserError` for another task or other labels than the model's; nothing has changed.
        """
        engine, (role, name) = self._engine, slot
        model = open_model(engine.loader, name, found, engine.traffic.present)
        slots: list[Slot] = [] if role else [(each, name) for each in ROLES]
        variants = [(each, self.at(each)) for each in slots]
        try:
            if role is None:
                before = engine.switch(model)
            else:
                before = engine.set_variant(name, role, Variant(model, share))
        except BaseException:
            engine.retire(model, 0.0)
            raise
        self.note(slot, found, pointer_path)
        engine.metrics.count_switch(title_of(slot))
        replaced = "no version" if before is None else before.version
        _LOG.warning("%s switched from %s to version %s", title_of(slot), replaced, model.version)
        retired = [] if before is None else [before]
        del before
        self._retire_apart(retired)
        while variants:
            each, variant = variants.pop()
            if variant is not None and self.at(each) is None:
                removed, variant = [variant], None
                self._removed(each, removed, ", which answers other questions than it")

    def note(self, slot: Slot, found: Path | Pointer, pointer_path: Path | None) -> None:
        """Records which version a slot has; with `pointer_path`, that it has answered."""
        if not isinstance(found, Pointer):
            self._engine.metrics.forget(title_of(slot))
            return
        self._engine.metrics.note_version(title_of(slot), found.version)
        if pointer_path is None:
            return
        try:
            switch_pointer(last_good_path(pointer_path), found)
        except OSError as error:  # only another start needs it; the version answers already
            _LOG.warning("warning: %s cannot be written: %s", pointer_path, error)

    def set_share(self, slot: Slot, share: float) -> None:
        """Gives the canary or shadow in a slot another share of the requests."""
        role, name = slot
        assert role is not None
        variant = self._engine.traffic.variant(name, role)
        if variant is not None and variant.share != share:
            self._engine.set_variant(name, role, Variant(variant.model, share))
            _LOG.warning("%s has a share of %g from now on", title_of(slot), share)

    def clear(self, slot: Slot) -> None:
        """Removes the canary or shadow from a slot."""
        role, name = slot
        assert role is not None
        before = self._engine.set_variant(name, role, None)
        retired = [] if before is None else [before]
        del before
        self._removed(slot, retired)

    def _removed(self, slot: Slot, retired: list[ServedModel], why: str = "") -> None:
        self._engine.metrics.forget(title_of(slot))
        for model in retired:
            _LOG.warning("%s, version %s, is removed%s", title_of(slot), model.version, why)
        self._retire_apart(retired)

    def _retire_apart(self, retired: list[ServedModel]) -> None:
        """Retires a model on a thread; the list is emptied, so that no caller keeps the model."""
        if retired:
            Thread(target=self._retire, args=(retired,), daemon=True).start()

    def _retire(self, retired: list[ServedModel]) -> None:
        model = retired.pop()
        if not self._engine.retire(model, _RETIRE_SECONDS):
            _LOG.warning("%s version %s left requests unanswered", model.name, model.version)
        del model
        gc.collect()
        release_memory()


class Controller:
    """Reconciles an engine's slots with what is wanted there, on a thread of its own.

    `models` and `variants` are what the engine starts with. With `is_kept_up` pointers are
    followed; without, an address stands for the version that it was when it was set.
    """

    def __init__(
        self,
        engine: Engine,
        watcher: Watcher,
        models: Mapping[str, Path | Address],
        variants: Variants,
        *,
        is_kept_up: bool,
    ) -> None:
        self._engine, self._watcher, self._is_kept_up = engine, watcher, is_kept_up
        self._switcher = Switcher(engine)
        self._wanted: Variants = dict(variants)
        self._noting = threading.Lock()  # for a moment
        self._changing = threading.Lock()  # for as long as a model is loaded
        self._is_closed = threading.Event()
        sources: dict[Slot, Path | Address] = {
            (None, name): source for name, source in models.items()
        }
        sources |= {slot: variant.source for slot, variant in variants.items()}
        for slot, source in sources.items():
            if self._switcher.at(slot) is not None:  # an empty one is reconciled later
                engine.slots[slot] = self._initial_state(slot, source)
        self._thread = threading.Thread(target=self._run, name="rollout", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; a model that is being loaded is left."""
        self._is_closed.set()
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)  # it may be waiting for MLflow

    def ask_now(self) -> None:
        """Has MLflow asked about all addresses; does not wait for the answers."""
        self._watcher.ask_now()

    def want(self, variants: Variants) -> None:
        """Sets the canaries and shadows of all models; does not wait until they answer.

        A version that is not well is refused, the others are set.
        """
        names = self._engine.models
        with self._noting:
            self._wanted = {slot: variant for slot, variant in variants.items() if slot[1] in names}

    @property
    def registered_names(self) -> set[str]:
        """The names at MLflow of all models that are wanted by an address."""
        sources = [state.source for state in list(self._engine.slots.values())]
        return {source.name for source in sources if isinstance(source, Address)}

    def set_variant(self, slot: Slot, wanted: VariantSource | None) -> None:
        """Sets the canary or shadow of a slot, or removes it, before it returns.

        A version from the same source only gets another share. Raises `UserError` for a version
        that is not well, and where MLflow does not answer; nothing has changed.
        """
        if wanted is None:
            with self._changing:
                self._note_wanted(slot, None)
                self._clear(slot)
            return
        with self._changing:
            model, state = self._switcher.at(slot), self._engine.slots.get(slot)
            sources = (model and source_of(model), state and state.source)
            if sources == (wanted.source, wanted.source):
                self._note_wanted(slot, wanted)
                self._switcher.set_share(slot, wanted.share)
                return
        path = self._path_of(wanted.source)  # without the lock: MLflow may take its time
        with self._changing:
            self._set(slot, wanted, path)

    def reconcile(self) -> None:
        """Brings each slot to what is wanted there and what its pointer says, if that is well."""
        for slot, variant in self._wanted.items():
            if self._is_new(slot, variant.source):
                self._begin(slot, variant.source)
        with self._changing:
            for slot, state in list(self._engine.slots.items()):
                try:
                    self._reconcile(slot, state)
                except Exception:  # the others go on
                    _LOG.exception("rollout of %s", title_of(slot))

    def _reconcile(self, slot: Slot, state: SlotState) -> None:
        wanted = self._wanted.get(slot)
        if slot[0] is None:
            self._update(slot, state, 1.0)
        elif wanted is None:
            self._clear(slot)
        elif wanted.source == state.source:
            self._update(slot, state, wanted.share)

    def _initial_state(self, slot: Slot, source: Path | Address) -> SlotState:
        if isinstance(source, Path):
            return SlotState(source, seen=source)
        model = self._switcher.at(slot)
        assert model is not None and model.pointer is not None
        served, path = model.pointer, self._watcher.pointers[source]
        state = SlotState(source, path, seen=served)
        self._note_registry(slot, state)
        self._switcher.note(slot, served, None if model.refused else path)
        if model.refused:
            state.seen, reason = model.refused
            self._refuse(slot, state, state.seen.version, reason)
        return state

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while not self._is_closed.wait(_RECONCILE_SECONDS):
            try:
                self.reconcile()
            except Exception:  # one fault must not end the rollout of all models
                _LOG.exception("rollout")

    def _is_new(self, slot: Slot, source: Path | Address) -> bool:
        """Whether a wanted source was not tried yet."""
        state = self._engine.slots.get(slot)
        if state is None or state.source != source:
            return True
        # A folder has no pointer either, and is never refused before it was tried.
        is_unknown = isinstance(source, Address) and state.pointer_path is None
        refused = state.refused
        return is_unknown and (refused is None or time.time() - refused.at > _AGAIN_SECONDS)

    def _begin(self, slot: Slot, source: Path | Address) -> None:
        """Finds the pointer of a wanted source; refuses it where MLflow does not answer."""
        state, fault = SlotState(source), None
        try:
            state.pointer_path = self._path_of(source)
        except UserError as error:
            fault = str(error)
        with self._changing:
            wanted = self._wanted.get(slot)
            if wanted is None or wanted.source != source or not self._is_new(slot, source):
                return  # something else was set meanwhile
            before = self._engine.slots.get(slot)
            self._engine.slots[slot] = state
            if fault is None:
                return
            refused = before.refused if before is not None and before.source == source else None
            if refused is not None and refused.reason == fault:
                state.refused = Refusal(None, fault, time.time())  # which the log has already
            else:
                self._refuse(slot, state, None, fault)

    def _path_of(self, source: Path | Address) -> Path | None:
        if isinstance(source, Path):
            return None
        try:
            return self._watcher.add(source)
        except UserError:
            raise
        except Exception as error:
            detail = f"{source}, {str(error) or type(error).__name__}"
            remedy = "run python -m serving.watch by hand to see more"
            raise UnreachableError("MLflow could not be asked", detail, remedy) from error

    def _update(self, slot: Slot, state: SlotState, share: float) -> None:
        """Brings a slot to what its source stands for now, if that is well."""
        model = self._switcher.at(slot)
        is_by_source = model is not None and source_of(model) == state.source
        if is_by_source and slot[0] is not None:
            self._switcher.set_share(slot, share)
        if is_by_source and not self._is_kept_up:
            return
        self._note_registry(slot, state)
        found = _found(state.source, state.pointer_path)
        if found is None or found == state.seen:
            return
        state.seen, state.refused = found, None
        if is_by_source and _are_same(found, model):  # the alias has come back
            return
        try:
            self._switcher.put(slot, found, share, state.pointer_path)
        except Exception as error:  # noqa: BLE001 - whatever is wrong, it takes no traffic
            version = found.version if isinstance(found, Pointer) else None
            self._refuse(slot, state, version, str(error) or type(error).__name__)
            return
        if slot[0] is None:
            self._try_variants_again(slot[1])

    def _try_variants_again(self, name: str) -> None:
        """Has those tried again that another version of their model has removed or let in."""
        for role in ROLES:
            state = self._engine.slots.get((role, name))
            if state is not None and self._switcher.at((role, name)) is None:
                state.seen = None

    def _set(self, slot: Slot, wanted: VariantSource, path: Path | None) -> None:
        """Puts what is wanted into a slot; raises `UserError`, and nothing has changed."""
        found = _found(wanted.source, path)
        if found is None:
            what, remedy = "the folder of the version is missing", "set it again: it is fetched"
            raise UserError(what, str(path), remedy)
        model = self._switcher.at(slot)
        is_there = model is not None and source_of(model) == wanted.source
        if not is_there or not _are_same(found, model):
            try:
                self._switcher.put(slot, found, wanted.share, path)
            except UserError:
                raise
            except Exception as error:
                detail = str(error) or type(error).__name__
                where, remedy = f"{wanted.source}, {detail}", "name a version that is whole"
                raise UserError("it cannot be served", where, remedy) from error
        state = self._engine.slots[slot] = SlotState(wanted.source, path, seen=found)
        self._note_registry(slot, state)
        self._note_wanted(slot, wanted)
        self._switcher.set_share(slot, wanted.share)

    def _clear(self, slot: Slot) -> None:
        self._engine.slots.pop(slot, None)
        self._switcher.clear(slot)

    def _note_wanted(self, slot: Slot, wanted: VariantSource | None) -> None:
        with self._noting:
            others = {other: source for other, source in self._wanted.items() if other != slot}
            self._wanted = others if wanted is None else others | {slot: wanted}

    def _refuse(self, slot: Slot, state: SlotState, version: int | None, reason: str) -> None:
        state.refused = Refusal(version, reason, time.time())
        self._engine.metrics.count_switch(title_of(slot), is_refused=True)
        model = self._switcher.at(slot)
        which = state.source if version is None else f"version {version}"
        _LOG.warning(
            "warning: %s refused as %s, %s: %s",
            *(which, title_of(slot)),
            "which stays empty" if model is None else f"{model.version} stays",
            reason,
        )

    def _note_registry(self, slot: Slot, state: SlotState) -> None:
        path = state.pointer_path
        status = None if path is None else read_status(path)
        if status is not None and status != state.registry:
            state.registry = status
            self._engine.metrics.note_registry(
                title_of(slot),
                is_reachable=status.fault is None,
                asked_at=status.asked_at,
                newest_version=status.newest_version,
            )


def _found(source: Path | Address, pointer_path: Path | None) -> Path | Pointer | None:
    """What a source stands for now; None where that is unknown."""
    if isinstance(source, Path):
        return source
    return None if pointer_path is None else read_pointer(pointer_path)


def _are_same(found: Path | Pointer, model: ServedModel | None) -> bool:
    if model is None or isinstance(found, Path) or model.pointer is None:
        return model is not None and model.pointer is None and found == model.folder
    served = model.pointer
    return (found.version, found.folder) == (served.version, served.folder)
