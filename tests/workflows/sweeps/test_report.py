import json
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
)

from workflows.finetune import parse
from workflows.paper.paper_table import PaperRow, PaperTable
from workflows.sweeps.findings import sweep_findings
from workflows.sweeps.report import (
    IMPORTANCE,
    PICTURES,
    best_settings,
    summary_lines,
    write_sweep_report,
)

ALL = {"report.html", "report.md", "report.json", "best.yaml", *PICTURES}


def names_in(folder):
    return {each.name for each in folder.iterdir()}


@pytest.mark.parametrize("name", OUTCOMES)
def test_every_sweep_has_its_report(name, tmp_path):
    findings = write_sweep_report(OUTCOMES[name](), tmp_path / "report")
    expected = ALL if findings.points else {"report.html", "report.md", "report.json"}
    expected = expected - {IMPORTANCE} if name == "one_axis" else expected
    assert names_in(tmp_path / "report") == expected
    markdown = (tmp_path / "report" / "report.md").read_text()
    assert all(f"]({each})" in markdown for each in expected & set(PICTURES))
    for each in expected & set(PICTURES):
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
    assert "# Sweep &lt;img src=x&gt;" in text


def test_the_screen_shows_what_counts(tmp_path):
    lines = summary_lines(sweep_findings(paper_grid()), tmp_path)
    text = "\n".join(lines)
    assert lines[0].startswith("trials       18 settings") and lines[1].startswith("best         ")
    assert "failed       mrpc-" in text and f"report       {tmp_path / 'report.html'}" in text
    text = "\n".join(summary_lines(sweep_findings(not_begun()), tmp_path))
    assert "No trial has a score" in text and "best.yaml" not in text
