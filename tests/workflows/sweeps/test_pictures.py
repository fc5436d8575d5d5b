from dataclasses import replace

import pytest
from drawn_words import cut_off, marks, words_of
from made_up_sweeps import (
    GRID,
    OUTCOMES,
    RATE,
    made_up_outcome,
    made_up_trial,
    paper_grid,
    random_search,
    with_odd_names,
)

from workflows.sweeps.findings import sweep_findings
from workflows.sweeps.pictures import (
    CURVES,
    axis_picture,
    axis_scale,
    curve_picture,
    importance_picture,
    num_outside,
    score_bounds,
)
from workflows.vector_charts import Numbers, Places

SCORED = [name for name, make in OUTCOMES.items() if sweep_findings(make()).points]


@pytest.mark.parametrize("name", SCORED)
def test_no_word_is_cut_off(name):
    findings = sweep_findings(OUTCOMES[name]())
    for axis in findings.outcome.axes:
        assert cut_off(axis_picture(findings, axis)) == []
    for field in CURVES:
        assert cut_off(curve_picture(findings, field)) == []
    assert cut_off(importance_picture(findings)) == []


def test_long_titles_are_shortened():
    axis = "dropout.attention_probs_dropout_prob_of_the_whole_encoder"
    trials = [made_up_trial({axis: value}, 0) for value in (0.1, 0.2)]
    findings = sweep_findings(made_up_outcome(trials))
    assert cut_off(axis_picture(findings, axis)) == cut_off(importance_picture(findings)) == []


def test_every_trial_is_a_dot_and_the_best_points_are_marked():
    findings = sweep_findings(paper_grid())
    picture = axis_picture(findings, "batch_size")
    dots = marks(picture, "dot")
    assert len(dots) == 34 and len(marks(picture, "best")) == 2
    assert {each.get("data-point") for each in marks(picture, "best")} == {"1"}
    places = [(each.get("cx"), each.get("cy")) for each in dots]
    assert len(set(places)) == 34, "none hides another"
    assert len(marks(picture, "mean")) == 2
    said = [words for words, *_ in words_of(picture)]
    assert said.index("16") < said.index("32")


def test_higher_scores_stand_higher():
    findings = sweep_findings(paper_grid())
    dots = marks(axis_picture(findings, "epochs"), "dot")
    best = max(each.score or 0 for each in findings.finished)
    (highest,) = [e for e in dots if f": {100 * best:.2f}" in (e[0].text or "")[-12:]]
    assert float(highest.get("cy", "")) == min(float(each.get("cy", "")) for each in dots)


def test_values_with_long_names_have_rows():
    findings = sweep_findings(with_odd_names())
    picture = axis_picture(findings, "strategy")
    heights = {said: y for said, _, _, y in words_of(picture)}
    assert len({heights[name] for name in ("weighted_sum_last_four", 'a"b|c')}) == 2
    assert len(marks(picture, "dot")) == 6 and len(marks(picture, "mean")) == 3


def test_far_values_are_drawn_by_logarithms():
    findings = sweep_findings(random_search())
    found = {axis: [each.point[axis] for each in findings.points] for axis in findings.outcome.axes}
    scales = [axis_scale(sorted(set(values)), 0, 100) for values in found.values()]
    rate, dropout, batch = scales
    assert isinstance(rate, Numbers) and rate.is_log
    assert isinstance(dropout, Numbers) and not dropout.is_log
    assert isinstance(batch, Places) and batch.values == (8, 16, 32, 64)


def test_what_is_far_off_does_not_press_the_others_together():
    findings = sweep_findings(random_search())
    low, high = score_bounds(findings)
    assert num_outside(findings) == 1 and low > 70
    assert high == max(100 * (each.score or 0) for each in findings.finished)


@pytest.mark.parametrize("field", CURVES)
def test_every_trial_has_a_curve_as_far_as_it_came(field):
    findings = sweep_findings(paper_grid())
    picture = curve_picture(findings, field)
    lines = marks(picture, "line")
    assert len(lines) == 35, "of the failed one there is an epoch alone, a dot"
    assert len(marks(picture, "dot")) == 36
    assert len(marks(picture, "best")) == 4, "two trials, a line and a dot each"
    assert len([e for e in marks(picture, "failed") if e.tag == "g"]) == 1
    assert [said for said, *_ in words_of(picture)][-4:] == ["1", "2", "3", "4"]


def test_a_loss_that_is_no_number_is_left_out():
    trial = made_up_trial(GRID[2], 0)
    first, *rest = trial.curve
    broken = replace(trial, curve=(replace(first, dev_loss=float("nan")), *rest))
    findings = sweep_findings(made_up_outcome([broken, made_up_trial(GRID[3], 0)]))
    text = curve_picture(findings, "dev_loss").inline()
    assert "nan" not in text and "inf" not in text


def test_bars_are_as_long_as_what_they_say():
    findings = sweep_findings(paper_grid())
    picture = importance_picture(findings)
    widths = [float(each.get("width", "")) for each in marks(picture, "bar")]
    shares = sorted((each.share for each in findings.importances.values()), reverse=True)
    assert len(widths) == 4 and len(marks(picture, "chance")) == 3
    assert widths[0] / widths[1] == pytest.approx(shares[0] / shares[1], rel=0.01)


def test_a_single_point_is_drawn_too():
    findings = sweep_findings(made_up_outcome([made_up_trial({RATE: 3e-5}, 0)]))
    assert len(marks(axis_picture(findings, RATE), "dot")) == 1
    assert cut_off(importance_picture(findings)) == []
