"""What is set is done here, and told to the others."""

import pytest
import torch
from registered_versions import other_weights

from bert_core.errors import UserError
from serving.coordination import Alone
from serving.limits import Limits
from serving.model_sources import SharedSource
from serving.problems import RequestError
from serving.startup import RegistryAccess, RunningEngine, loader_for

CANARY = ("canary", "mood")


class Published(Alone):
    """Others that hear all, or cannot be told."""

    def __init__(self):
        super().__init__()
        self.heard, self.can_hear = [], True

    def publish(self, place, wanted):
        if not self.can_hear:
            raise UserError("the other replicas could not be told", "agreement", "set it again")
        self.heard.append((place, wanted))


@pytest.fixture
def running(small_models, tmp_path):
    """A running engine with the canary of a folder, and the others."""
    others = Published()
    better = other_weights(small_models["sentiment"], tmp_path / "better", 2.0)
    made = RunningEngine.start(
        {"mood": small_models["sentiment"]},
        loader_for(torch.device("cpu"), Limits(), 1, "float32"),
        Limits(),
        RegistryAccess(poll_seconds=0),
        {"canary": {"mood": SharedSource(better, 0.5)}},
        others,
    )
    yield made, others, better
    made.close()


def test_others_are_told_what_was_done_here(running):
    made, others, better = running
    made.steering.set_beside("mood", "canary", None, 0.25)
    assert made.engine.traffic.beside("mood", "canary").share == 0.25
    made.steering.clear("mood", "canary")
    assert made.engine.traffic.beside("mood", "canary") is None
    for wrong in (("wood", "canary"), ("mood", "shadow"), ("mood", "canary")):
        with pytest.raises(RequestError):
            made.steering.set_beside(*wrong, None, 0.25)
    assert others.heard == [(CANARY, SharedSource(better, 0.25)), (CANARY, None)]


def test_it_may_be_asked_again_where_others_could_not_be_told(running):
    made, others, better = running
    others.can_hear = False
    with pytest.raises(RequestError) as told:
        made.steering.set_beside("mood", "canary", None, 0.75)
    assert told.value.problem.status == 503 and "again" in told.value.problem.remedy
    assert made.engine.traffic.beside("mood", "canary").share == 0.75
    others.can_hear = True
    made.steering.set_beside("mood", "canary", None, 0.75)
    assert others.heard == [(CANARY, SharedSource(better, 0.75))]


def test_mlflow_is_asked_only_for_what_is_followed(running):
    made, _, _ = running
    assert not made.steering.look("mood"), "it is a folder"
