"""Which model answers, while versions change."""

import json
import threading
from collections import Counter
from dataclasses import replace

import pytest
import torch
from running import wait_until

from bert_core.errors import UserError
from bert_core.model.bert import Bert
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tasks.classification import Classification
from serving.models import ModelLoader, close_models, warm_up
from serving.request_context import RequestContext, current_request
from serving.rollout.aliases import ROLES, VariantSource
from serving.rollout.traffic import Agreement, Traffic, Variant, decided


@pytest.fixture
def models(small_models):
    """The sentiment twice, as two versions of one name with an encoder each, and the topics."""
    loader = ModelLoader()
    first = loader.load("mood", small_models["sentiment"])
    second = loader.load("mood", small_models["sentiment"])
    third = loader.load("mood", small_models["topics"], [first])
    yield first, second, third
    close_models([first, second])


@pytest.fixture
def request_now():
    """The request that is worked on."""
    request = RequestContext("1")
    token = current_request.set(request)
    yield request
    current_request.reset(token)


def test_a_version_stays_until_its_requests_have_ended(models, request_now):
    first, second, _ = models
    traffic = Traffic({"mood": first})
    found, _ = traffic.find("mood", Classification)
    assert found is first and first.in_flight.count == 1
    assert (request_now.model, request_now.version) == ("mood", first.version)
    assert traffic.switch(second) is first
    ended = []
    retiring = threading.Thread(target=lambda: ended.append(traffic.retire(first, 30)))
    retiring.start()
    retiring.join(0.1)
    assert first.batcher.is_alive and not ended
    request_now.end()
    retiring.join()
    assert ended == [True] and not first.batcher.is_alive
    assert traffic.find("mood", Classification)[0] is second and second.batcher.is_alive


def test_a_switch_in_between_is_seen(models, request_now, monkeypatch):
    first, second, _ = models
    traffic = Traffic({"mood": first})

    def use(*given):
        monkeypatch.undo()
        traffic.switch(second)
        traffic.retire(first, 0)
        request_now.use(*given)

    monkeypatch.setattr(request_now, "use", use)
    assert traffic.find("mood", Classification)[0] is second
    assert (first.in_flight.count, second.in_flight.count) == (0, 1)


def test_a_shared_encoder_outlives_one_of_its_models(models):
    first, second, topics = models
    traffic = Traffic({"mood": first, "topics": replace(topics, name="topics")})
    traffic.retire(traffic.switch(second), 1)
    assert first.batcher.is_alive
    assert list(traffic.batchers.values()) == [["mood"], ["topics"]]


@pytest.mark.parametrize("role", ["active", "canary"])
def test_an_encoder_is_computed_until_no_retiring_model_needs_it(models, request_now, role):
    first, second, topics = models
    topics = replace(topics, name="topics")
    served = {"topics": topics} | ({"mood": first} if role == "active" else {"mood": second})
    traffic = Traffic(served)
    if role == "canary":
        traffic.set_variant("mood", "canary", Variant(first, 1.0))
    assert traffic.find("mood", Classification)[0] is first, "which has a request now"
    if role == "canary":
        traffic.set_variant("mood", "canary", Variant(first, 0.5))  # the same model, not retired
        assert traffic.set_variant("mood", "canary", None) is first
    else:
        traffic.switch(second)
    retiring = threading.Thread(target=traffic.retire, args=(first, 30))
    retiring.start()
    traffic.switch(replace(second, name="topics"))
    assert traffic.retire(topics, 1)
    assert first.batcher.is_alive
    warm_up(first)  # its request is answered
    request_now.end()
    retiring.join()
    assert not first.batcher.is_alive and second.batcher.is_alive


def test_a_canary_has_its_share_and_another_task_is_none(models):
    first, second, topics = models
    traffic = Traffic({"mood": first})
    traffic.set_variant("mood", "canary", Variant(second, 0.1))
    found = Counter(traffic.find(None, Classification)[0] is second for _ in range(5000))
    assert 400 <= found[True] <= 600
    assert list(traffic.batchers.values()) == [["mood"], ["mood (canary)"]]
    with pytest.raises(UserError, match="another task or other labels than mood"):
        traffic.set_variant("mood", "canary", Variant(topics, 0.1))
    traffic.set_variant("mood", "canary", None)
    assert all(traffic.find(None, Classification)[0] is first for _ in range(100))


def test_a_version_with_other_labels_removes_the_canary_and_the_shadow(models, small_models):
    first, second, topics = models
    traffic = Traffic({"mood": first, "other": replace(first, name="other")})
    for role in ROLES:
        traffic.set_variant("mood", role, Variant(second, 1.0))
        traffic.set_variant("other", role, Variant(second, 1.0))
    assert traffic.switch(replace(second)) is first
    assert traffic.variant("mood", "canary").model is second, "which answers alike"
    traffic.switch(topics)
    assert traffic.find("mood", Classification)[0] is topics
    for role in ROLES:
        assert traffic.variant("mood", role) is None
        assert traffic.variant("other", role).model is second


def test_a_canary_has_the_heads_and_the_width_of_an_encoder(small_models, tmp_path):
    loader = ModelLoader()
    folder = small_models["encoder"]
    bare, wide = tmp_path / "bare", tmp_path / "wide"
    settings, model, tokenizer = load_model_folder(folder)
    save_model_folder(bare, Bert(model.encoder, {}), tokenizer, card="")
    wider = settings.model_copy(update={"hidden_size": 2 * settings.hidden_size})
    save_model_folder(wide, Bert.for_pretraining(wider), tokenizer, card="")
    whole, *others = (loader.load("encoder", each) for each in (folder, bare, wide))
    assert whole.model.heads and not others[0].model.heads
    traffic = Traffic({"encoder": whole})
    for other in others:
        with pytest.raises(UserError, match="or without its heads"):
            traffic.set_variant("encoder", "canary", Variant(other, 0.5))
    traffic = Traffic({"encoder": others[0]})
    traffic.set_variant("encoder", "canary", Variant(whole, 0.5))  # it can do more
    close_models([whole, *others])


def test_a_canary_reads_what_its_model_reads(models, small_models):
    first, *_ = models
    pairs = replace(first, task=first.task.model_copy(update={"second_column": "second"}))
    with pytest.raises(UserError, match="another task"):
        Traffic({"mood": first}).set_variant("mood", "canary", Variant(pairs, 0.5))


def test_an_encoder_may_have_a_canary_but_no_shadow(small_models):
    loader = ModelLoader()
    first, second = (loader.load("encoder", small_models["encoder"]) for _ in range(2))
    traffic = Traffic({"encoder": first})
    traffic.set_variant("encoder", "canary", Variant(second, 0.5))
    with pytest.raises(UserError, match="an encoder's answers are not compared: .*canary's share"):
        traffic.set_variant("encoder", "shadow", Variant(second, 0.5))
    close_models([first, second])


def test_a_shadow_is_drawn_for_its_share(models):
    first, second, _ = models
    traffic = Traffic({"mood": first})
    assert traffic.shadow_of(first) is None
    traffic.set_variant("mood", "shadow", Variant(second, 0.5))
    drawn = Counter(traffic.shadow_of(first) is second for _ in range(1000))
    assert 400 <= drawn[True] <= 600
    assert traffic.find(None, Classification)[0] is first


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        ({"label": "a", "scores": 1}, {"label": "a", "scores": 2}, {"label": "b", "scores": 1}),
        ({"labels": ["a", "b"]}, {"labels": ["b", "a"]}, {"labels": ["a"]}),
        ({"value": 1.23412}, {"value": 1.23388}, {"value": 1.24}),
        (
            {"entities": [{"type": "PER", "start": 0, "end": 4, "score": 0.9}]},
            {"entities": [{"type": "PER", "start": 0, "end": 4, "score": 0.8}]},
            {"entities": [{"type": "PER", "start": 0, "end": 5, "score": 0.9}]},
        ),
        ({"text": "in Rome", "score": 1}, {"text": "in Rome", "score": 2}, {"text": "Rome"}),
        ({"scores": {"a": 0.6, "b": 0.4}}, {"scores": {"a": 9, "b": 1}}, {"scores": {"b": 1}}),
        ({"scores": {"a": 1.23412}}, {"scores": {"a": 1.23388}}, {"scores": {"a": 1.24}}),
    ],
)
def test_two_agree_by_what_they_decide(one, same, other):
    assert decided(one) == decided(same) != decided(other)


def test_what_is_asked_for_scores_alone_is_compared_too(start_rollout, small_models):
    folder = small_models["sentiment"]
    server = start_rollout({"mood": folder}, {("shadow", "mood"): VariantSource(folder, 1.0)})
    assert server.ask("/predict", {"inputs": ["a good cat"]})[0] == 200
    model = server.engine.traffic.variant("mood", "shadow").model
    wait_until(lambda: server.engine.agreement(model) == Agreement(agree=1))


def opposite(folder, to):
    """The model of a folder with its classifier turned round."""
    _, model, tokenizer = load_model_folder(folder)
    task = {"bertline_task": json.loads((folder / "config.json").read_text())["bertline_task"]}
    with torch.no_grad():
        for parameter in model.heads["classifier"].parameters():
            parameter.neg_()
    save_model_folder(to, model, tokenizer, card="", extra_config=task)
    return to


def test_each_version_counts_how_it_has_done_as_a_shadow(
    start_rollout, small_models, tmp_path, monkeypatch
):
    folder = small_models["sentiment"]
    turned = opposite(folder, tmp_path / "turned")
    items = 'shadow_items_total{model="mood",result='
    for most, other, wanted, metric in (
        (64, folder, Agreement(agree=6), f'{items}"agree"}} 6.0'),
        (64, turned, Agreement(differ=6), f'{items}"differ"}} 6.0'),
        (0, turned, Agreement(missed=3), 'shadow_missed_requests_total{model="mood"} 3.0'),
    ):
        monkeypatch.setattr("serving.rollout.traffic._MAX_WAITING_COMPARISONS", most)
        server = start_rollout({"mood": folder}, {("shadow", "mood"): VariantSource(other, 1.0)})
        for _ in range(3):
            assert server.ask("/v1/classify", {"inputs": ["a good cat", "a dog"]})[0] == 200
        model = server.engine.traffic.variant("mood", "shadow").model
        wait_until(lambda e=server.engine, m=model, w=wanted: e.agreement(m) == w)
        told = server.ask("/admin/traffic")[1]["models"]["mood"]["shadow"]
        assert told.items() > vars(wanted).items()
        assert f"bertline_{metric}" in server.ask("/metrics")[1].decode().splitlines()
