import numpy as np
import pytest
from made_up_predictions import MAKERS

from bert_core.tasks.catalog import TASKS
from bert_core.tasks.glue import GLUE
from workflows.paper.paper_table import beside_published, metric_title
from workflows.paper.published import published


def figures_of(task):
    return {(e.encoder, e.split, e.table): dict(e.figures) for e in published(task)}


def test_the_papers_figures():
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


def test_every_published_task_is_one_of_ours():
    known = [task for task in TASKS if published(task)]
    assert set(GLUE) - {"wnli"} < set(known)
    assert {"squad", "squad_v2", "swag", "conll2003"} < set(known)


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
def test_the_metrics_have_the_names_that_our_tasks_give_them(kind, tasks):
    task, predictions, examples = MAKERS[kind](np.random.default_rng(0), 40).of
    ours = task.metrics(predictions, examples)
    for name in tasks:
        assert published(name)
        assert all(each.figures.keys() <= ours.keys() for each in published(name))


def test_what_compares_is_said():
    figures = {"accuracy": [0.86, 0.88], "f1": [0.9, 0.91], "loss": [0.3, 0.3]}
    table = beside_published("mrpc", figures, criterion="f1", num_dev=408)
    assert table is not None
    assert table.columns == ("accuracy", "F1")
    assert table.rows[0].ours == {"accuracy": (86.0, 88.0)}
    assert table.rows[2].ours == {"F1": (90.0, 91.0)} and table.rows[2].paper == {"F1": 88.9}
    notes = " ".join(table.notes)
    assert "On dev the paper has accuracy, so that is what compares; here F1 chose" in notes
    assert "On 408 dev examples an accuracy of 87.0 has by itself a 95 % interval of ±3.3" in notes
    assert "five restarts" in notes and "no dev figure" not in notes


def test_figures_of_the_test_set_alone_are_called_so():
    table = beside_published("cola", {"matthews": [0.6]}, criterion="matthews", num_dev=1043)
    assert table is not None
    assert [each.name for each in table.rows] == [
        "BERT base, test set (table 1)",
        "BERT large, test set (table 1)",
    ]
    notes = " ".join(table.notes)
    assert "no dev figure" in notes and "what compares" not in notes and "by itself" not in notes


def test_a_task_that_the_paper_does_not_have_has_no_table():
    assert beside_published("docs_library", {}, criterion="accuracy", num_dev=9) is None
    assert metric_title("exact_match") == "exact match"
