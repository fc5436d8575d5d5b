import json
import re
import shutil

import pytest
from made_up_ablations import OUTCOMES, half_way, masking, not_begun, objective, size
from read_pages import Page as ReadPage

from workflows.ablations.findings import ablation_findings
from workflows.ablations.report import (
    FIGURES,
    as_json,
    curve_figures,
    difference_table,
    pretraining_table,
    score_figure,
    summary_lines,
    write_ablation_report,
)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The folder of each outcome's report, with its findings, by the outcome's name."""
    root = tmp_path_factory.mktemp("reports")
    return {
        name: (root / name, write_ablation_report(outcome(), root / name))
        for name, outcome in OUTCOMES.items()
    }


def test_a_page_has_only_sections_with_content(reports):
    def titles(name):
        text = (reports[name][0] / "report.md").read_text()
        return re.findall("^## (.*)", text, re.MULTILINE)

    assert titles("objective") == [
        "Table 5: the objective of pre-training",
        "Scores of all seeds",
        "Differences from MLM + NSP",
        "Pre-training",
        "Cost",
    ]
    assert titles("not_begun") == [
        "Table 5: the objective of pre-training", "Pre-training", "Cost", "Failed and missing"
    ]  # fmt: skip
    assert titles("half_way")[-1] == "Failed and missing"


@pytest.mark.parametrize("name", OUTCOMES)
def test_the_files_are_complete_and_name_no_path(name, reports):
    folder, findings = reports[name]
    names = {file.name for file in folder.iterdir()}
    assert {"report.html", "report.md", "report.json"} <= names
    text = (folder / "report.md").read_text()
    assert set(re.findall(r"\]\((\w+\.svg)\)", text)) == names & set(FIGURES)
    page = ReadPage()
    page.feed((folder / "report.html").read_text())
    assert page.open == [] and page.scripts == 1
    assert all(address.startswith("#") for address in page.addresses)
    for file in folder.iterdir():
        assert "/srv/machine" not in file.read_text()
    content = json.loads((folder / "report.json").read_text())
    assert content["finding"]["here"] and content["study"] == findings.outcome.study


def test_outdated_figures_are_removed(reports, tmp_path):
    folder = shutil.copytree(reports["objective"][0], tmp_path / "report")
    assert (folder / "scores.svg").exists()
    write_ablation_report(not_begun(), folder)
    assert not any((folder / name).exists() for name in FIGURES)


def test_programs_get_every_figure():
    content = as_json(ablation_findings(objective()))
    answers = content["compared"]["docs_answers"]
    assert len(answers["scores"]["mlm"]) == 3 and answers["metric"] == "f1"
    assert answers["differences"]["left_to_right"]["told_apart"] is True
    assert content["variants"][0]["curve"][-1][0] == 2600
    assert content["table"]["rows"][0]["paper"]["QNLI"] == 88.4


def test_the_markdown_has_the_same_tables(reports):
    text = (reports["objective"][0] / "report.md").read_text()
    assert "| MLM + NSP (BERT base) | 61.69 ± 0.56 |" in text
    assert "**−9.27 ± " in text and "**−0.29" not in text
    assert "&lt;b&gt;out&lt;/b&gt;" in (reports["half_way"][0] / "report.md").read_text()


def column(table, name):
    return [row[list(table.columns).index(name)] for row in table.cells]


def test_a_difference_is_strong_where_seeds_do_not_explain_it():
    table = difference_table(ablation_findings(objective()))
    assert list(table.columns) == ["variant", "docs_library", "docs_parameters", "docs_answers"]
    mlm, left_to_right = table.cells
    assert [cell.strong for cell in left_to_right] == [False, False, True, True]
    assert mlm[1].text.startswith("+0.06 ± ") and left_to_right[0].text == "left to right"
    table = difference_table(ablation_findings(masking()))
    papers = [cell.text for cell in column(table, "MNLI, paper")]
    assert papers[0] == "+0.1" and papers[-1] == "−0.6"
    assert difference_table(ablation_findings(half_way())).cells[1][1].text == "–"


def test_the_pre_trainings_have_their_perplexity_beside_the_papers():
    table = pretraining_table(ablation_findings(size()))
    papers = [cell.text for cell in column(table, "perplexity, paper")]
    assert papers == ["4.68", "5.24", "3.99", "3.54", "3.23"]
    table = pretraining_table(ablation_findings(objective()))
    assert "L/H/A" in table.columns and "perplexity, paper" not in table.columns
    assert [cell.text for cell in column(table, "next sentence")] == ["67.0%", "–", "–"]
    assert column(table, "loss")[2].text == "4.770", "of next tokens"
    assert "next tokens" in column(table, "predicts")[2].text


def test_every_seed_is_drawn_and_masked_and_next_tokens_apart():
    findings = ablation_findings(objective())
    svg = score_figure(findings, findings.tasks[2]).svg
    assert svg.count("<title>") == 2 * 3, "a mean and the dots of each variant"
    masked, following = curve_figures(findings)
    assert masked.svg.count("<title>") == 2 and following.svg.count("<title>") == 1
    assert "left to right" in following.svg and "left to right" not in masked.svg
    assert len(curve_figures(ablation_findings(half_way()))) == 1


def test_the_summary_says_what_failed(tmp_path):
    lines = summary_lines(ablation_findings(half_way()), tmp_path)
    failed = [each for each in lines if each.startswith("failed ")]
    assert len(failed) == 2 and "not finite" in failed[0]
    assert lines[-1] == f"report       {tmp_path / 'report.html'}"
    assert any(each.startswith("here         0 of 1 difference ") for each in lines)
