import json
import re

import pytest

from bert_core.evaluation.intervals import Interval
from bert_core.tasks.glue import GLUE
from workflows.paper.glue import (
    PAPER_ROWS,
    Measured,
    glue_table,
    json_table,
    markdown_table,
    text_table,
)
from workflows.paper.paper_table import DASH
from workflows.paper.published import COLUMNS, PAPER_AVERAGES


def figure(value, low=None, high=None, **behind):
    interval = Interval(value, value if low is None else low, value if high is None else high)
    return Measured(interval, **{"model": "m", "num_examples": 1043, "num_truncated": 2, **behind})


OURS = {
    "cola": figure(0.52, 0.47, 0.571, model="cola-1", num_models=3),
    "mrpc": figure(0.9),
    "rte": figure(0.65),
    "qqp": "no data",
}


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
    other = {"mrpc": figure(0.8), "rte": figure(0.6), "qqp": figure(0.7)}
    table = glue_table({"ours": OURS, "other": other})
    assert table.averaged == ("mrpc", "rte")
    averages = [row.average(table.averaged) for row in table.rows]
    assert averages == pytest.approx([(88.9 + 66.4) / 2, (89.3 + 70.1) / 2, 77.5, 70])


def cells_of(lines):
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_markdown_has_a_cell_for_every_column_and_a_dash_for_none():
    text, behind = markdown_table(glue_table({"our | model": OURS})).split("## Behind")
    cells = cells_of(line for line in text.splitlines() if line.startswith("|"))
    assert {len(row) for row in cells} == {2 + 9 + 1}
    assert cells[0][2:4] == ["MNLI-m", "MNLI-mm"]
    assert cells[2][7:10] == ["Matthews", "Spearman", "F1"]
    ours = cells[-1]
    assert ours[:2] == ["our \\| model", "dev"]
    assert ours[2:] == [DASH] * 5 + ["52.0 (47.0 to 57.1)", DASH, "90.0", "65.0", "69.0"]
    assert cells[3][1] == "test"
    assert cells[3][-1] == f"{(52.1 + 88.9 + 66.4) / 3:.1f}"
    assert "3 of 9 columns (CoLA, MRPC, RTE)" in text
    assert "79.6 (BERT base)" in text
    assert "does best on the same dev set" in text
    rows = cells_of(line for line in behind.splitlines() if line.startswith("|"))
    assert ["CoLA", "cola-1 (best of 3)", "1,043", "2"] in rows
    assert ["QQP", f"{DASH} no data", "", ""] in rows


def test_in_a_terminal_columns_are_lines_and_stand_in_line():
    text = text_table(glue_table({"ours": OURS}))
    lines = text.splitlines()[: 2 + 9 + 1]
    assert lines[1].split() == ["test", "test", "dev"]
    assert lines[2].split() == ["MNLI-m", "accuracy", "84.6", "86.7", DASH]
    assert lines[7].split(maxsplit=4) == ["CoLA", "Matthews", "52.1", "60.5", "52.0 (47.0 to 57.1)"]
    assert lines[-1].split() == ["average", "of", "3", "69.1", "73.3", "69.0"]
    ours = lines[0].index("ours")
    assert {line[ours - 2 : ours] for line in lines} == {"  "}
    assert " " not in {line[ours] for line in lines}
    assert max(map(len, text.splitlines())) <= 96


def test_json_has_the_exact_figures():
    content = json.loads(json_table(glue_table({"ours": OURS})))
    base, _, ours = content["rows"]
    assert ours["figures"]["cola"] == {
        "value": 52,
        "low": 47,
        "high": pytest.approx(57.1),
        "model": "cola-1",
        "num_examples": 1043,
        "num_truncated": 2,
        "num_models": 3,
    }
    assert base["figures"]["mnli"] == {"value": 84.6}
    assert ours["figures"]["mnli"] is None
    assert ours["missing"] == {"qqp": "no data"} and base["missing"] == {}
    assert ours["average"] == pytest.approx(69)
    assert base["average_of_all_columns"] == 79.6
    assert content["columns"]["stsb"] == {"title": "STS-B", "metric": "spearman"}
    assert content["averaged_columns"] == ["cola", "mrpc", "rte"]


def test_without_a_task_in_common_there_is_no_average():
    table = glue_table({"a": {"cola": figure(0.5)}, "b": {"rte": figure(0.5)}})
    assert table.averaged == ()
    assert markdown_table(table).splitlines()[5].endswith(f"| {DASH} |")
    assert json.loads(json_table(table))["rows"][0]["average"] is None
    assert "No averages" in text_table(table)
    assert "flatters" not in text_table(table)  # one model for each


def test_a_figure_of_no_column_is_refused():
    with pytest.raises(ValueError, match="wnli"):
        glue_table({"ours": {"wnli": figure(0.5)}})
