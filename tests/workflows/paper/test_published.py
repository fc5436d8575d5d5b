"""The paper's figures agree with each other, with our tasks, and stand next to ours in tables."""

import numpy as np
import pytest
from made_up_predictions import MAKERS

from bert_core.model.strategies import STRATEGIES
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.glue import GLUE
from workflows.paper.paper_table import (
    DASH,
    PaperRow,
    PaperTable,
    beside_published,
    json_paper_table,
    report_table,
    score_text,
)
from workflows.paper.published import (
    COLUMNS,
    FINETUNING,
    GLUE_TEST,
    NO_TABLE,
    PAPER_AVERAGES,
    TABLE_5,
    TABLE_6,
    TABLE_7_DEV,
    TABLE_7_TITLES,
    TABLE_8,
    published,
)


def figures_of(task):
    return {(e.encoder, e.split, e.table): dict(e.figures) for e in published(task)}


def test_the_papers_figures_of_tasks():
    assert figures_of("mrpc") == {
        ("BERT base", "dev", 5): {"accuracy": 86.7},
        ("BERT large", "dev", 6): {"accuracy": 87.8},
        ("BERT base", "test", 1): {"f1": 88.9},
        ("BERT large", "test", 1): {"f1": 89.3},
    }
    assert figures_of("squad")["BERT large", "dev", 2] == {"exact_match": 84.1, "f1": 90.9}
    assert figures_of("conll2003") == {
        ("BERT base", "dev", 7): {"f1": 96.4},
        ("BERT large", "dev", 7): {"f1": 96.6},
        ("BERT base", "test", 7): {"f1": 92.4},
    }
    assert published("docs_library") == published("wnli") == published("ner") == []


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


def figure(table, row, title):
    place = [each.title for each in table.columns].index(title)
    return table.rows[row][place]


def test_the_tables_agree_with_each_other():
    for title, task in (("MNLI-m", "mnli"), ("QNLI", "qnli"), ("SST-2", "sst2")):
        (known,) = [each for each in published(task) if each.table == 5]
        assert figure(TABLE_5, "BERT base", title) == known.figures["accuracy"]
    (squad,) = [each for each in published("squad") if each.encoder == "BERT base"]
    assert figure(TABLE_5, "BERT base", "SQuAD") == squad.figures["f1"]
    # BERT base is a row of two tables; only SST-2 differs.
    for title in ("MNLI-m", "MRPC"):
        assert figure(TABLE_5, "BERT base", title) == figure(TABLE_6, "12/768/12", title)
    assert figure(TABLE_6, "24/1024/16", "MNLI-m") == 86.6
    assert figure(TABLE_8, "80/10/10", "NER, fine-tuned") < TABLE_7_DEV[FINETUNING]
    assert all(sum(map(int, name.split("/"))) == 100 for name in TABLE_8.rows)


def test_the_findings_follow_from_the_figures():
    drop = {
        row: {
            each.title: round(figure(TABLE_5, "BERT base", each.title) - value, 1)
            for each, value in zip(TABLE_5.columns, figures, strict=True)
        }
        for row, figures in TABLE_5.rows.items()
    }
    no_nsp, left_to_right = drop["No NSP"], drop["LTR & No NSP"]
    assert (no_nsp["QNLI"], no_nsp["MNLI-m"], no_nsp["SQuAD"]) == (3.5, 0.5, 0.6)
    assert (left_to_right["MRPC"], left_to_right["SQuAD"]) == (9.2, 10.7)
    assert all(each > 0 for each in left_to_right.values())
    for column in zip(*TABLE_6.rows.values(), strict=True):
        assert list(column) == sorted(column), "larger is better"
    assert list(TABLE_6.perplexity.values()) == sorted(TABLE_6.perplexity.values(), reverse=True)
    mnli, _, features = zip(*TABLE_8.rows.values(), strict=True)
    assert round(max(mnli) - min(mnli), 1) == 0.8
    assert round(features[0] - figure(TABLE_8, "100/0/0", "NER, features"), 1) == 0.9
    assert sorted(mnli)[:2] == [figure(TABLE_8, row, "MNLI") for row in ("0/0/100", "0/20/80")]
    assert not NO_TABLE.rows


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


def test_scores_of_seeds_are_a_mean_and_a_deviation():
    assert score_text([90.0, 92.0]) == "91.00 ± 1.41"
    assert score_text([85.123]) == "85.12"
    assert score_text([]) == DASH
