import re

import pytest
from drawn_words import cut_off, marks, words_of
from made_up_sweeps import OUTCOMES, made_up_outcome, made_up_trial, paper_grid, random_search

from workflows.sweeps.findings import sweep_findings
from workflows.sweeps.parallel import parallel_picture

SCORED = [name for name, make in OUTCOMES.items() if sweep_findings(make()).points]


def ends(picture):
    """By rank the first and the last place of a line, each as x and y."""
    found = {}
    for each in marks(picture, "line"):
        numbers = [float(number) for number in re.findall(r"[\d.]+", each[2].get("d", ""))]
        found[int(each.get("data-point", ""))] = (numbers[:2], numbers[-2:])
    return found


@pytest.mark.parametrize("upright", [True, False])
@pytest.mark.parametrize("name", SCORED)
def test_no_word_is_cut_off(name, upright):
    assert cut_off(parallel_picture(sweep_findings(OUTCOMES[name]()), upright=upright)) == []


@pytest.mark.parametrize("upright", [True, False])
def test_many_axes_with_long_names_fit(upright):
    point = {f"section.a_setting_with_a_long_name_{index}": index for index in range(7)}
    trials = [made_up_trial(point | {"epochs": epochs}, 0) for epochs in (2, 3)]
    picture = parallel_picture(sweep_findings(made_up_outcome(trials)), upright=upright)
    assert cut_off(picture) == []
    titles = [each for each in words_of(picture) if each[0].startswith(("a_s", "sec"))]
    for (_, _, right, first), (_, left, _, second) in zip(titles, titles[1:], strict=False):
        assert first != second or right <= left, "titles stand apart"


def test_every_point_is_a_line_and_the_best_is_drawn_last():
    picture = parallel_picture(sweep_findings(paper_grid()), upright=True)
    lines = marks(picture, "line")
    assert [int(each.get("data-point", "")) for each in lines] == list(range(18, 0, -1))
    assert [each.get("class") for each in lines].count("line best") == 1
    assert lines[-1].get("class") == "line best"


def test_lines_end_at_their_score_the_better_the_higher():
    picture = parallel_picture(sweep_findings(paper_grid()), upright=True)
    heights = [end[1] for _, (_, end) in sorted(ends(picture).items())]
    assert heights == sorted(heights) and len({round(each) for each in heights}) > 10
    lying = parallel_picture(sweep_findings(paper_grid()), upright=False)
    places = [end[0] for _, (_, end) in sorted(ends(lying).items())]
    assert places == sorted(places, reverse=True)


def test_lines_with_the_same_value_do_not_lie_on_each_other():
    found = ends(parallel_picture(sweep_findings(paper_grid()), upright=True))
    begins = [begin[1] for begin, _ in found.values()]
    assert len(set(begins)) == 18
    batch_sizes = [each.point["batch_size"] for each in sweep_findings(paper_grid()).points]
    small = [found[rank + 1][0][1] for rank, size in enumerate(batch_sizes) if size == 16]
    large = [found[rank + 1][0][1] for rank, size in enumerate(batch_sizes) if size == 32]
    assert max(large) < min(small), "values stand apart, the larger higher"


def test_numbers_from_a_range_cross_where_they_are():
    findings = sweep_findings(random_search())
    found = ends(parallel_picture(findings, upright=True))
    by_rate = sorted(findings.points, key=lambda each: each.point[findings.outcome.axes[0]])
    heights = [found[each.rank][0][1] for each in by_rate]
    assert heights == sorted(heights, reverse=True)
