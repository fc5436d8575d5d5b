import copy
from dataclasses import replace

import pytest
import torch
from encoder_corpus import RECIPE, CountingClock, write_all

from benchmarks.encoder_run import pretraining as stage
from benchmarks.encoder_run.clock import Clock
from bert_core.errors import UserError
from bert_core.model_folder import load_model_folder

CPU = torch.device("cpu")
OF_TIME = {"seconds", "evaluation_seconds"}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("text"))[0]


def run(shards, folder, *, steps=23, clock=None, every=600.0, recipe=RECIPE, report=lambda _: None):
    training = stage.Pretraining(recipe, shards, CPU, folder)
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


def test_it_learns_and_every_step_is_in_the_curve(shards, tmp_path):
    training, finished = run(shards, tmp_path, steps=90)
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


def test_a_long_curve_has_points_of_several_steps(shards, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "POINTS", 10)
    record = run(shards, tmp_path, steps=34)[0].record
    assert [point["step"] for point in record["curve"]] == [*range(4, 34, 4), 34]
    evaluated = [point["step"] for point in record["heldout"]]
    assert evaluated == [0, *range(4, 34, 4), 34]


def test_what_is_out_of_time_goes_on_to_the_same_weights(shards, tmp_path):
    whole, _ = run(shards, tmp_path / "whole")
    for looks in (7, 9):  # so that it stops in the eighth step, then in the tenth from there on
        stopped, finished = run(shards, tmp_path / "parts", clock=CountingClock(looks))
        assert not finished
    assert stopped.record["step"] == 18
    resumed, finished = run(shards, tmp_path / "parts")
    assert finished
    assert without_times(resumed.record) == without_times(whole.record)
    assert same_weights(resumed.model, whole.model)


def test_what_is_killed_goes_on_from_its_last_checkpoint(shards, tmp_path):
    whole, _ = run(shards, tmp_path / "whole")

    def die(record):
        if record["step"] >= 11:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(shards, tmp_path / "parts", every=0.0, report=die)
    resumed, _ = run(shards, tmp_path / "parts")
    assert without_times(resumed.record) == without_times(whole.record)
    assert same_weights(resumed.model, whole.model)


def test_the_number_of_steps_follows_from_the_rate(shards, tmp_path, monkeypatch):
    monkeypatch.setattr(stage.Pretraining, "_rate", lambda *_: 5.0)
    monkeypatch.setattr(stage.Pretraining, "_train", lambda *_: True)
    clock = Clock(1, 0.5)
    monkeypatch.setattr(clock, "pretraining_seconds", lambda: 20.0)
    record = run(shards, tmp_path, steps=None, clock=clock)[0].record
    left = 20 - len(stage.EVALUATED_SHARES) * record["evaluation_seconds"]
    assert record["total_steps"] == int(0.97 * 5 * left)


def test_measuring_the_rate_teaches_nothing(shards, tmp_path):
    training = stage.Pretraining(RECIPE, shards, CPU, tmp_path)
    before = copy.deepcopy(training.model)
    assert training._rate(0.2) > 0
    assert same_weights(training.model, before)
    assert not training.state.optimizer.state and not training.state.step


def test_a_checkpoint_of_other_settings_is_left_alone(shards, tmp_path):
    run(shards, tmp_path, clock=CountingClock(3))
    with pytest.raises(UserError, match="a checkpoint of other settings or text"):
        run(shards, tmp_path, recipe=replace(RECIPE, seed=1))
