"""The paper's figures agree with each other, with our tasks, and stand next to ours in tables."""

import numpy as np
import pytest
from made_up_predictions import MAKERS

from bert_core.model.strategies import STRATEGIES
from bert_core.tasks.catalog import GLUE, TASKS
from workflows.paper.paper_table import (
    DASH,
    PaperRow,
    PaperTable,
    beside_published,
    json_paper_table,
    report_table,
)
from workflows.paper.published import (
    COLUMNS,
    FINETUNING,
    GLUE_TEST,
    PAPER_AVERAGES,
    TABLE_5,
    TABLE_6,
    TABLE_7_DEV,
    TABLE_7_TITLES,
    TABLE_8,
    published,
)


def test_the_papers_averages_of_glue_follow_from_its_figures():
    for name, figures in GLUE_TEST.items():
        assert round(sum(figures.values()) / len(figures), 1) == PAPER_AVERAGES[name]
    base, large = GLUE_TEST.values()
    assert (base["mnli"], base["mnli_mm"], base["rte"]) == (84.6, 83.4, 66.4)
    assert (large["qqp"], large["cola"], large["rte"]) == (72.1, 60.5, 70.1)
    assert all(GLUE[each.task].criterion == each.metric for each in COLUMNS.values())


def test_every_published_task_and_strategy_is_one_of_ours():
    known = [task for task in TASKS if published(task)]
    assert set(GLUE) - {"wnli"} < set(known)
    assert {"squad", "squad_v2", "swag", "conll2003"} < set(known)
    strategies = {FINETUNING, *STRATEGIES} - {"sum_last_four"}
    assert set(TABLE_7_TITLES) == set(TABLE_7_DEV) == strategies
    assert max(TABLE_7_DEV, key=TABLE_7_DEV.get) == FINETUNING
    assert TABLE_7_DEV["concat_last_four"] == 96.1


@pytest.mark.parametrize(
    ("kind", "tasks"),
    [
        ("two labels", ["cola", "sst2", "mrpc", "qqp", "qnli", "rte"]),
        ("five labels", ["mnli"]),
        ("numbers", ["stsb"]),
        ("tags", ["conll2003"]),
        ("choices", ["swag"]),
        ("squad", ["squad"]),
        ("squad v2", ["squad_v2"]),
    ],
)
def test_published_metrics_have_the_names_of_our_tasks(kind, tasks):
    task, predictions, examples = MAKERS[kind](np.random.default_rng(0), 40).of
    ours = task.metrics(predictions, examples)
    for name in tasks:
        assert published(name)
        assert all(each.figures.keys() <= ours.keys() for each in published(name))


@pytest.mark.parametrize("table", [TABLE_5, TABLE_6, TABLE_8], ids=lambda each: each.title[:7])
def test_every_row_of_an_ablation_has_a_figure_for_each_column(table):
    for name, figures in table.rows.items():
        assert len(figures) == len(table.columns), name
        assert all(70 < each < 100 for each in figures)
    for column in table.columns:
        task, _, approach = column.task.partition(":")
        assert task in TASKS and approach in ("", "features")


def test_our_figures_stand_next_to_the_published_metric():
    figures = {"accuracy": [0.86, 0.88], "f1": [0.9, 0.91], "loss": [0.3, 0.3]}
    table = beside_published("mrpc", figures, criterion="f1", num_dev=408)
    assert table is not None
    assert table.columns == ("accuracy", "F1")
    assert table.rows[0].ours == {"accuracy": (86.0, 88.0)}
    assert table.rows[2].ours == {"F1": (90.0, 91.0)} and table.rows[2].paper == {"F1": 88.9}
    assert any("408" in note and "87.0" in note and "±3.3" in note for note in table.notes)
    assert beside_published("docs_library", {}, criterion="accuracy", num_dev=9) is None


def texts(table):
    found = report_table(table)
    return [list(found.columns), *([cell.text for cell in row] for row in found.cells)]


def test_a_column_has_no_place_for_a_side_without_figures():
    rows = (
        PaperRow("a", {"docs": (60.0,), "MRPC": (70.0, 72.0)}, {"QNLI": 88.4, "MRPC": 86.7}),
        PaperRow("b", {}, {"QNLI": 84.9, "MRPC": 86.5}),
    )
    table = PaperTable("Table 5", ("docs", "QNLI", "MRPC"), rows)
    assert texts(table) == [
        ["figures", "docs, ours", "QNLI, paper", "MRPC, ours", "MRPC, paper"],
        ["a", "60.00", "88.4", "71.00 ± 1.41", "86.7"],
        ["b", DASH, "84.9", DASH, "86.5"],
    ]
    content = json_paper_table(table)
    assert content["rows"][0]["ours"] == {"docs": [60.0], "MRPC": [70.0, 72.0]}
    assert content["rows"][0]["ours_mean"] == {"docs": 60.0, "MRPC": 71.0}
    assert content["rows"][1]["paper"] == {"QNLI": 84.9, "MRPC": 86.5}
    empty = PaperTable("Table 5", ("QNLI",), (PaperRow("a", {}, {"QNLI": 88.4}),))
    assert texts(empty)[0] == ["figures", "QNLI, ours", "QNLI, paper"], "nothing is measured yet"
