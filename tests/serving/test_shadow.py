"""What a prediction comes to, whatever its scores are."""

import json

import pytest
import torch
from running import wait_until

from bert_core.model_folder import load_model_folder, save_model_folder
from serving.rollout import shadow
from serving.rollout.aliases import VariantSource
from serving.rollout.shadow import Agreement, decided


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
    ],
)
def test_two_agree_by_what_they_decide(one, same, other):
    assert decided(one) == decided(same) != decided(other)


def opposite(folder, to):
    """The model of a folder with its classifier turned round."""
    _, model, tokenizer = load_model_folder(folder)
    task = {"bertline_task": json.loads((folder / "config.json").read_text())["bertline_task"]}
    with torch.no_grad():
        for each in model.heads["classifier"].parameters():
            each.neg_()
    save_model_folder(to, model, tokenizer, card="", extra_config=task)
    return to


def test_each_version_counts_how_it_has_done_as_a_shadow(
    start_rollout, small_models, tmp_path, monkeypatch
):
    folder = small_models["sentiment"]
    turned = opposite(folder, tmp_path / "turned")
    for most, other, wanted in (
        (64, folder, Agreement(agree=6)),
        (64, turned, Agreement(differ=6)),
        (0, turned, Agreement(missed=3)),
    ):
        monkeypatch.setattr(shadow, "_MOST_WAITING", most)
        server = start_rollout({"mood": folder}, {("shadow", "mood"): VariantSource(other, 1.0)})
        for _ in range(3):
            assert server.ask("/v1/classify", {"inputs": ["a good cat", "a dog"]})[0] == 200
        model = server.engine.traffic.variant("mood", "shadow").model
        wait_until(lambda e=server.engine, m=model, w=wanted: e.agreement(m) == w)
        told = server.ask("/admin/traffic")[1]["models"]["mood"]["shadow"]
        assert told.items() > vars(wanted).items()
