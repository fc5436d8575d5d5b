import json
import re
import shutil
from dataclasses import replace
from xml.etree import ElementTree

import pytest
import yaml
from read_pages import Page as ReadPage
from sweep_runs import (
    GRID,
    OUTCOMES,
    RATE,
    everything_failed,
    made_up_outcome,
    made_up_trial,
    paper_grid,
    without_score,
)

from workflows.finetune import parse
from workflows.paper.published import PaperRow, PaperTable
from workflows.sweeps.figures import AxisScale, curve_figure
from workflows.sweeps.findings import sweep_findings
from workflows.sweeps.report import (
    FIGURES,
    MOST_SEED_COLUMNS,
    best_settings,
    best_yaml,
    point_table,
    summary_lines,
    troubles,
    write_sweep_report,
)

ALL = {"report.html", "report.md", "report.json", "best.yaml", *FIGURES}


def names_in(folder):
    return {path.name for path in folder.iterdir()}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The folder of each outcome's report, with its findings, by the outcome's name."""
    root = tmp_path_factory.mktemp("reports")
    return {
        name: (root / name, write_sweep_report(outcome(), root / name))
        for name, outcome in OUTCOMES.items()
    }


@pytest.mark.some(2)
@pytest.mark.parametrize("name", OUTCOMES)
def test_every_sweep_has_its_report(name, reports):
    folder, findings = reports[name]
    expected = ALL if findings.points else {"report.html", "report.md", "report.json"}
    expected = expected - {"importance.svg"} if name == "one_axis" else expected
    assert names_in(folder) == expected
    markdown = (folder / "report.md").read_text()
    for figure in expected & set(FIGURES):
        assert f"]({figure})" in markdown
        ElementTree.parse(folder / figure)
    content = json.loads((folder / "report.json").read_text())
    assert len(content["trials"]) == len(findings.outcome.trials)

    text, page = (folder / "report.html").read_text(), ReadPage()
    page.feed(text)
    assert page.open == [] and all(address.startswith("#") for address in page.addresses)
    assert not re.search(r"@import|url\((?!#)", text)
    ranks = [str(rank) for rank in range(1, len(findings.points) + 1)]
    assert re.findall(r'<tr[^>]* data-key="(\d+)"', text) == ranks
    for rank in ranks:
        assert text.count(f'<g data-key="{rank}">') >= 3, "the marks of a setting know its row"
    if ranks:  # the best setting is drawn last, above the others
        drawn = re.findall(r'data-key="(\d+)"', (folder / "parallel.svg").read_text())
        assert drawn == ranks[::-1]
        drawn = re.findall(r'data-key="(\d+)"', (folder / "axes.svg").read_text())
        assert drawn == ranks[::-1] * len(findings.outcome.axes)
    for file in folder.iterdir():
        assert "/data/some" not in file.read_text() and "/srv" not in file.read_text()


def test_best_yaml_trains_the_best_trial_again(reports):
    folder, findings = reports["paper_grid"]
    best, path = findings.best_trial, folder / "best.yaml"
    comment, _, _ = path.read_text().partition("\n")
    assert comment.startswith("# the best setting of the sweep mrpc-sweep-1f2e3d4c: python ")
    settings = parse(["--preset", str(path), "--data", "d", "--model", "m"])
    assert (settings.task, settings.seed) == ("mrpc", best.seed)
    assert settings.epochs == best.point["epochs"]
    assert settings.optimizer.peak_learning_rate == best.point[RATE]
    given = ["--task", "mrpc", "--data", "d", "--model", "m", "--seed", str(best.seed)]
    for name, value in best.point.items():
        given += [f"--{name}", str(value)]
    assert settings.recipe() == parse(given).recipe(), "so the run has the trial's name"

    folder, findings = reports["random_search"]  # values of a range keep all digits
    settings = parse(["--preset", str(folder / "best.yaml"), "--data", "d", "--model", "m"])
    assert settings.optimizer.peak_learning_rate == findings.best.point[RATE]


def test_best_yaml_has_only_settings_of_a_run():
    outcome = paper_grid()
    more = {"axis": ["epochs=2,3"], "seeds": 2, "name": "sweep", "storage": "/data/storage"}
    odd = replace(outcome, settings=outcome.settings | more, name="a\nepochs: 99\nb")
    findings = sweep_findings(odd)
    assert best_settings(findings).keys() == outcome.settings.keys()
    text = best_yaml(findings)
    assert text.startswith("#") and yaml.safe_load(text)["epochs"] != 99


def test_outdated_files_are_removed(reports, tmp_path):
    folder = shutil.copytree(reports["one_axis"][0], tmp_path / "report")
    (folder / "loss.png").write_text("another's")
    write_sweep_report(everything_failed(), folder)
    assert names_in(folder) == {"report.html", "report.md", "report.json", "loss.png"}


def test_json_has_all_figures(tmp_path):
    trials = [made_up_trial(point, seed) for point in GRID[:3] for seed in (0, 1)]
    first, *rest = trials[0].curve
    broken = replace(trials[0], curve=(replace(first, dev_loss=float("inf")), *rest))
    table = PaperTable("Table 5", ("MNLI-m",), (PaperRow("no NSP", {}, {"MNLI-m": 83.9}),))
    write_sweep_report(made_up_outcome([broken, *trials[1:]]), tmp_path, beside_paper=table)
    text = (tmp_path / "report.json").read_text()
    content = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert content["best"]["point"] == content["points"][0]["point"]
    assert content["best"]["settings"]["task"] == "mrpc"
    assert content["points"][0]["level"] is True and content["seed_noise"]["deviation"] > 0
    assert set(content["importances"]) == set(GRID[0])
    assert content["trials"][0]["curve"][0]["dev_loss"] is None
    assert [each["title"] for each in content["beside_paper"]] == ["Table 5", "Beside the paper"]
    assert content["device_hours"]["cpu"] == pytest.approx(sum(e.device_hours for e in trials))
    assert "## Table 5" in (tmp_path / "report.md").read_text()


def test_names_are_escaped(reports):
    folder, _ = reports["with_odd_names"]
    text = (folder / "report.md").read_text()
    table = [line for line in text.splitlines() if line.startswith("| ")]
    assert "<script>" not in text and "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert any('a"b\\|c' in line for line in table)
    assert "<script>alert" not in (folder / "report.html").read_text()
    assert "# Sweep &lt;img src=x&gt;" in text


def test_summary_for_the_terminal(reports, tmp_path):
    lines = summary_lines(reports["paper_grid"][1], tmp_path)
    text = "\n".join(lines)
    assert lines[0].startswith("trials       18 settings") and lines[1].startswith("best         ")
    assert "failed       mrpc-" in text and f"report       {tmp_path / 'report.html'}" in text
    text = "\n".join(summary_lines(reports["not_begun"][1], tmp_path))
    assert "No trial has a score" in text and "best.yaml" not in text


def test_a_page_has_only_sections_with_content(reports):
    def titles(name):
        text = (reports[name][0] / "report.md").read_text()
        return re.findall("^## (.*)", text, re.MULTILINE)

    assert titles("paper_grid") == [
        "Best setting", "Beside the paper", "Settings", "Parallel coordinates", "Scores by axis",
        "Importance", "Learning curves", "Cost", "Failed and missing",
    ]  # fmt: skip
    assert titles("not_begun") == ["Settings", "Cost", "Failed and missing"]
    assert "Importance" not in titles("one_axis")


def test_the_table_has_the_score_of_each_seed():
    findings = sweep_findings(paper_grid())
    table = point_table(findings)
    texts = [[cell.text for cell in row] for row in table.cells]
    assert all(len(text) == len(table.columns) for text in texts)
    assert list(table.columns[:9]) == [
        "rank", "F1", "level", "batch_size", "peak_learning_rate", "epochs", "seeds", "seed 0",
        "seed 1",
    ]  # fmt: skip
    assert sum("failed" in text for text in texts) == sum("missing" in text for text in texts) == 1
    best = findings.points[0]
    assert texts[0][0] == "1" and texts[0][2] == "yes" and table.rows[0].highlighted
    assert texts[0][7:9] == [f"{100 * score:.2f}" for score in best.scores.scores]
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


def test_failed_and_missing_trials():
    failed, missing = troubles(sweep_findings(paper_grid()))
    assert failed[1:] == (
        "batch_size 16, peak_learning_rate 5e-5, epochs 4, seed 1",
        "out of memory: lower --max_tokens from 4096",
    )
    assert "2 epochs done" in missing[2]


def test_scale_of_an_axis():
    few = AxisScale.of([2, 3, "x"])
    assert [few.share(value) for value in few.values] == pytest.approx([1 / 6, 1 / 2, 5 / 6])
    numbers = [10.0**power for power in range(-9, 0)]
    scale = AxisScale.of(numbers)
    assert scale.is_log and scale.share(1e-5) == pytest.approx(0.5)
    assert [text for _, text in scale.ticks(3)] == ["1e-9", "1e-5", "0.1"]
    assert not AxisScale.of(list(range(1, 12))).is_log
    assert AxisScale.of(list(range(12))).share(11) == 1.0, "zero has no logarithm"


def test_outliers_are_drawn_at_the_edge_and_counted(reports):
    text = (reports["random_search"][0] / "report.md").read_text()
    assert text.count("1 outlier at the edge") == 2 and "1 setting" in text


def test_the_best_curve_is_drawn_last():
    findings = sweep_findings(paper_grid())
    curves = curve_figure(findings, "score").svg
    ranks = range(1, len(findings.points) + 1)
    assert curves.rindex('data-key="1"') > max(curves.find(f'data-key="{rank}"') for rank in ranks)


def test_the_dot_of_a_curve_stands_at_the_best_part_of_an_epoch():
    """A trial's result rounds the epoch, its curve does not."""
    trial = made_up_trial(GRID[0], 0)
    early, last = (
        replace(each, epoch=epoch)
        for each, epoch in zip(trial.curve[:2], (20 / 37, 40 / 37), strict=True)
    )

    def drawn(best_epoch):
        changed = replace(trial, curve=(early, last), best_epoch=best_epoch)
        return curve_figure(sweep_findings(made_up_outcome([changed])), "score").svg

    assert drawn(round(20 / 37, 4)) != drawn(round(40 / 37, 4)) == drawn(None)
