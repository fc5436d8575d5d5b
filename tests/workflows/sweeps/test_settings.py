import pytest
import yaml

from bert_core.errors import UserError
from workflows.sweeps.search_space import PAPER_GRID
from workflows.sweeps.settings import SWEEP_FIELDS, trial_settings
from workflows.tune import parse

GIVEN = ["--task", "mrpc", "--data", "data", "--model", "encoder"]
RATE = "optimizer.peak_learning_rate"


def test_the_grid_is_the_papers_by_default():
    settings = parse(GIVEN)
    assert settings.axis == PAPER_GRID and settings.seeds == 1 and settings.search == "grid"
    assert settings.dropout.hidden_dropout_prob == 0.1
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
