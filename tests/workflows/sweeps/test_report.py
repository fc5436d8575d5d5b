import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import yaml
from made_up_sweeps import (
    GRID,
    OUTCOMES,
    RATE,
    everything_failed,
    made_up_outcome,
    made_up_trial,
    not_begun,
    paper_grid,
    random_search,
    with_odd_names,
    without_score,
)
from read_pages import Page as ReadPage

from workflows.finetune import parse
from workflows.paper.paper_table import PaperRow, PaperTable
from workflows.sweeps.figures import AxisScale, axis_figure, curve_figure, parallel_figure
from workflows.sweeps.findings import sweep_findings
from workflows.sweeps.report import (
    FIGURES,
    MOST_SEED_COLUMNS,
    best_settings,
    best_yaml,
    point_table,
    summary_lines,
    sweep_page,
    troubles,
    write_sweep_report,
)

ALL = {"report.html", "report.md", "report.json", "best.yaml", *FIGURES}


def names_in(folder):
    return {each.name for each in folder.iterdir()}


@pytest.mark.parametrize("name", OUTCOMES)
def test_every_sweep_has_its_report(name, tmp_path):
    findings = write_sweep_report(OUTCOMES[name](), tmp_path / "report")
    expected = ALL if findings.points else {"report.html", "report.md", "report.json"}
    expected = expected - {"importance.svg"} if name == "one_axis" else expected
    assert names_in(tmp_path / "report") == expected
    markdown = (tmp_path / "report" / "report.md").read_text()
    assert all(f"]({each})" in markdown for each in expected & set(FIGURES))
    for each in expected & set(FIGURES):
        ElementTree.parse(tmp_path / "report" / each)
    content = json.loads((tmp_path / "report" / "report.json").read_text())
    assert len(content["trials"]) == len(findings.outcome.trials)


def test_best_yaml_trains_the_best_trial_again(tmp_path):
    outcome = paper_grid()
    findings = write_sweep_report(outcome, tmp_path)
    best, path = findings.best_trial, tmp_path / "best.yaml"
    assert best is not None
    comment, _, _ = path.read_text().partition("\n")
    assert comment.startswith("# the best setting of the sweep mrpc-sweep-1f2e3d4c: python ")
    settings = parse(["--preset", str(path), "--data", "d", "--model", "m"])
    assert (settings.task, settings.seed) == ("mrpc", best.seed)
    assert settings.epochs == best.point["epochs"]
    assert settings.batch_size == best.point["batch_size"]
    assert settings.optimizer.peak_learning_rate == best.point[RATE]
    asked = ["--task", "mrpc", "--data", "d", "--model", "m", "--seed", str(best.seed)]
    for name, value in best.point.items():
        asked += [f"--{name}", str(value)]
    assert settings.recipe() == parse(asked).recipe(), "so the run has the trial's name"


def test_values_of_a_range_are_kept_to_the_last_digit(tmp_path):
    findings = write_sweep_report(random_search(), tmp_path)
    assert findings.best is not None
    settings = parse(["--preset", str(tmp_path / "best.yaml"), "--data", "d", "--model", "m"])
    assert settings.optimizer.peak_learning_rate == findings.best.point[RATE]


def test_what_is_no_setting_of_a_run_is_left_out():
    outcome = paper_grid()
    more = {"axis": ["epochs=2,3"], "seeds": 2, "name": "sweep", "storage": "/data/storage"}
    findings = sweep_findings(replace(outcome, settings=outcome.settings | more))
    assert best_settings(findings).keys() == outcome.settings.keys()


def test_an_odd_name_stays_within_the_comment(tmp_path):
    outcome = replace(paper_grid(), name="a\nepochs: 99\nb")
    write_sweep_report(outcome, tmp_path)
    text = (tmp_path / "best.yaml").read_text()
    assert text.count("#") >= 1 and yaml.safe_load(text)["epochs"] != 99


def test_what_no_longer_holds_is_removed(tmp_path):
    write_sweep_report(paper_grid(), tmp_path)
    (tmp_path / "loss.png").write_text("another's")
    write_sweep_report(everything_failed(), tmp_path)
    assert names_in(tmp_path) == {"report.html", "report.md", "report.json", "loss.png"}


def test_programs_get_everything(tmp_path):
    trials = [made_up_trial(point, seed) for point in GRID[:3] for seed in (0, 1)]
    first, *rest = trials[0].curve
    broken = replace(trials[0], curve=(replace(first, dev_loss=float("inf")), *rest))
    table = PaperTable("Table 5", ("MNLI-m",), (PaperRow("no NSP", {}, {"MNLI-m": 83.9}),))
    write_sweep_report(made_up_outcome([broken, *trials[1:]]), tmp_path, beside_paper=table)

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    text = (tmp_path / "report.json").read_text()
    content = json.loads(text, parse_constant=refuse)
    assert content["best"]["point"] == content["points"][0]["point"]
    assert content["best"]["settings"]["task"] == "mrpc"
    assert content["points"][0]["level"] is True and content["seed_noise"]["deviation"] > 0
    assert set(content["importances"]) == set(GRID[0])
    assert content["trials"][0]["curve"][0]["dev_loss"] is None
    assert [each["title"] for each in content["beside_paper"]] == ["Table 5", "Beside the paper"]
    assert content["device_hours"]["cpu"] == pytest.approx(sum(e.device_hours for e in trials))
    assert "## Table 5" in (tmp_path / "report.md").read_text()


def test_no_path_of_the_machine_is_in_the_files(tmp_path):
    write_sweep_report(with_odd_names(), tmp_path)
    for each in tmp_path.iterdir():
        assert "/data/some" not in each.read_text() and "/srv" not in each.read_text()


def test_markdown_takes_names_for_words(tmp_path):
    write_sweep_report(with_odd_names(), tmp_path)
    text = (tmp_path / "report.md").read_text()
    table = [line for line in text.splitlines() if line.startswith("| ")]
    assert "<script>" not in text and "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert any('a"b\\|c' in line for line in table)
    assert "<script>alert" not in (tmp_path / "report.html").read_text()
    assert "# Sweep &lt;img src=x&gt;" in text


def test_the_screen_shows_what_counts(tmp_path):
    lines = summary_lines(sweep_findings(paper_grid()), tmp_path)
    text = "\n".join(lines)
    assert lines[0].startswith("trials       18 settings") and lines[1].startswith("best         ")
    assert "failed       mrpc-" in text and f"report       {tmp_path / 'report.html'}" in text
    text = "\n".join(summary_lines(sweep_findings(not_begun()), tmp_path))
    assert "No trial has a score" in text and "best.yaml" not in text


@pytest.mark.parametrize("name", OUTCOMES)
def test_the_page_is_well_formed_and_needs_nothing_else(name, tmp_path):
    findings = write_sweep_report(OUTCOMES[name](), tmp_path)
    text, page = (tmp_path / "report.html").read_text(), ReadPage()
    page.feed(text)
    assert page.open == [] and all(each.startswith("#") for each in page.addresses)
    assert not re.search(r"@import|url\((?!#)", text)
    ranks = [str(rank) for rank in range(1, len(findings.points) + 1)]
    assert re.findall(r'<tr[^>]* data-key="(\d+)"', text) == ranks
    for rank in ranks:
        assert text.count(f'<g data-key="{rank}">') >= 3, "the marks of a setting know its row"


def test_a_page_has_only_sections_with_content():
    def titles(outcome):
        findings = sweep_findings(outcome)
        return [each.title for each in sweep_page(findings, [], best_yaml(findings)).sections]

    everything = [
        "Best setting", "Settings", "Parallel coordinates", "Scores by axis", "Importance",
        "Learning curves", "Cost", "Failed and missing",
    ]  # fmt: skip
    assert titles(paper_grid()) == everything
    assert titles(not_begun()) == ["Settings", "Cost", "Failed and missing"]
    assert "Importance" not in titles(OUTCOMES["one_axis"]())


def test_the_table_has_each_seeds_score():
    findings = sweep_findings(paper_grid())
    table = point_table(findings)
    texts = [[cell.text for cell in row] for row in table.cells]
    assert all(len(each) == len(table.columns) for each in texts)
    assert list(table.columns[:9]) == [
        "rank", "F1", "level", "batch_size", "peak_learning_rate", "epochs", "seeds", "seed 0",
        "seed 1",
    ]  # fmt: skip
    assert sum("failed" in each for each in texts) == sum("missing" in each for each in texts) == 1
    best = findings.points[0]
    assert texts[0][0] == "1" and texts[0][2] == "yes" and table.rows[0].highlighted
    assert texts[0][7:9] == [f"{100 * each:.2f}" for each in best.scores.scores]
    orders = [row[1].order for row in table.cells]
    assert orders == sorted(orders, reverse=True)


def test_settings_without_a_score_come_last_and_many_seeds_share_a_column():
    trials = [without_score(made_up_trial(GRID[0], 0)), made_up_trial(GRID[1], 0)]
    table = point_table(sweep_findings(made_up_outcome(trials)))
    assert "level" not in table.columns, "nothing says which are"
    assert table.cells[-1][1].text == "–" and table.rows[-1].key == ""
    trials = [made_up_trial(GRID[0], seed) for seed in range(MOST_SEED_COLUMNS + 1)]
    table = point_table(sweep_findings(made_up_outcome(trials)))
    assert "seed 0" not in table.columns
    assert max(cell.text.count(",") for cell in table.cells[0]) == MOST_SEED_COLUMNS


def test_what_went_wrong_is_named():
    failed, missing = troubles(sweep_findings(paper_grid()))
    assert failed[1:] == (
        "batch_size 16, peak_learning_rate 5e-5, epochs 4, seed 1",
        "out of memory: lower --max_tokens from 4096",
    )
    assert "2 epochs done" in missing[2]


def test_values_lie_where_the_eye_tells_them_apart():
    few = AxisScale.of([2, 3, "x"])
    assert [few.share(each) for each in few.values] == pytest.approx([1 / 6, 1 / 2, 5 / 6])
    numbers = [10.0**power for power in range(-9, 0)]
    scale = AxisScale.of(numbers)
    assert scale.is_log and scale.share(1e-5) == pytest.approx(0.5)
    assert [text for _, text in scale.ticks(3)] == ["1e-9", "1e-5", "0.1"]
    assert not AxisScale.of(list(range(1, 12))).is_log
    assert AxisScale.of(list(range(12))).share(11) == 1.0, "zero has no logarithm"


@pytest.mark.parametrize("outcome", [paper_grid, random_search, with_odd_names])
def test_every_setting_is_drawn_and_the_best_last(outcome):
    findings = sweep_findings(outcome())
    ranks = [str(point.rank) for point in findings.points]
    lines = re.findall(r'data-key="(\d+)"', parallel_figure(findings).svg)
    assert lines == ranks[::-1]
    for axis in findings.outcome.axes:
        dots = re.findall(r'data-key="(\d+)"', axis_figure(findings, axis).svg)
        assert dots == ranks[::-1]
    curves = curve_figure(findings, "score").svg
    assert curves.rindex('data-key="1"') > max(curves.find(f'data-key="{rank}"') for rank in ranks)


def test_an_outlier_is_drawn_at_the_edge_and_counted(tmp_path):
    write_sweep_report(random_search(), tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert text.count("1 outlier at the edge") == 2 and "1 setting" in text
