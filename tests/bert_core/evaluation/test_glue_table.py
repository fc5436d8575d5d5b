import json
import re
from html.parser import HTMLParser

import pytest

from bert_core.evaluation.bootstrap import Interval
from bert_core.evaluation.glue_table import (
    COLUMNS,
    PAPER_AVERAGES,
    PAPER_ROWS,
    glue_table,
    html_table,
    json_table,
    markdown_table,
)
from bert_core.tasks.glue import GLUE

OURS = {"cola": Interval(0.52, 0.47, 0.571), "mrpc": 0.9, "rte": 0.65}


def test_the_papers_averages_come_out_of_its_figures():
    for row in PAPER_ROWS:
        assert round(row.average(list(COLUMNS)), 1) == PAPER_AVERAGES[row.name]
    base, large = (row.figures for row in PAPER_ROWS)
    assert (base["mnli"], base["mnli_mm"], base["rte"]) == (84.6, 83.4, 66.4)
    assert (large["qqp"], large["cola"], large["rte"]) == (72.1, 60.5, 70.1)
    # With MNLI counted once it would be another number.
    once = (sum(base.values()) - base["mnli"] - base["mnli_mm"]) + (84.6 + 83.4) / 2
    assert round(once / 8, 1) != 79.6


def test_the_metric_of_a_column_is_that_of_the_task():
    for column in COLUMNS.values():
        assert GLUE[column.task].criterion == column.metric


def test_averages_are_taken_over_what_all_rows_have():
    table = glue_table({"ours": OURS, "other": {"mrpc": 0.8, "rte": 0.6, "qqp": 0.7}})
    assert table.averaged == ("mrpc", "rte")
    averages = [row.average(table.averaged) for row in table.rows]
    assert averages == pytest.approx([(88.9 + 66.4) / 2, (89.3 + 70.1) / 2, 77.5, 70])


def test_markdown_has_a_cell_for_every_column_and_a_dash_for_none():
    lines = markdown_table(glue_table({"our | model": OURS})).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in rows]
    assert {len(row) for row in cells} == {2 + 9 + 1}
    assert cells[0][2:4] == ["MNLI-m", "MNLI-mm"]
    assert cells[2][7:10] == ["Matthews", "Spearman", "F1"]
    ours = cells[-1]
    assert ours[:2] == ["our \\| model", "dev"]
    assert ours[2:] == ["–"] * 5 + ["52.0 (47.0–57.1)", "–", "90.0", "65.0", "69.0"]
    assert cells[3][1] == "test"
    assert cells[3][-1] == f"{(52.1 + 88.9 + 66.4) / 3:.1f}"
    notes = "\n".join(line for line in lines if line.startswith("- "))
    assert "3 of 9 columns (CoLA, MRPC, RTE)" in notes
    assert "79.6 (BERT base)" in notes


class Cells(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.rows, self.addresses = [], [], []

    def handle_starttag(self, tag, attrs):
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data.strip() + " "


def test_html_is_well_formed_and_needs_nothing_else():
    text = html_table(glue_table({"<ours> & co": OURS}))
    page = Cells()
    page.feed(text)
    assert page.open == page.addresses == []
    assert "http" not in text
    assert "prefers-color-scheme: dark" in text
    assert [len(row) for row in page.rows] == [11] * 4
    assert page.rows[3][0] == "<ours> & co dev sets "
    assert page.rows[3][6] == "52.0 (47.0–57.1) "
    assert page.rows[3][1] == "– "


def test_json_has_the_exact_figures():
    content = json.loads(json_table(glue_table({"ours": OURS})))
    base, _, ours = content["rows"]
    assert ours["figures"]["cola"] == {"value": 52, "low": 47, "high": pytest.approx(57.1)}
    assert ours["figures"]["mnli"] is None
    assert ours["average"] == pytest.approx(69)
    assert base["average_of_all_columns"] == 79.6
    assert content["columns"]["stsb"] == {"title": "STS-B", "metric": "spearman"}
    assert content["averaged_columns"] == ["cola", "mrpc", "rte"]


def test_without_a_task_in_common_there_is_no_average():
    table = glue_table({"a": {"cola": 0.5}, "b": {"rte": 0.5}})
    assert table.averaged == ()
    assert markdown_table(table).splitlines()[3].endswith("| – |")
    assert json.loads(json_table(table))["rows"][0]["average"] is None
    html_table(table)


def test_a_figure_of_no_column_is_refused():
    with pytest.raises(ValueError, match="wnli"):
        glue_table({"ours": {"wnli": 0.5}})
