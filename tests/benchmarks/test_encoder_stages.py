"""The two stages of the encoder run: pre-training and fine-tuning."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from encoder_corpus import RECIPE, CountingClock, write_all

from benchmarks.encoder_run import finetuning, pretraining
from benchmarks.encoder_run.pretraining import fresh_model
from benchmarks.encoder_run.recipe import Clock
from bert_core.errors import UserError
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tasks.metrics import label_metrics
from bert_core.text.masking import Vocabulary
from bert_core.tokenizer import load_tokenizer

CPU = torch.device("cpu")
OF_TIME = {"seconds", "evaluation_seconds"}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("text"))[0]


def pretrain(shards, folder, *, steps=23, clock=None, every=600.0, recipe=RECIPE, report=id):
    training = pretraining.Pretraining(recipe, shards, CPU, folder)
    clock = clock or Clock(60, 60)
    finished = training.run(
        clock, steps=steps, heldout_rows=32, checkpoint_seconds=every, report=report
    )
    return training, finished


def without_times(record):
    """What is known, save how long it took."""
    points = [{k: v for k, v in p.items() if k not in OF_TIME} for p in record["heldout"]]
    return {k: v for k, v in record.items() if k not in OF_TIME} | {"heldout": points}


def same_weights(left, right):
    return all(
        torch.equal(one, other)
        for one, other in zip(left.state_dict().values(), right.state_dict().values(), strict=True)
    )


@pytest.mark.slow
def test_it_learns_and_every_step_is_in_the_curve(shards, tmp_path):
    training, finished = pretrain(shards, tmp_path, steps=90)
    record = training.record
    assert finished and record["step"] == record["total_steps"] == 90
    assert [point["step"] for point in record["curve"]] == list(range(1, 91))
    assert record["curve"][-1]["tokens"] == record["tokens"] == training.state.num_tokens_seen
    assert record["heldout"][0]["step"] == 0 and record["heldout"][-1]["step"] == 90
    first, last = record["heldout"][0], record["heldout"][-1]
    # The made-up words have no order: the baseline is all that there is to learn.
    assert last["masked_token_loss"] < first["masked_token_loss"] - 1.5
    assert last["unigram_loss"] == first["unigram_loss"] < last["masked_token_loss"] + 0.1
    assert record["flops"] > 6 * 300e3 * record["tokens"]  # two layers, 128 wide
    training.export(tmp_path / "encoder")
    _, model, _ = load_model_folder(tmp_path / "encoder")
    assert same_weights(model, training.model)


@pytest.mark.slow
def test_a_long_curve_has_points_of_several_steps(shards, tmp_path, monkeypatch):
    monkeypatch.setattr(pretraining, "POINTS", 10)
    record = pretrain(shards, tmp_path, steps=34)[0].record
    assert [point["step"] for point in record["curve"]] == [*range(4, 34, 4), 34]
    evaluated = [point["step"] for point in record["heldout"]]
    assert evaluated == [0, *range(4, 34, 4), 34]


@pytest.fixture(scope="module")
def whole(shards, tmp_path_factory):
    """A pre-training that was never interrupted."""
    return pretrain(shards, tmp_path_factory.mktemp("whole"))[0]


@pytest.mark.slow
def test_what_is_out_of_time_goes_on_to_the_same_weights(shards, whole, tmp_path):
    for looks in (7, 9):  # so that it stops in the eighth step, then in the tenth from there on
        stopped, finished = pretrain(shards, tmp_path / "parts", clock=CountingClock(looks))
        assert not finished
    assert stopped.record["step"] == 18
    resumed, finished = pretrain(shards, tmp_path / "parts")
    assert finished
    assert without_times(resumed.record) == without_times(whole.record)
    assert same_weights(resumed.model, whole.model)


@pytest.mark.slow
def test_what_is_killed_goes_on_from_its_last_checkpoint(shards, whole, tmp_path):
    def die(record):
        if record["step"] >= 11:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(shards, tmp_path / "parts", every=0.0, report=die)
    resumed, _ = pretrain(shards, tmp_path / "parts")
    assert without_times(resumed.record) == without_times(whole.record)
    assert same_weights(resumed.model, whole.model)


def test_the_number_of_steps_follows_from_the_rate(shards, tmp_path, monkeypatch):
    monkeypatch.setattr(pretraining.Pretraining, "_rate", lambda *_: 5.0)
    monkeypatch.setattr(pretraining.Pretraining, "_train", lambda *_: True)
    clock = Clock(1, 0.5)
    monkeypatch.setattr(clock, "pretraining_seconds", lambda: 2000.0)
    record = pretrain(shards, tmp_path, steps=None, clock=clock)[0].record
    left = 2000 - len(pretraining.EVALUATED_SHARES) * record["evaluation_seconds"]
    assert record["total_steps"] == int(0.97 * 5 * left)


def test_measuring_the_rate_teaches_nothing(shards, tmp_path):
    training = pretraining.Pretraining(RECIPE, shards, CPU, tmp_path)
    before = copy.deepcopy(training.model)
    assert training._rate(0.2) > 0
    assert same_weights(training.model, before)
    assert not training.state.optimizer.state and not training.state.step


def test_a_checkpoint_of_other_settings_is_left_alone(shards, tmp_path):
    pretrain(shards, tmp_path, clock=CountingClock(3))
    with pytest.raises(UserError, match="a checkpoint of other settings or text"):
        pretrain(shards, tmp_path, recipe=replace(RECIPE, seed=1))


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


def finetune(places, folder, task="mrpc", *, clock=None):
    glue, encoder = places
    trained = finetuning.Finetuning(FOUR_STEPS, encoder, CPU, folder)
    data = trained.read(task, glue, None)
    return trained.run(data, "pre-trained", 3, epochs=3, clock=clock or Clock(60, 60), every=600.0)


@pytest.mark.slow
def test_what_was_learned_is_measured_after_each_epoch(places, tmp_path, monkeypatch):
    monkeypatch.setattr(finetuning, "EVERY_STEPS", 1)
    found = finetune(places, tmp_path, "sst2")
    assert found["seed"] == 3 and len(found["epochs"]) == 3
    glue, encoder = places
    data = finetuning.Finetuning(RECIPE, encoder, CPU, tmp_path).read("sst2", glue, None)
    assert data.gold == "01" * 6
    assert found["epochs"][-1] == finetuning.two_label_figures(data.gold, found["predictions"])
    assert not list(tmp_path.glob("*"))


@pytest.mark.slow
@pytest.mark.parametrize("looks", [2, 9])
def test_what_is_out_of_time_goes_on_to_the_same_predictions(places, tmp_path, monkeypatch, looks):
    monkeypatch.setattr(finetuning, "EVERY_STEPS", 1)
    monkeypatch.setattr(
        finetuning.Finetuning, "_measure", with_the_loss_of(finetuning.Finetuning._measure)
    )
    whole = finetune(places, tmp_path / "whole")
    assert finetune(places, tmp_path / "parts", clock=CountingClock(looks)) is None
    assert finetune(places, tmp_path / "parts") == whole


def with_the_loss_of(measure):
    """Measures something that shows the last bit of the weights."""

    def measured(self, data, model):
        figures, predictions = measure(self, data, model)
        total = sum(parameter.detach().double().abs().sum() for parameter in model.parameters())
        return figures | {"weights": float(total)}, predictions

    return measured


def test_arms_differ_in_the_encoder_alone(places, tmp_path):
    glue, encoder = places
    trained = finetuning.Finetuning(RECIPE, encoder, CPU, tmp_path)
    data = trained.read("mrpc", glue, None)
    trained, untrained = (
        trained._begin(data, arm, 3, tmp_path / "none")[0].state_dict() for arm in finetuning.ARMS
    )
    assert trained.keys() == untrained.keys() and any("pooler" in name for name in trained)
    for name, weight in trained.items():
        expected = weight if "classifier" in name else weight / 1.5
        torch.testing.assert_close(untrained[name], expected)


def test_examples_are_drawn_and_the_same_each_time(places, tmp_path):
    glue, encoder = places
    trained = finetuning.Finetuning(RECIPE, encoder, CPU, tmp_path)
    whole, some, again = (trained.read("mrpc", glue, count).train for count in (None, 9, 9))
    assert (whole.num_items, some.num_items) == (30, 9)
    assert np.array_equal(some.input_ids, again.input_ids)
    assert not np.array_equal(some.input_ids, whole.input_ids[: len(some.input_ids)])


def test_a_task_that_is_not_there(places, tmp_path):
    with pytest.raises(UserError, match="no such task.*RTE"):
        finetune(places, tmp_path, "rte")


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_figures_are_those_of_the_tasks(share):
    random = np.random.default_rng(5)
    for found_share in (0.0, 0.4, 1.0):
        gold, found = (
            "".join(map(str, (random.random(50) < each).astype(int)))
            for each in (share, found_share)
        )
        expected = label_metrics([*gold], [*found], ["0", "1"])
        figures = finetuning.two_label_figures(gold, found)
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
    found = finetuning.compared({"criterion": "accuracy", "gold": gold, "arms": arms})
    assert (found["pre-trained"], found["untrained"]) == (1.0, 0.25)
    assert found["difference"] == 0.75
    assert 0.65 < found["low"] < 0.75 < found["high"] < 0.85
    json.dumps(found)


def test_there_is_no_difference_before_there_are_both():
    arms = {"pre-trained": [{"seed": 0, "predictions": "01"}], "untrained": []}
    assert finetuning.compared({"criterion": "accuracy", "gold": "01", "arms": arms}) is None
