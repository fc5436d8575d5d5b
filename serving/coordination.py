"""What the replicas of one application agree on: who stands beside the models, when to ask MLflow.

A server of one process agrees with itself (`Alone`); replicas on Ray do by `cluster.Replica`.
"""

from collections.abc import Mapping
from typing import Protocol

from serving.followed import Place
from serving.model_sources import SharedSource

Beside = Mapping[Place, SharedSource]
"""The canaries and shadows that are wanted."""


class Listener(Protocol):
    """A server, as those that it agrees with see it; neither call waits for work to be done."""

    def want(self, beside: Beside) -> None:
        """These are to stand beside its models from now on, and no others."""
        ...

    def look(self) -> None:
        """MLflow is to be asked now: an alias has moved."""
        ...


class Coordination(Protocol):
    """How a server agrees with the others of its application."""

    def start(self, listener: Listener) -> None:
        """Begins to tell the listener what others have published."""
        ...

    def publish(self, place: Place, wanted: SharedSource | None) -> None:
        """Has every other server want this at a place, or nobody.

        Raises `UserError` where they cannot be told.
        """
        ...

    def look(self) -> None:
        """Has all, this one too, ask MLflow."""
        ...

    def close(self) -> None:
        """Tells and hears nothing more."""
        ...


class Alone:
    """A server without others."""

    def __init__(self) -> None:
        self._listener: Listener | None = None

    def start(self, listener: Listener) -> None:
        """As `Coordination.start`."""
        self._listener = listener

    def publish(self, place: Place, wanted: SharedSource | None) -> None:
        """There is nobody to tell."""

    def look(self) -> None:
        """As `Coordination.look`."""
        if self._listener is not None:
            self._listener.look()

    def close(self) -> None:
        """As `Coordination.close`."""
        self._listener = None
