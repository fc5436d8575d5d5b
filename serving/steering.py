"""What an operator sets while a server runs -> done here at once, then by all other replicas."""

import threading

from bert_core.errors import UserError, nearest
from serving.coordination import Coordination
from serving.engine import Engine
from serving.followed import Place, source_of
from serving.following import Following
from serving.model_sources import SharedSource
from serving.pointers import Address
from serving.problems import RequestError
from serving.traffic import Role


class Steering:
    """Sets canaries and shadows, and has MLflow asked; waits, so not for the event loop."""

    def __init__(self, engine: Engine, following: Following, coordination: Coordination) -> None:
        self._engine, self._following, self._coordination = engine, following, coordination
        self._setting = threading.Lock()  # so that all hear of two orders in the order they had

    @property
    def engine(self) -> Engine:
        """Whose places are set."""
        return self._engine

    def set_beside(self, name: str, role: Role, address: Address | None, share: float) -> None:
        """Has a version of MLflow's registry stand beside a model; None only changes the share.

        Raises `RequestError` for a model that is not served and where nobody stands whose share
        could be changed, and where others could not be told; `UserError` for a version that is not
        well and where MLflow does not answer: nothing has changed.
        """
        self._check_name(name)
        with self._setting:
            beside = self._engine.traffic.beside(name, role)
            if address is None and beside is None:
                raise RequestError(
                    422,
                    f"No {role}",
                    f"{name} has no {role} whose share could be changed",
                    field="model",
                    remedy="give the address of a version, models:/NAME@ALIAS",
                )
            source = address
            if source is None:
                assert beside is not None
                source = source_of(beside.model)
            self._do((role, name), SharedSource(source, share))

    def clear(self, name: str, role: Role) -> None:
        """Has nobody stand there; raises as `set_beside`."""
        self._check_name(name)
        with self._setting:
            self._do((role, name), None)

    def look(self, registered_name: str) -> bool:
        """Has all ask MLflow, if they follow a model that it has under this name; whether so."""
        if registered_name not in self._following.registered_names:
            return False
        self._coordination.look()
        return True

    def _do(self, place: Place, wanted: SharedSource | None) -> None:
        self._following.set_beside(place, wanted)
        try:
            self._coordination.publish(place, wanted)
        except UserError as error:
            raise RequestError(
                503,
                "Not told to all",
                f"this server has done it, others may not have: {error.what}",
                field="path",
                remedy="ask again: what is done is not done twice",
            ) from error

    def _check_name(self, name: str) -> None:
        models = self._engine.models
        if name not in models:
            raise RequestError(
                404,
                "Unknown model",
                f"no model {name!r}{nearest(name, models)}",
                field="name",
                remedy=f"one of {', '.join(models)}",
            )
