from dataclasses import replace

import pytest
from made_up_sweeps import (
    GRID,
    RATE,
    everything_failed,
    made_up_outcome,
    made_up_trial,
    not_begun,
    one_axis,
    paper_grid,
    random_search,
    single_seed,
)

from workflows.sweeps.findings import sweep_findings
from workflows.sweeps.words import (
    counts,
    described,
    dots_words,
    headline,
    importance_words,
    lines_words,
    method,
    paper_words,
    verdict,
)


def of_scores(*scores):
    """The findings of a sweep whose points have these scores of their seeds."""
    trials = [
        replace(made_up_trial({"epochs": number + 2}, seed), score=score)
        for number, some in enumerate(scores)
        for seed, score in enumerate(some)
    ]
    return sweep_findings(made_up_outcome(trials))


def test_the_state_of_a_sweep_is_told():
    assert (
        counts(sweep_findings(paper_grid()))
        == "18 settings, 2 seeds, 36 trials: 34 finished, 1 failed, 1 missing"
    )
    assert counts(sweep_findings(not_begun())).endswith("36 trials: 0 finished, 36 missing")
    stopped = replace(made_up_trial(GRID[0], 0), stopped_early=True)
    findings = sweep_findings(made_up_outcome([stopped]))
    assert counts(findings) == "1 setting, 1 seed, 1 trial: 1 finished, 1 of them stopped early"
    assert any("(†)" in each for each in method(findings))
    assert "3,668 training examples, 408 dev examples" in described(findings)


def test_the_best_setting_is_named_with_its_score():
    said = headline(of_scores((0.8, 0.81), (0.9, 0.92)))
    assert said == "epochs 3: F1 91.00 ± 1.41 on dev, 2 seeds"
    assert headline(sweep_findings(everything_failed())).startswith("No trial has a score")


def test_one_seed_says_nothing_about_luck():
    (said,) = verdict(of_scores((0.80,), (0.90,)))
    assert said.startswith("One seed of each setting does not say how far a seed alone moves")
    assert "the runner-up (epochs 2) is 10.00 points behind" in said
    (said,) = verdict(of_scores((0.80, 0.80), (0.90, 0.90)))
    assert said.startswith("These seeds do not say")


def test_a_clear_winner_is_called_one():
    (said,) = verdict(of_scores((0.80, 0.81, 0.80), (0.90, 0.91, 0.90)))
    assert said.startswith("It can be told from the other setting with 95 % confidence")
    (said,) = verdict(sweep_findings(one_axis()))
    assert said.startswith("It can be told from both others")


def test_settings_that_are_level_are_counted_and_the_cheapest_named():
    findings = of_scores((0.896, 0.904), (0.50, 0.51), (0.901, 0.909))
    first, cheapest, seeds = verdict(findings)
    assert first.startswith("These seeds cannot tell it from 1 of the 2 others (marked as level)")
    assert "the runner-up (epochs 2) is 0.50 points behind" in first
    assert cheapest.startswith("The cheapest of those takes 5")
    assert cheapest.endswith("of its time: epochs 2, 0.50 points behind.")
    assert "seeds of each would tell the first two apart" in seeds


def test_no_absurd_number_of_seeds_is_proposed():
    said = verdict(of_scores((0.9000, 0.9080), (0.9001, 0.9081)))
    assert not any("seeds of each would" in each for each in said)


def test_there_may_be_nothing_to_compare():
    assert verdict(of_scores((0.9,))) == [
        "There is no other setting with a score to compare it with."
    ]
    assert verdict(sweep_findings(not_begun())) == []


def test_importances_say_how_they_were_found():
    said = " ".join(importance_words(sweep_findings(random_search())))
    assert "peak_learning_rate, hidden_dropout_prob: neighbouring values" in said
    assert "Left out here: 1 setting far below" in said and "noise of seeds" not in said
    said = " ".join(importance_words(sweep_findings(paper_grid())))
    assert "neighbouring" not in said and "holes" not in said
    assert "The noise of seeds alone accounts for" in said


def test_scores_far_off_are_told():
    for words in (lines_words, dots_words):
        said = words(sweep_findings(random_search()))
        assert said.endswith(" 1 trial far below the others lies at the edge.")
        assert "edge" not in words(sweep_findings(single_seed()))


@pytest.mark.parametrize(("task", "said"), [("mrpc", ""), ("docs_library", "no figure")])
def test_a_task_without_published_figures_is_told(task, said):
    trial = made_up_trial({RATE: 3e-5}, 0)
    words = paper_words(sweep_findings(made_up_outcome([trial], task=task)))
    assert said in words and bool(said) == bool(words)
