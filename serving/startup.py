"""What is to be served -> an engine that serves it and follows the registry; on Ray and without."""

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

import torch

from bert_core.errors import UserError
from bert_core.machine import release_memory
from serving.coordination import Alone, Coordination
from serving.engine import Engine
from serving.followed import Place, title_of
from serving.following import Asker, Following
from serving.limits import Limits
from serving.model_sources import SharedSource, fetched
from serving.models import ModelLoader, Products, ServedModel, close_models
from serving.pointers import Address, good_pointer_path, read_pointer
from serving.probe import open_model
from serving.steering import Steering
from serving.traffic import Role, Share
from serving.watch_process import WatchOrder, WatchProcess

_LOG = logging.getLogger(__name__)


class Watcher(Asker, Protocol):
    """Whoever asks MLflow for a server: `WatchProcess`, or on Ray the actor of a node."""

    def start(self) -> None:
        """Returns when there is a pointer to each address."""
        ...

    def close(self) -> None:
        """Ends it, for this server."""
        ...


@dataclass(frozen=True)
class RegistryAccess:
    """How MLflow's registry is asked; None is what `serving.watch` takes by itself.

    `poll_seconds` 0 is once, at the start; `watch` makes what asks. `cache_gib` is how large the
    cache may become by models that are not needed, 0 for any size.
    """

    tracking_uri: str | None = None
    cache: Path | None = None
    poll_seconds: float = 2.0
    watch: Callable[[WatchOrder], Watcher] = WatchProcess
    cache_gib: float = 20.0


@dataclass
class RunningEngine:
    """An engine, what sets who answers in it, and what runs beside it."""

    engine: Engine
    steering: Steering
    _beside: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def start(
        cls,
        models: Mapping[str, Path | Address],
        loader: ModelLoader,
        limits: Limits,
        registry: RegistryAccess,
        beside: Mapping[Role, Mapping[str, SharedSource]] | None = None,
        coordination: Coordination | None = None,
    ) -> Self:
        """Fetches what is at MLflow, opens all models and has each compute once.

        From then on it agrees with others by the `coordination`; without one it is alone.

        Raises `UserError` for a model that is damaged or does not answer. A version of the registry
        is then left to the one that was served from this cache before, if there was one; beside a
        model it may be missing for now, whatever is wrong with it.
        """
        shared: dict[Place, SharedSource] = {
            (role, name): each
            for role, some in (beside or {}).items()
            for name, each in some.items()
        }
        addresses = {each for each in models.values() if isinstance(each, Address)}
        opened: dict[str, ServedModel] = {}
        with ExitStack() as started, ExitStack() as not_yet_owned:
            not_yet_owned.callback(lambda: close_models(list(opened.values()), finish=False))
            watch = registry.watch(
                WatchOrder(
                    addresses=tuple(sorted(addresses, key=str)),
                    tracking_uri=registry.tracking_uri,
                    cache=registry.cache,
                    poll_seconds=registry.poll_seconds or None,
                    cache_gib=registry.cache_gib,
                )
            )
            started.callback(watch.close)
            if addresses:
                watch.start()
            for name, source in models.items():
                present = list(opened.values())
                opened[name] = _open_or_take_the_last(loader, name, source, present, watch)
            engine = Engine(opened, limits, loader)
            started.callback(engine.close)
            for place, each in shared.items():
                _set_beside(engine, place, each, watch)
            release_memory()  # the weights as they were read
            is_kept_up = registry.poll_seconds > 0
            following = Following(engine, watch, models, shared, is_kept_up=is_kept_up)
            following.start()
            started.callback(following.close)
            others = coordination or Alone()
            others.start(following)
            started.callback(others.close)
            not_yet_owned.pop_all()
            return cls(engine, Steering(engine, following, others), started.pop_all())

    def close(self) -> None:
        """Ends what runs beside the engine, and the engine's threads."""
        self._beside.close()


def loader_for(
    device: torch.device, limits: Limits, num_threads: int, precision: Products
) -> ModelLoader:
    """What opens models for a server.

    On the CPU so many threads compute, each a micro-batch of its own, by itself: torch's own
    threads, which would share in each product, are set to one.
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


def _set_beside(engine: Engine, place: Place, wanted: SharedSource, watch: Watcher) -> None:
    """Has a version stand beside a model; what is at MLflow may come later (`Following`)."""
    (role, name), source = place, wanted.source
    assert role is not None
    model = None
    try:
        if isinstance(source, Address):
            watch.add(source)
        present = engine.traffic.present
        model = _open_or_take_the_last(engine.loader, name, source, present, watch)
        engine.set_beside(name, role, Share(model, wanted.share))
    except UserError as error:
        if model is not None:
            engine.retire(model, 0.0)
        if isinstance(source, Path):
            raise
        _LOG.warning("warning: %s begins without %s: %s", title_of(place), source, error)


def _open_or_take_the_last(
    loader: ModelLoader,
    name: str,
    source: Path | Address,
    present: Collection[ServedModel],
    watch: Watcher,
) -> ServedModel:
    found = fetched(source, watch.pointers)
    try:
        return open_model(loader, name, found, present)
    except UserError as error:
        if isinstance(found, Path) or isinstance(source, Path):
            raise
        before = read_pointer(good_pointer_path(watch.pointers[source]))
        if before is None or before == found:
            raise
        _LOG.warning(
            "warning: version %s of %s is not let in, %s is served as before: %s",
            *(found.version, name, before.version, error),
        )
        return open_model(loader, name, before, present)
