import re

import pytest
from made_up_sweeps import OUTCOMES, paper_grid, single_seed, with_odd_names
from read_pages import Page

from workflows.paper.paper_table import PaperRow, PaperTable
from workflows.sweeps.findings import sweep_findings
from workflows.sweeps.page import sweep_page
from workflows.sweeps.report import best_yaml


def read_page(outcome, *tables):
    findings = sweep_findings(outcome)
    tables = [*tables, *([findings.beside_paper] if findings.beside_paper else [])]
    text = sweep_page(findings, tables, best_yaml(findings))
    page = Page()
    page.feed(text)
    assert page.open == []
    return text, page


@pytest.mark.parametrize("name", OUTCOMES)
def test_the_page_is_well_formed_and_needs_nothing_else(name):
    text, page = read_page(OUTCOMES[name]())
    assert page.addresses == []
    assert not re.search(r"https?:|@import|url\(", text)
    assert text.count("prefers-color-scheme: dark") == 2
    assert text.count("<script>") == 1, "its own"
    heads, *rows = page.tables["points"]
    assert rows and all(len(row) == len(heads) for row in rows)


def test_it_says_everything_without_its_script():
    _, page = read_page(paper_grid())
    assert page.headings == [
        "The best setting", "Beside the paper", "All settings", "Values and scores", "Each axis",
        "What matters", "Learning curves", "Cost", "Failed and missing",
    ]  # fmt: skip
    words = " ".join(page.words)
    for said in (
        "python workflows/finetune.py --preset best.yaml --data glue/MRPC --model gt-minilm",
        "kWh (assuming 10 W per core)",
        "out of memory: lower --max_tokens from 4096",
        "These seeds cannot tell it from",
        "batch_size: 16",
    ):
        assert said in words
    assert page.points == [str(rank) for rank in range(1, 19)], "rows and lines know each other"


def test_what_is_not_there_has_no_heading():
    _, page = read_page(OUTCOMES["not_begun"]())
    assert page.headings == ["The best setting", "All settings", "Cost", "Failed and missing"]
    _, page = read_page(OUTCOMES["one_axis"]())
    assert "What matters" not in page.headings and "Each axis" in page.headings
    _, page = read_page(single_seed())
    assert "Failed and missing" not in page.headings
    assert "level" not in page.tables["points"][0]


def test_cells_say_what_to_sort_them_by():
    text, _ = read_page(paper_grid())
    (failed,) = re.findall(r"<td([^>]*)>failed</td>", text)
    assert failed == "", "after all that have a score"
    orders = [float(each) for each in re.findall(r'data-order="([^"]*)"', text)]
    assert 5e-5 in orders and all(abs(each) < 1e9 for each in orders)


def test_names_are_no_code():
    text, page = read_page(with_odd_names())
    assert "<img src=x>" in " ".join(page.words)
    cells = {cell for row in page.tables["points"] for cell in row}
    assert {"<script>alert(1)</script>", 'a"b|c'} < cells
    for code in ("<img", "<script>alert", "<u>", "<i>last"):
        assert code not in text


def test_another_table_stands_beside_the_papers():
    ablation = PaperTable("Table <5>", ("MNLI-m",), (PaperRow("no NSP", {}, {"MNLI-m": 83.9}),))
    _, page = read_page(paper_grid(), ablation)
    assert page.headings[1:3] == ["Table <5>", "Beside the paper"]
    assert page.tables["paper"][2] == ["no NSP", "–", "83.9"]


def test_a_number_with_an_exponent_stays_on_one_line():
    text, _ = read_page(paper_grid())
    headline = re.search(r'<p class="headline">(.*)</p>', text)
    assert headline and '<span class="nb">3e-5</span>' in headline[1]
