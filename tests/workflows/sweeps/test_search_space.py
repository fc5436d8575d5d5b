import math

import pytest
import yaml

from bert_core.config import ModelConfig
from bert_core.errors import UserError
from workflows.finetuning.settings import settings_class
from workflows.sweeps.settings import (
    PAPER_GRID,
    SWEEP_FIELDS,
    Choice,
    Proposals,
    Range,
    drawn_points,
    grid,
    read_axis,
    trial_settings,
    with_point,
)
from workflows.tune import parse

MRPC = settings_class("mrpc")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("precision=float32,bfloat16", Choice("precision", ("float32", "bfloat16"))),
        ("cluster.threads_per_worker=null,2", Choice("cluster.threads_per_worker", (None, 2))),
        ("epochs=2..5", Range("epochs", 2, 5, is_log=False, is_integer=True)),
        (
            "optimizer.peak_learning_rate=log:1e-5..1e-3",
            Range("optimizer.peak_learning_rate", 1e-5, 1e-3, is_log=True, is_integer=False),
        ),
        (
            "dropout.hidden_dropout_prob=0..0.3",
            Range("dropout.hidden_dropout_prob", 0.0, 0.3, is_log=False, is_integer=False),
        ),
        ("model=../a,../b", Choice("model", ("../a", "../b"))),
    ],
)
def test_what_an_axis_may_be(text, expected):
    assert read_axis(text, MRPC) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch=2,3", "no setting, did you mean epochs"),
        ("epochs", "without values"),
        ("epochs=", "without values"),
        ("epochs=2,two", "'two' is no value of it"),
        ("epochs=2,2", "given twice"),
        ("epochs=4..2", "without numbers"),
        ("optimizer.peak_learning_rate=log:0..1", "without numbers"),
        ("precision=a..b", "no number"),
        ("optimizer.rate=1", "no setting"),
    ],
)
def test_what_it_may_not_be(text, message):
    with pytest.raises(UserError, match=message) as error:
        read_axis(text, MRPC)
    assert "--axis" in str(error.value) and "\n" not in str(error.value)


def test_a_point_changes_its_fields_alone():
    values = {"epochs": 3, "optimizer": {"name": "adamw", "peak_learning_rate": 1.0}}
    found = with_point(values, {"optimizer.peak_learning_rate": 2.0, "epochs": 4})
    assert found == {"epochs": 4, "optimizer": {"name": "adamw", "peak_learning_rate": 2.0}}
    assert values["optimizer"]["peak_learning_rate"] == 1.0


RATE, DROPOUT = "optimizer.peak_learning_rate", "dropout.hidden_dropout_prob"
AXES = [
    read_axis(each, MRPC)
    for each in (f"{RATE}=log:1e-5..1e-3", f"{DROPOUT}=0..0.3", "batch_size=16,32", "epochs=2..4")
]


def test_the_grid_of_the_paper():
    points = list(grid([read_axis(each, MRPC) for each in PAPER_GRID]))
    assert len(points) == 18
    assert points[0] == {"batch_size": 16, "optimizer.peak_learning_rate": 5e-5, "epochs": 2}
    assert {type(value) for value in points[0].values()} == {int, float}
    assert len({tuple(point.items()) for point in points}) == 18


def test_a_grid_needs_ends():
    with pytest.raises(UserError, match="range"):
        list(grid([read_axis("epochs=2..3", MRPC)]))


def test_points_are_drawn_alike_however_many():
    few, many = drawn_points(AXES, 5, seed=3), drawn_points(AXES, 40, seed=3)
    assert many[:5] == few
    assert drawn_points(AXES, 5, seed=4) != few
    assert len({repr(each) for each in many}) == 40


def test_points_are_drawn_from_their_ranges():
    points = drawn_points(AXES, 300, seed=0)
    rates = [point[RATE] for point in points]
    assert min(rates) >= 1e-5 and max(rates) <= 1e-3
    # Over logarithms: half of them below the geometric mean, where a tenth of the range lies.
    assert 110 < sum(rate < 1e-4 for rate in rates) < 190
    assert all(0 <= point[DROPOUT] <= 0.3 for point in points)
    assert {point["batch_size"] for point in points} == {16, 32}
    assert {point["epochs"] for point in points} == {2, 3, 4}
    assert all(float(f"{rate:.3g}") == rate for rate in rates)


def test_there_are_not_more_points_than_there_are():
    with pytest.raises(UserError, match="no more than 2 different points"):
        drawn_points([read_axis("batch_size=16,32", MRPC)], 3, seed=0)


def good(point):
    """Best at a rate of 1e-4 and a batch size of 16."""
    return -abs(math.log10(point[RATE]) + 4) - 0.3 * (point["batch_size"] == 32)


def test_proposals_come_closer_to_what_is_good():
    pytest.importorskip("optuna")
    proposals = Proposals(AXES, seed=0, num_earlier=0)
    found = []
    for _ in range(40):
        point = proposals.propose()
        found.append(good(point))
        proposals.learn([(point, found[-1])])
    assert sum(found[-10:]) > sum(found[:10]) + 1


def test_proposals_learn_from_what_an_earlier_start_found():
    pytest.importorskip("optuna")
    earlier = [(point, good(point)) for point in drawn_points(AXES, 40, seed=1)]
    taught, fresh = Proposals(AXES, 0, len(earlier)), Proposals(AXES, 0, 0)
    taught.learn(earlier)
    taught_scores = [good(taught.propose()) for _ in range(8)]
    assert sum(taught_scores) > sum(good(fresh.propose()) for _ in range(8))


GIVEN = ["--task", "mrpc", "--data", "data", "--model", "encoder"]


def test_the_grid_is_the_papers_by_default():
    settings = parse(GIVEN)
    assert settings.axis == PAPER_GRID and settings.seeds == 1 and settings.search == "grid"
    assert settings.for_encoder(ModelConfig()).dropout.hidden_dropout_prob == 0.1
    assert settings.tracking.experiment == "sweeps"
    assert settings.options.criterion == "f1"  # the options are those of the task


def test_axes_follow_one_option_or_several():
    together = parse([*GIVEN, "--axis", "epochs=2,3", "batch_size=16", "--seeds", "5"])
    apart = parse([*GIVEN, "--axis", "epochs=2,3", "--seeds", "5", "--axis=batch_size=16"])
    assert together == apart
    assert together.axis == ("epochs=2,3", "batch_size=16") and together.seeds == 5


def test_a_file_may_say_it_all(tmp_path):
    content = {"task": "mrpc", "axis": ["epochs=1,2"], "seeds": 3, "optimizer": {"name": "lamb"}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(content))
    settings = parse(["--preset", str(tmp_path / "sweep.yaml"), *GIVEN[2:], "--seeds", "4"])
    assert (settings.task, settings.axis, settings.seeds) == ("mrpc", ("epochs=1,2",), 4)
    assert settings.optimizer.name == "lamb"


def test_a_trial_has_the_settings_of_the_sweep_but_for_its_point_and_seed():
    settings = parse([*GIVEN, "--name", "mine", "--optimizer.weight_decay", "0.5"])
    trial = trial_settings(settings, {"batch_size": 16, RATE: 1e-4}, seed=7)
    assert (trial.batch_size, trial.optimizer.peak_learning_rate, trial.seed) == (16, 1e-4, 7)
    assert trial.optimizer.weight_decay == 0.5 and trial.name is None
    assert not SWEEP_FIELDS & type(trial).model_fields.keys()
    with pytest.raises(UserError, match="greater than 0"):
        trial_settings(settings, {RATE: 0.0}, seed=0)


def test_more_seeds_and_points_belong_to_the_same_sweep():
    first = parse([*GIVEN, "--axis", "epochs=2,3", "batch_size=16,32"])
    other = parse([*GIVEN, "--axis", "batch_size=16,32", "epochs=2,3", "--seeds", "5"])
    assert first.of_sweep() == other.of_sweep()
    assert first.of_sweep() != parse([*GIVEN, "--axis", "epochs=2,3"]).of_sweep()
