import json
import re

import pytest
from made_up_ablations import OUTCOMES, half_way, not_begun, objective
from read_pages import Page

from workflows.ablations.findings import ablation_findings
from workflows.ablations.report import (
    PICTURES,
    ablation_page,
    markdown_report,
    summary_lines,
    write_ablation_report,
)


def read_page(outcome):
    text, page = ablation_page(ablation_findings(outcome)), Page()
    page.feed(text)
    assert page.open == []
    return text, page


@pytest.mark.parametrize("name", OUTCOMES)
def test_the_page_is_well_formed_and_needs_nothing_else(name):
    text, page = read_page(OUTCOMES[name]())
    assert page.addresses == [] and "<script>" not in text
    assert not re.search(r"https?:|@import|url\(", text)
    assert text.count("prefers-color-scheme: dark") == 2
    for kind in ("differences", "encoders"):
        heads, *rows = page.tables.get(kind, [[]])
        assert all(len(row) == len(heads) for row in rows)


def test_it_says_the_papers_finding_and_ours_first():
    _, page = read_page(objective())
    assert page.headings == [
        "What do next sentences buy, and what bidirectionality?",
        "Table 5: the objective of pre-training",
        "Every seed",
        "Differences from MLM + NSP",
        "Pre-training",
        "Cost",
    ]
    paper, here = page.tables["costs"][:2]
    assert paper[0] == "the paper" and "QNLI" in paper[1]
    assert here[0] == "here" and "left to right is worse" in here[1]
    first = page.tables["paper"][2]
    assert first[0] == "MLM + NSP (BERT base)" and "84.4" in first


def test_what_is_not_there_has_no_heading():
    _, page = read_page(not_begun())
    assert page.headings[1:] == [
        "Table 5: the objective of pre-training", "Pre-training", "Cost", "Failed and missing"
    ]  # fmt: skip
    text, page = read_page(half_way())
    assert page.headings[-1] == "Failed and missing"
    assert "<b>out</b>" not in text and "<b>out</b> of memory | lower" in page.tables["troubles"][2]


@pytest.mark.parametrize("name", OUTCOMES)
def test_the_files_are_written_and_name_no_path(name, tmp_path):
    folder = tmp_path / "artifacts"
    write_ablation_report(OUTCOMES[name](), folder)
    names = {each.name for each in folder.iterdir()}
    assert {"report.html", "report.md", "report.json"} <= names
    text = (folder / "report.md").read_text()
    assert set(re.findall(r"\]\((\w+\.svg)\)", text)) == names & set(PICTURES)
    for file in folder.iterdir():
        assert "/srv/machine" not in file.read_text()
    content = json.loads((folder / "report.json").read_text())
    assert content["finding"]["here"] and content["study"] == OUTCOMES[name]().study


def test_pictures_that_hold_no_more_are_removed(tmp_path):
    write_ablation_report(objective(), tmp_path)
    assert (tmp_path / "scores.svg").exists()
    write_ablation_report(not_begun(), tmp_path)
    assert not any((tmp_path / name).exists() for name in PICTURES)


def test_programs_get_every_figure():
    from workflows.ablations.report import as_json

    content = as_json(ablation_findings(objective()))
    answers = content["compared"]["docs_answers"]
    assert len(answers["scores"]["mlm"]) == 3 and answers["metric"] == "f1"
    assert answers["differences"]["left_to_right"]["told_apart"] is True
    assert content["variants"][0]["curve"][-1][0] == 2600
    assert content["table"]["rows"][0]["paper"]["QNLI"] == 88.4


def test_the_markdown_has_the_same_tables():
    text = markdown_report(ablation_findings(objective()))
    assert "| MLM + NSP (BERT base) | 61.69 ± 0.56 |" in text
    assert "**−9.27 ± " in text and "**−0.29" not in text
    assert "&lt;b&gt;out&lt;/b&gt;" in markdown_report(ablation_findings(half_way()))


def test_the_summary_says_what_failed(tmp_path):
    lines = summary_lines(ablation_findings(half_way()), tmp_path)
    failed = [each for each in lines if each.startswith("failed ")]
    assert len(failed) == 2 and "not finite" in failed[0]
    assert lines[-1] == f"report       {tmp_path / 'report.html'}"
    assert any(each.startswith("here         These figures do not tell") for each in lines)
