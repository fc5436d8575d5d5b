import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from encoder_corpus import RECIPE, CountingClock, write_all

from benchmarks.encoder_run import finetuning as stage
from benchmarks.encoder_run.clock import Clock
from benchmarks.encoder_run.pretraining import fresh_model
from bert_core.errors import UserError
from bert_core.model_folder import save_model_folder
from bert_core.tasks.metrics import label_metrics
from bert_core.text.masking import Vocabulary
from bert_core.tokenizer import load_tokenizer

CPU = torch.device("cpu")
FOUR_STEPS = replace(RECIPE, finetuning_rows=8)
"""An epoch, of the 30 examples that there are."""


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """GLUE's folder, and that of an encoder whose weights are not those it began with."""
    folder = tmp_path_factory.mktemp("finetuning")
    shards, glue = write_all(folder)
    tokenizer = load_tokenizer(shards)
    model = fresh_model(RECIPE, Vocabulary.from_tokenizer(tokenizer))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    save_model_folder(folder / "encoder", model, tokenizer, card="")
    return glue, folder / "encoder"


def run(places, folder, task="mrpc", arm="pre-trained", *, clock=None, every=600.0, examples=None):
    glue, encoder = places
    finetuning = stage.Finetuning(FOUR_STEPS, encoder, CPU, folder)
    data = finetuning.read(task, glue, examples)
    return finetuning.run(data, arm, 3, epochs=3, clock=clock or Clock(60, 60), every=every)


def test_what_was_learned_is_measured_after_each_epoch(places, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "EVERY_STEPS", 1)
    found = run(places, tmp_path, "sst2")
    assert found["seed"] == 3 and len(found["epochs"]) == 3
    glue, encoder = places
    data = stage.Finetuning(RECIPE, encoder, CPU, tmp_path).read("sst2", glue, None)
    assert data.gold == "01" * 6
    assert found["epochs"][-1] == stage.two_label_figures(data.gold, found["predictions"])
    assert not list(tmp_path.glob("*"))


@pytest.mark.parametrize("looks", [2, 3, 9])
def test_what_is_out_of_time_goes_on_to_the_same_predictions(places, tmp_path, monkeypatch, looks):
    monkeypatch.setattr(stage, "EVERY_STEPS", 1)
    monkeypatch.setattr(stage.Finetuning, "_measure", with_the_loss_of(stage.Finetuning._measure))
    whole = run(places, tmp_path / "whole")
    assert run(places, tmp_path / "parts", clock=CountingClock(looks)) is None
    assert run(places, tmp_path / "parts") == whole


def with_the_loss_of(measure):
    """Measures something that shows the last bit of the weights."""

    def measured(self, data, model):
        figures, predictions = measure(self, data, model)
        total = sum(each.detach().double().abs().sum() for each in model.parameters())
        return figures | {"weights": float(total)}, predictions

    return measured


def test_arms_differ_in_the_encoder_alone(places, tmp_path):
    glue, encoder = places
    finetuning = stage.Finetuning(RECIPE, encoder, CPU, tmp_path)
    data = finetuning.read("mrpc", glue, None)
    trained, untrained = (
        finetuning._begin(data, arm, 3, tmp_path / "none")[0].state_dict() for arm in stage.ARMS
    )
    assert trained.keys() == untrained.keys() and any("pooler" in name for name in trained)
    for name, weight in trained.items():
        expected = weight if "classifier" in name else weight / 1.5
        torch.testing.assert_close(untrained[name], expected)


def test_examples_are_drawn_and_the_same_each_time(places, tmp_path):
    glue, encoder = places
    finetuning = stage.Finetuning(RECIPE, encoder, CPU, tmp_path)
    whole, some, again = (finetuning.read("mrpc", glue, count).train for count in (None, 9, 9))
    assert (whole.num_items, some.num_items) == (30, 9)
    assert np.array_equal(some.input_ids, again.input_ids)
    assert not np.array_equal(some.input_ids, whole.input_ids[: len(some.input_ids)])


def test_a_task_that_is_not_there(places, tmp_path):
    with pytest.raises(UserError, match="no such task.*RTE"):
        run(places, tmp_path, "rte")


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_figures_are_those_of_the_tasks(share):
    random = np.random.default_rng(5)
    for found_share in (0.0, 0.4, 1.0):
        gold, found = (
            "".join(map(str, (random.random(50) < each).astype(int)))
            for each in (share, found_share)
        )
        expected = label_metrics([*gold], [*found], ["0", "1"])
        figures = stage.two_label_figures(gold, found)
        assert figures == pytest.approx({name: expected[name] for name in figures})


def test_the_difference_is_that_of_the_means_over_common_seeds():
    gold = "01" * 60
    right, wrong, half = gold, "10" * 60, "00" * 60
    arms = {
        "pre-trained": [
            {"seed": 0, "predictions": right},
            {"seed": 1, "predictions": right},
            {"seed": 2, "predictions": wrong},
        ],
        "untrained": [{"seed": 1, "predictions": wrong}, {"seed": 0, "predictions": half}],
    }
    found = stage.compared({"criterion": "accuracy", "gold": gold, "arms": arms})
    assert (found["pre-trained"], found["untrained"]) == (1.0, 0.25)
    assert found["difference"] == 0.75
    assert 0.65 < found["low"] < 0.75 < found["high"] < 0.85
    json.dumps(found)


def test_there_is_no_difference_before_there_are_both():
    arms = {"pre-trained": [{"seed": 0, "predictions": "01"}], "untrained": []}
    assert stage.compared({"criterion": "accuracy", "gold": "01", "arms": arms}) is None
