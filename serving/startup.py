"""Starts an engine that serves models and follows MLflow's registry, with Ray and without."""

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import torch

from bert_core.errors import UserError
from bert_core.machine import release_memory
from serving.engine import Engine
from serving.limits import Limits
from serving.models import ModelLoader, Products, ServedModel, close_models, open_model
from serving.rollout.admin import Rollout
from serving.rollout.aliases import (
    Address,
    Slot,
    Variants,
    VariantSource,
    fetched,
    last_good_path,
    read_pointer,
    title_of,
)
from serving.rollout.controller import Controller
from serving.rollout.traffic import Variant
from serving.rollout.watcher import Coordination, Watcher, WatchProcess, WatchSettings

_LOG = logging.getLogger(__name__)


@dataclass
class RunningEngine:
    """An engine, its rollout, and what runs with it."""

    engine: Engine
    rollout: Rollout
    _running: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def start(
        cls,
        models: Mapping[str, Path | Address],
        loader: ModelLoader,
        limits: Limits,
        watching: WatchSettings,
        variants: Variants | None = None,
        coordination: Coordination | None = None,
        watcher_of: Callable[[WatchSettings], Watcher] = WatchProcess,
    ) -> Self:
        """Fetches models from MLflow, opens all of them and has each compute once.

        Raises `UserError` for a model that is damaged or does not answer as it should. A version
        of the registry is then replaced by the last good one of this cache, if there is one; a
        canary or shadow of the registry may be missing at the start, whatever is wrong with it.
        """
        variants = variants or {}
        addresses = {source for source in models.values() if isinstance(source, Address)}
        opened: dict[str, ServedModel] = {}
        with ExitStack() as started, ExitStack() as not_yet_owned:
            not_yet_owned.callback(lambda: close_models(list(opened.values()), finish=False))
            watcher = watcher_of(replace(watching, addresses=tuple(sorted(addresses, key=str))))
            started.callback(watcher.close)
            if addresses:
                watcher.start()
            for name, source in models.items():
                present = list(opened.values())
                opened[name] = _open_or_last_good(loader, name, source, present, watcher)
            engine = Engine(opened, limits, loader)
            started.callback(engine.close)
            for slot, variant in variants.items():
                _set_variant(engine, slot, variant, watcher)
            release_memory()  # the weights as they were read
            is_kept_up = watching.poll_seconds > 0
            controller = Controller(engine, watcher, models, variants, is_kept_up=is_kept_up)
            controller.start()
            started.callback(controller.close)
            coordination = coordination or Coordination()
            coordination.start(controller)
            started.callback(coordination.close)
            not_yet_owned.pop_all()
            return cls(engine, Rollout(engine, controller, coordination), started.pop_all())

    def close(self) -> None:
        """Stops the rollout, the watcher and the engine."""
        self._running.close()


def loader_for(
    device: torch.device, limits: Limits, num_threads: int, precision: Products
) -> ModelLoader:
    """The loader of a server's models.

    On the CPU `num_threads` threads compute one micro-batch each, so torch's own threads are set
    to one.
    """
    on_cpu = device.type == "cpu"
    if on_cpu:
        torch.set_num_threads(1)
    return ModelLoader(
        device=device,
        max_tokens=limits.max_batch_tokens,
        max_waiting_tokens=limits.max_waiting_tokens,
        num_threads=num_threads if on_cpu else 1,
        autocast_dtype=torch.bfloat16 if precision == "bfloat16" else None,
    )


def _set_variant(engine: Engine, slot: Slot, wanted: VariantSource, watcher: Watcher) -> None:
    """Opens a canary or shadow; one of the registry may follow later (`Controller`)."""
    (role, name), source = slot, wanted.source
    assert role is not None
    model = None
    try:
        if isinstance(source, Address):
            watcher.add(source)
        present = engine.traffic.present
        model = _open_or_last_good(engine.loader, name, source, present, watcher)
        engine.set_variant(name, role, Variant(model, wanted.share))
    except UserError as error:
        if model is not None:
            engine.retire(model, 0.0)
        if isinstance(source, Path):
            raise
        _LOG.warning("warning: %s starts without %s: %s", title_of(slot), source, error)


def _open_or_last_good(
    loader: ModelLoader,
    name: str,
    source: Path | Address,
    present: Collection[ServedModel],
    watcher: Watcher,
) -> ServedModel:
    found = fetched(source, watcher.pointers)
    try:
        return open_model(loader, name, found, present)
    except UserError as error:
        if isinstance(found, Path) or isinstance(source, Path):
            raise
        before = read_pointer(last_good_path(watcher.pointers[source]))
        if before is None or before == found:
            raise
        _LOG.warning(
            "warning: version %s of %s is refused, the last good version %s is served: %s",
            *(found.version, name, before.version, error),
        )
        return open_model(loader, name, before, present)
