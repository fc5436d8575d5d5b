import json

from made_up_sweeps import GRID, made_up_trial, without_score

from workflows.sweeps.outcome import TrialOutcome


def test_a_trial_is_read_as_it_was_written(tmp_path):
    finished = made_up_trial(GRID[0], 3)
    for trial in (finished, without_score(finished, "out of memory", epochs=1)):
        path = tmp_path / "trial.json"
        trial.write(path)
        assert TrialOutcome.read(path) == trial
        assert [each.name for each in tmp_path.iterdir()] == ["trial.json"]
        assert json.loads(path.read_text())["point"] == GRID[0]
