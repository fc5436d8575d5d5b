"""Who stands at the places of an engine."""

import threading

import pytest
from registered_versions import broken_weights, other_encoder
from waiting import wait_until

from bert_core.errors import UserError
from serving.engine import Engine
from serving.models import load_models
from serving.places import Places

CANARY = ("canary", "mood")


@pytest.fixture
def engine(small_models):
    made = Engine(load_models({"mood": small_models["sentiment"]}))
    yield made
    made.close()


def encoders():
    return {each for each in threading.enumerate() if each.name.startswith("encoder")}


def test_a_version_comes_gets_another_share_and_goes(engine, small_models, tmp_path):
    places, before = Places(engine), encoders()
    folder = other_encoder(small_models["sentiment"], tmp_path / "other")
    places.put(CANARY, folder, 0.25, None)
    first = places.at(CANARY)
    places.put(CANARY, other_encoder(folder, tmp_path / "third"), 0.25, None)
    wait_until(lambda: not first.batcher.is_alive)
    canary = places.at(CANARY)
    assert engine.traffic.beside("mood", "canary").share == 0.25
    places.set_share(CANARY, 0.5)
    assert engine.traffic.beside("mood", "canary").share == 0.5 and places.at(CANARY) is canary
    assert encoders() > before and canary.batcher.is_alive
    text = engine.metrics.text.decode()
    assert 'bertline_waiting_tokens{encoder="mood (canary)"}' in text and canary.version in text
    for _ in range(2):
        places.clear(CANARY)
        assert places.at(CANARY) is None
    wait_until(lambda: encoders() == before)
    wait_until(lambda: canary.version not in engine.metrics.text.decode())
    assert 'waiting_tokens{encoder="mood (canary)' not in engine.metrics.text.decode()


def test_what_is_not_well_changes_nothing(engine, small_models, tmp_path):
    places, before = Places(engine), encoders()
    broken = broken_weights(small_models["sentiment"], tmp_path / "broken")
    with pytest.raises(UserError, match="damaged"):
        places.put(CANARY, broken, 0.5, None)
    other = other_encoder(small_models["topics"], tmp_path / "other")
    with pytest.raises(UserError, match="another task or other labels than mood"):
        places.put(CANARY, other, 0.5, None)
    assert places.at(CANARY) is None and places.at((None, "mood")) is engine.models["mood"]
    wait_until(lambda: encoders() == before)
