import json
from pathlib import Path

import pytest

from bert_core.tasks.glue import GLUE
from bert_core.tasks.tables import TaskDataError

REAL = Path(__file__).parents[4] / "shared" / "data" / "glue"

FILES = {
    "cola": ("gj04\t0\t*\tThey drank the pub.\n", ("They drank the pub.", None, "0")),
    "sst2": ("sentence\tlabel\na fine film \t1\n", ("a fine film", None, "1")),
    "mrpc": (
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tHe said, "No\tNo, he said\n',
        ('He said, "No', "No, he said", "1"),
    ),
    "stsb": (
        "index\tgenre\tsentence1\tsentence2\tscore\n0\tnews\tA man.\tA woman.\t2.500\n",
        ("A man.", "A woman.", 2.5),
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
        "1\t2\t3\tbroken\n" + 99 * "1\t2\t3\tWhy?\tHow?\t0\n",
        ("Why?", "How?", "0"),
    ),
    "mnli": (
        "index\tsentence1\tsentence2\tlabel1\tgold_label\n"
        "0\tIt rains.\tIt is wet.\tx\tentailment\n",
        ("It rains.", "It is wet.", "entailment"),
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel\n0\tWho?\tNobody.\tnot_entailment\n",
        ("Who?", "Nobody.", "not_entailment"),
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\tentailment\n",
        ("A.", "B.", "entailment"),
    ),
    "wnli": ("index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\t1\n", ("A.", "B.", "1")),
}

ON_HUB = {
    "cola": (("sentence",), ["unacceptable", "acceptable"]),
    "sst2": (("sentence",), ["negative", "positive"]),
    "mrpc": (("sentence1", "sentence2"), ["not_equivalent", "equivalent"]),
    "stsb": (("sentence1", "sentence2"), None),
    "qqp": (("question1", "question2"), ["not_duplicate", "duplicate"]),
    "mnli": (("premise", "hypothesis"), ["entailment", "neutral", "contradiction"]),
    "qnli": (("question", "sentence"), ["entailment", "not_entailment"]),
    "rte": (("sentence1", "sentence2"), ["entailment", "not_entailment"]),
    "wnli": (("sentence1", "sentence2"), ["not_entailment", "entailment"]),
}
"""Columns and classes of nyu-mll/glue."""

EXAMPLES = {
    "cola": ("CoLA", 8551, 1043),
    "sst2": ("SST-2", 67349, 872),
    "mrpc": ("MRPC", 3668, 408),
    "rte": ("RTE", 2490, 277),
    "wnli": ("WNLI", 635, 71),
    "qnli": ("QNLI", 0, 5463),
}


@pytest.mark.parametrize("name", GLUE)
def test_the_published_format_is_read(name, tmp_path):
    text, expected = FILES[name]
    (tmp_path / "train.tsv").write_text(text, encoding="utf-8")
    found = {
        (each.first, each.second, each.answer) for each in GLUE[name].examples(tmp_path, "train")
    }
    assert found == {expected}
    assert GLUE[name].criterion in {"accuracy", "f1", "matthews", "spearman"}


def test_mnli_has_two_dev_sets(tmp_path):
    for split in ("matched", "mismatched"):
        text = FILES["mnli"][0].replace("rains", split)
        (tmp_path / f"dev_{split}.tsv").write_text(text)
    for split, word in (("dev", "matched"), ("dev_mismatched", "mismatched")):
        (found,) = GLUE["mnli"].examples(tmp_path, split)
        assert found.first == f"It {word}."


@pytest.mark.parametrize("name", GLUE)
def test_the_columns_and_labels_of_the_hub_are_read(name, tmp_path):
    texts, classes = ON_HUB[name]
    assert GLUE.keys() == ON_HUB.keys()
    labels = classes or [2.5, -1.0]
    lines = [
        json.dumps({**{text: f"{text} {label}" for text in texts}, "label": label, "idx": 3})
        for label in labels
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    found = GLUE[name].examples(tmp_path, "train")
    answers = [each.answer for each in found]
    assert [each.first for each in found] == [f"{texts[0]} {label}" for label in labels]
    if len(texts) == 2:
        assert [each.second for each in found] == [f"{texts[1]} {label}" for label in labels]
    # The numbers of the published files are those of the classes.
    assert answers == (labels if classes is None else list(GLUE[name].labels))
    assert set(found[0].columns) >= {"idx", "label", *texts}


def test_glue_comes_from_the_hub_with_its_hidden_test_set(hub_copy):
    from datasets import ClassLabel, Value

    features = {name: Value("string") for name in ("sentence1", "sentence2")}
    features["label"] = ClassLabel(names=ON_HUB["mrpc"][1])
    texts = {"sentence1": ["A.", "C."], "sentence2": ["B.", "D."]}
    typed = hub_copy(
        features,
        train={**texts, "label": [1, 0]},
        validation={**texts, "label": [0, 0]},
        test={**texts, "label": [-1, -1]},
    )
    answers = [
        [each.answer for each in GLUE["mrpc"].examples(typed, split)]
        for split in ("train", "dev", "test")
    ]
    assert answers == [["1", "0"], ["0", "0"], [None, None]]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_real_files_have_their_published_sizes(name):
    folder, num_train, num_dev = EXAMPLES[name]
    if not REAL.exists():
        pytest.skip("../shared/data is not beside this checkout")
    for split, count in (("train", num_train), ("dev", num_dev)):
        if count:
            examples = GLUE[name].examples(REAL / folder, split)
            assert len(examples) == count
            assert {each.answer for each in examples} == set(GLUE[name].labels)


def test_the_error_of_another_table_names_its_columns_alone(tmp_path):
    (tmp_path / "dev.tsv").write_text("sentence1\tlabel\na\t1\n")
    with pytest.raises(TaskDataError, match=r"no column #2 String.*: sentence1, label \("):
        GLUE["mrpc"].examples(tmp_path, "dev")
