import math
import shlex
from dataclasses import replace

import pytest
from sweep_runs import (
    GRID,
    RATE,
    everything_failed,
    made_up_outcome,
    made_up_trial,
    not_begun,
    one_axis,
    paper_grid,
    random_search,
    with_odd_names,
    without_score,
)

from bert_core.errors import UserError
from workflows.finetune import parse
from workflows.sweeps.findings import (
    comparisons,
    counts,
    headline,
    sweep_findings,
    verdict,
)
from workflows.sweeps.outcome import TrialOutcome


def of_scores(*scores):
    """The findings of a sweep whose points have these scores of their seeds."""
    trials = [
        replace(made_up_trial({"epochs": number + 2}, seed), score=score)
        for number, some in enumerate(scores)
        for seed, score in enumerate(some)
    ]
    return sweep_findings(made_up_outcome(trials))


def test_the_points_of_a_grid_come_with_all_their_seeds():
    outcome = paper_grid()
    findings = sweep_findings(outcome)
    assert len(findings.points) == 18 and not findings.unscored
    assert [point.rank for point in findings.points] == list(range(1, 19))
    means = [point.scores.mean for point in findings.points]
    assert means == sorted(means, reverse=True)
    assert all(len(point.trials) == 2 for point in findings.points)
    assert sorted(len(point.scored) for point in findings.points) == [1, 1] + [2] * 16
    assert len(findings.finished) == 34
    assert [each.name for each in findings.failed] == [outcome.trials[5].name]
    assert [each.name for each in findings.missing] == [outcome.trials[-1].name]
    best = findings.best_trial
    assert best is not None and findings.best is not None
    assert best.score == max(findings.best.scores.scores)
    assert findings.repeats == [0, 1]


def test_points_are_the_same_whatever_the_order_of_their_axes():
    first = made_up_trial({RATE: 3e-5, "epochs": 2}, 0)
    second = replace(made_up_trial({"epochs": 2, RATE: 3e-5}, 1), point={"epochs": 2, RATE: 3e-5})
    (point,) = sweep_findings(made_up_outcome([first, second])).points
    assert point.point == {RATE: 3e-5, "epochs": 2} and len(point.scored) == 2


def test_axes_are_called_by_what_tells_them_apart():
    findings = sweep_findings(random_search())
    assert list(findings.axis_titles.values()) == [
        "peak_learning_rate", "hidden_dropout_prob", "batch_size",
    ]  # fmt: skip
    point = {"tagger.dropout": 0.1, "other.dropout": 0.2}
    twins = sweep_findings(made_up_outcome([made_up_trial(point, 0)]))
    assert list(twins.axis_titles) == list(twins.axis_titles.values()) == list(point)
    assert twins.point_text(point) == "tagger.dropout 0.1, other.dropout 0.2"


def test_what_fell_apart_does_not_decide_what_matters():
    findings = sweep_findings(random_search())
    assert findings.num_fallen == 1
    assert findings.importances[RATE].share > 0.5


def test_a_score_that_is_no_number_is_a_failure():
    trials = [made_up_trial(point, 0) for point in GRID[:3]]
    findings = sweep_findings(made_up_outcome([replace(trials[0], score=math.nan), *trials[1:]]))
    assert len(findings.points) == 2
    assert [each.failure for each in findings.failed] == ["its score is no number"]


@pytest.mark.parametrize("outcome", [everything_failed, not_begun])
def test_without_scores_there_is_no_best(outcome):
    findings = sweep_findings(outcome())
    assert findings.best is findings.best_trial is findings.beside_paper is None
    assert not findings.points and findings.unscored and findings.importances == {}


def test_paths_of_the_machine_are_cut():
    trials = [without_score(made_up_trial(GRID[0], 0), "no space at /data/runs/x:\n full")]
    findings = sweep_findings(made_up_outcome(trials, model="/srv/a/model", data="/data/b/MRPC"))
    assert (findings.outcome.model, findings.outcome.data) == ("…/model", "…/MRPC")
    assert findings.failed[0].failure == "no space at …/x: full"


def test_the_command_is_one_that_finetune_understands(tmp_path):
    for outcome in (one_axis(), with_odd_names()):
        findings = sweep_findings(outcome)
        python, program, *arguments = shlex.split(findings.command)
        assert (python, program) == ("python", "workflows/finetune.py")
        (tmp_path / "best.yaml").write_text("task: mrpc\n")
        arguments[arguments.index("best.yaml")] = str(tmp_path / "best.yaml")
        settings = parse(arguments)
        assert (settings.task, settings.data) == ("mrpc", findings.outcome.data)


def test_ours_beside_the_papers_are_those_of_the_best_setting():
    findings = sweep_findings(one_axis())
    assert findings.beside_paper is not None and findings.best is not None
    accuracy = findings.beside_paper.rows[0].ours["accuracy"]
    expected = [100 * each.figures["dev/accuracy"] for each in findings.best.scored]
    assert list(accuracy) == pytest.approx(expected)


def test_a_trial_that_was_stopped_early_has_at_least_its_score_beside_the_paper():
    stopped = replace(made_up_trial(GRID[0], 0), figures={}, stopped_early=True)
    table = sweep_findings(made_up_outcome([stopped])).beside_paper
    assert table is not None and stopped.score is not None
    assert table.rows[2].ours["F1"] == pytest.approx((100 * stopped.score,))
    assert table.rows[0].ours["accuracy"] == ()


def test_what_fell_apart_does_not_hide_the_noise_of_seeds():
    trials = [made_up_trial(point, seed) for point in GRID for seed in (0, 1)]
    alone = sweep_findings(made_up_outcome(trials[2:])).noise_share
    fallen = [replace(trial, score=0.2 + 0.1 * trial.seed) for trial in trials[:2]]
    assert alone == sweep_findings(made_up_outcome([*fallen, *trials[2:]])).noise_share


def test_what_was_in_no_fold_is_dev_of_the_command_again():
    outcome = made_up_outcome([replace(made_up_trial(GRID[0], 0), fold=0)])
    assert sweep_findings(outcome).command.endswith("--split 0.1")
    settings = outcome.settings | {"split": 0.2, "split_seed": 3}
    command = sweep_findings(replace(outcome, settings=settings)).command
    assert command.endswith("--split 0.2 --split_seed 3")


def test_where_the_encoder_is_an_axis_the_command_names_the_best_one():
    trials = [
        made_up_trial({"model": name, RATE: rate}, seed)
        for name, rate in (("small", 1e-6), ("large", 4e-5))
        for seed in (0, 1)
    ]
    findings = sweep_findings(made_up_outcome(trials))
    assert findings.command.endswith("--data glue/MRPC --model large")


def test_the_command_names_all_that_was_read(tmp_path):
    trials = [made_up_trial({"teacher": name}, 0) for name in ("small", "large")]
    files = {"teacher": ("small",), "unlabelled": ("a.txt", "b.txt"), "exclude": ("suspects.csv",)}
    command = sweep_findings(made_up_outcome(trials, files=files)).command
    best = max(trials, key=lambda each: each.score).point["teacher"]
    (tmp_path / "best.yaml").write_text("task: mrpc\n")
    arguments = shlex.split(command.replace("best.yaml", str(tmp_path / "best.yaml")))[2:]
    settings = parse(arguments)
    assert (settings.teacher, settings.exclude) == (best, "suspects.csv")
    assert settings.unlabelled == ("a.txt", "b.txt")


def test_an_outcome_is_read_as_it_was_written(tmp_path):
    trial = made_up_trial(GRID[0], 3)
    trial.write(tmp_path / "trial.json")
    assert TrialOutcome.read(tmp_path / "trial.json") == trial
    (tmp_path / "trial.json").write_text("{}")
    with pytest.raises(UserError, match="damaged outcome of a trial"):
        TrialOutcome.read(tmp_path / "trial.json")


@pytest.mark.parametrize(
    ("scores", "part", "names"),
    [
        (((0.9,),), "nothing to compare", []),
        (((0.80,), (0.90,)), "--seeds 3", ["runner-up"]),
        (((0.80, 0.80), (0.90, 0.90)), "--seeds 3", ["runner-up"]),
        (((0.80, 0.81, 0.80), (0.90, 0.91, 0.90)), "better than all 1 other", ["runner-up"]),
        (
            ((0.896, 0.904), (0.50, 0.51), (0.901, 0.909)),
            "not distinguishable from 1 of 2 others",
            ["runner-up", "cheapest level setting", "seeds to separate the first two"],
        ),
        # Hundreds of seeds are no advice.
        (((0.9000, 0.9080), (0.9001, 0.9081)), "not distinguishable", None),
    ],
)
def test_the_verdict_claims_no_more_than_the_seeds_show(scores, part, names):
    findings = of_scores(*scores)
    assert part in verdict(findings)
    rows = dict(comparisons(findings))
    assert names is None or list(rows) == names
    assert names is not None or "seeds to separate the first two" not in rows


def test_the_best_setting_and_the_state_are_counted():
    assert headline(of_scores((0.8, 0.81), (0.9, 0.92))) == (
        "epochs 3: F1 91.00 ± 1.41 on dev, 2 seeds"
    )
    expected = "18 settings, 2 seeds, 36 trials: 34 finished, 1 failed, 1 missing"
    assert counts(sweep_findings(paper_grid())) == expected
    stopped = replace(made_up_trial(GRID[0], 0), stopped_early=True)
    assert "1 finished, 1 stopped early" in counts(sweep_findings(made_up_outcome([stopped])))
