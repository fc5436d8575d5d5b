"""Classification: answers of every kind, and parity with transformers."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bert_core.tasks.catalog import GLUE
from bert_core.tasks.classification import Classification
from bert_core.tasks.metrics import less_is_better
from bert_core.tasks.outputs import compute_all_outputs
from bert_core.tasks.tables import TaskDataError
from bert_core.tasks.task import task_loss

CPU = torch.device("cpu")
KINDS = {
    "single": (Classification(labels=("no", "yes", "maybe")), ["no", "yes", "maybe", "yes", "no"]),
    "multiple": (
        Classification(kind="multiple", labels=("red", "green", "blue")),
        [("red",), (), ("green", "blue"), ("red", "blue"), ("blue",)],
    ),
    "regression": (Classification(kind="regression"), [0.5, 4.75, 3.0, 1.25, 2.0]),
}


def test_what_has_no_label_teaches_nothing(model, tokenizer, some_texts):
    for task, answers in KINDS.values():
        rows = task.encode(some_texts([*answers, None]), tokenizer)
        assert rows.label_counts.tolist() == [1] * 5 + [0]
        ours = model(task)
        loss, sums = task_loss(task, ours, rows.batch(np.array([5]), "packed"), num_labels=1)
        loss.backward()
        assert loss == 0 and sums.tolist() == [0, 0, 0]
        assert all(not parameter.grad.any() for parameter in ours.parameters())


def test_predictions_and_metrics_of_each_kind(some_texts):
    task, answers = KINDS["single"]
    texts = some_texts(answers)
    outputs = np.log(np.array([[8, 1, 1], [1, 8, 1], [1, 8, 1], [1, 8, 1], [8, 1, 1]], np.float32))
    predictions = task.decode(outputs, None, texts)
    assert predictions[0]["label"] == "no"
    assert predictions[0]["scores"] == pytest.approx({"no": 0.8, "yes": 0.1, "maybe": 0.1})
    metrics = task.metrics(predictions, texts)
    assert metrics["accuracy"] == pytest.approx(0.8)
    assert metrics.keys() == set(task.metric_names)

    task, answers = KINDS["multiple"]
    texts = some_texts(answers)
    predictions = task.decode(
        np.array([[2, -2, -2], [-1, -1, -1], [-1, 3, 3], [2, 2, 2], [0, 0, 1]], np.float32),
        None,
        texts,
    )
    assert [prediction["labels"] for prediction in predictions][2:4] == [
        ["green", "blue"],
        ["red", "green", "blue"],
    ]
    metrics = task.metrics(predictions, texts)
    assert metrics.keys() == set(task.metric_names)
    assert metrics["exact_match"] == pytest.approx(0.8)
    assert metrics["f1_micro"] == pytest.approx(2 * 6 / (7 + 6))

    task, answers = KINDS["regression"]
    texts = some_texts(answers)
    predictions = task.decode(
        np.array([[0.5], [4.75], [3.0], [1.25], [2.0]], np.float32), None, texts
    )
    assert predictions[1] == {"value": 4.75}
    metrics = task.metrics(predictions, texts)
    assert (metrics["pearson"], metrics["mean_squared_error"]) == pytest.approx((1, 0))
    assert {name for name in metrics if not less_is_better(name)} == set(task.metric_names)


def test_two_labels_have_an_f1():
    assert "f1" in Classification(labels=("no", "yes")).metric_names
    assert "f1" not in Classification(labels=("no", "yes", "maybe")).metric_names


def test_thresholds_decide_and_leave_the_scores_as_they_are(some_texts):
    outputs = np.log(np.array([[7, 3], [8, 2], [75, 25]], np.float32))
    plain = Classification(labels=("no", "yes"))
    for thresholds, labels in (
        ({}, ["no", "no", "no"]),
        ({"yes": 0.27}, ["yes", "no", "no"]),
        ({"no": 0.76}, ["yes", "no", "yes"]),
    ):
        task = plain.model_copy(update={"thresholds": thresholds})
        found = task.decode(outputs, None, some_texts(labels))
        assert [each["label"] for each in found] == labels
        assert [each["scores"]["yes"] for each in found] == pytest.approx([0.3, 0.2, 0.25])
    several = Classification(kind="multiple", labels=("a", "b"), thresholds={"b": 0.9})
    found = several.decode(np.array([[1, 1], [-1, 3]], np.float32), None, some_texts([(), ()]))
    assert [each["labels"] for each in found] == [["a"], ["b"]]


def test_what_windows_say_is_averaged_by_their_tokens(model, tokenizer, some_texts):
    task = Classification(kind="regression", max_length=16, overflow="window")
    texts = some_texts([1.0, 2.0, None])
    texts = [replace(texts[0], first="cat sat " * 9), *texts[1:]]  # 18 tokens, 14 in a window
    rows = task.encode(texts, tokenizer)
    mine = rows.example == 0
    assert rows.lengths[mine].tolist() == [16, 13] and rows.num_truncated == 0
    assert rows.label_counts[mine].tolist() == [1, 1] and rows.num_tokens[0] == 20
    outputs, _ = compute_all_outputs(task, model(task), rows, device=CPU)
    predictions = task.decode(outputs, rows, texts)
    assert len(predictions) == 3
    mean = (16 * outputs[0, 0] + 13 * outputs[1, 0]) / 29
    assert predictions[0]["value"] == pytest.approx(mean, abs=1e-6)
    cut = task.model_copy(update={"overflow": "left"}).encode(texts, tokenizer)
    assert cut.truncated[0] and cut.input_ids[1:15].tolist() == rows.input_ids[1:15].tolist()


def test_tables_of_every_form_give_the_same_examples(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    records = [
        {"text": 'a "quoted" word', "label": "x"},
        {"text": "dots, and commas", "label": "y"},
    ]
    (tmp_path / "a.tsv").write_text(
        "text\tlabel\n" + "".join(f"{r['text']}\t{r['label']}\n" for r in records)
    )
    (tmp_path / "a.csv").write_text('text,label\n"a ""quoted"" word",x\n"dots, and commas",y\n')
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    for suffix in ("tsv", "csv", "jsonl", "parquet"):
        texts = Classification().examples(tmp_path / f"a.{suffix}", "train")
        assert [(text.first, text.answer) for text in texts] == [tuple(r.values()) for r in records]
        assert texts[0].columns == records[0] and f"a.{suffix}" in texts[0].where


def test_a_missing_second_text_is_empty_in_every_kind_of_table(tmp_path, tokenizer):
    import pyarrow as pa
    import pyarrow.parquet as pq

    records = [{"a": "the cat", "b": "sat", "label": "x"}, {"a": "a dog", "b": None, "label": "y"}]
    (tmp_path / "a.csv").write_text("a,b,label\nthe cat,sat,x\na dog,,y\n")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "nan.jsonl").write_text((tmp_path / "a.jsonl").read_text().replace("null", "NaN"))
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    task = Classification(text_column="a", second_column="b", labels=("x", "y"))
    for name in ("a.csv", "a.jsonl", "nan.jsonl", "a.parquet"):
        examples = task.examples(tmp_path / name, "train")
        assert [task.texts(each) for each in examples] == [["the cat", "sat"], ["a dog", ""]]


def test_wrong_data_is_refused_with_its_place(tmp_path, tokenizer):
    def refused(match, text, task=Classification(), name="train.tsv"):  # noqa: B008
        (tmp_path / name).write_text(text)
        with pytest.raises(TaskDataError, match=match):
            task.encode(task.examples(tmp_path / name, "train"), tokenizer)

    refused("no column text, did you mean texts.*train.tsv:2", "texts\tlabel\na\tb\n")
    refused("3 columns, expected 2: .*train.tsv:3", "text\tlabel\na\tb\na\tb\tc\n")
    refused("no text in column text: .*train.tsv:2", "text\tlabel\n \tb\n")
    refused(
        "unknown label 'z': .*train.tsv:2 .*x, y",
        "text\tlabel\na\tz\n",
        Classification(labels=("x", "y")),
    )
    refused(
        "'high' is not a number: .*train.tsv:2",
        "text\tlabel\na\thigh\n",
        Classification(kind="regression"),
    )
    refused("not JSON: .*train.jsonl:1", "{", name="train.jsonl")
    with pytest.raises(TaskDataError, match="no file of the dev split"):
        Classification().examples(tmp_path, "dev")
    with pytest.raises(TaskDataError, match="no such file or folder"):
        Classification().examples(tmp_path / "nowhere", "dev")
    with pytest.raises(TaskDataError, match="several files of the train split"):
        Classification().examples(tmp_path, "train")


@pytest.mark.parametrize(
    ("kind", "answers", "expected"),
    [
        ("single", [-1, -1], [None, None]),
        ("single", [-1, 1], ["-1", "1"]),
        ("regression", [-1.0, -1], [None, None]),
        ("regression", [-1.0, 0.5], [-1.0, 0.5]),
    ],
)
def test_a_table_of_nothing_but_minus_one_hides_its_answers(tmp_path, kind, answers, expected):
    lines = [json.dumps({"text": "a", "label": answer}) for answer in answers]
    (tmp_path / "test.jsonl").write_text("\n".join(lines))
    found = Classification(kind=kind).examples(tmp_path, "test")
    assert [each.answer for each in found] == expected


def write_table(folder, suffix, answers):
    """A table of a text and an answer in each row; the formats differ in what they can hold."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / f"train.{suffix}"
    records = [{"text": f"text {n}", "label": each} for n, each in enumerate(answers)]
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif suffix == "jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        tab = "\t" if suffix == "tsv" else ","
        cells = [
            tab.join("" if each is None else str(each) for each in r.values()) for r in records
        ]
        path.write_text("\n".join([f"text{tab}label", *cells]) + "\n")
    return path


SUFFIXES = ("tsv", "csv", "jsonl", "parquet")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_labels_to_be_dropped_are_no_answers_and_counted(tmp_path, suffix):
    path = write_table(tmp_path, suffix, ["neutral", "-", "entailment", " - ", None, "?"])
    task = Classification(drop_labels=("?", "-"))
    found = task.examples(path, "train")
    assert [each.answer for each in found] == ["neutral", None, "entailment", None, None, None]
    assert task.unanswered(found) == {"labelled -": 2, "without a label": 1, "labelled ?": 1}
    write_table(tmp_path, suffix, ["neutral", "-", "entailment"])
    for task in (Classification(), Classification(labels=("entailment", "neutral"))):
        assert [example.answer for example in task.examples(path, "dev")] == [
            "neutral", None, "entailment",
        ]  # fmt: skip
    write_table(tmp_path, suffix, ["+", "-"])
    assert [example.answer for example in Classification().examples(path, "train")] == ["+", "-"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_missing_numbers_and_labels_are_no_answers(tmp_path, suffix):
    number = Classification(kind="regression")
    found = number.examples(write_table(tmp_path, suffix, [1.5, float("nan"), None, -1.0]), "dev")
    assert [each.answer for each in found] == [1.5, None, None, -1.0]
    single = Classification()
    found = single.examples(write_table(tmp_path, suffix, [1.0, float("nan"), None, 0.0]), "dev")
    if suffix in ("jsonl", "parquet"):  # in the others they are texts
        assert [each.answer for each in found] == ["1", None, None, "0"]
    known = Classification(labels=("0", "1"))
    assert [example.answer for example in known.examples(tmp_path, "train")] == [
        "1",
        None,
        None,
        "0",
    ]
    found = single.examples(write_table(tmp_path, suffix, ["a\u00a0", " b", "NaN", ""]), "dev")
    assert [each.answer for each in found] == ["a", "b", None, None]


def test_words_that_are_no_number_may_mean_nothing(tmp_path):
    path = write_table(tmp_path, "csv", ["0.5", "NA", "null", "None", "N/A", " -1 "])
    number = Classification(kind="regression")
    found = number.examples(path, "dev")
    assert [each.answer for each in found] == [0.5, None, None, None, None, -1.0]
    without = Classification(kind="regression", drop_labels=("-1.0",)).examples(path, "dev")
    assert [each.answer for each in without] == [0.5, None, None, None, None, None]
    with pytest.raises(TaskDataError, match="'x' is not a number: --options.drop_labels"):
        Classification(kind="regression", drop_labels=("x",)).examples(path, "dev")


def test_several_labels_are_none_where_one_is_missing(tmp_path):
    answers = [["a ", "\u00a0b"], [], None, ["a", None], "b, a", "", "nan"]
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(json.dumps({"text": "x", "label": answer}) for answer in answers))
    found = Classification(kind="multiple").examples(path, "train")
    assert [each.answer for each in found] == [
        ("a", "b"), (), None, None, ("b", "a"), (), None,
    ]  # fmt: skip


def test_labels_that_are_odd_are_told():
    assert Classification(labels=("pos", "neg")).label_warnings() == []
    assert len(Classification(labels=("Pos", "pos", "None", "-1")).label_warnings()) == 3


def test_columns_of_the_hub_are_named_by_options(hub_copy):
    from datasets import ClassLabel, Value

    typed = hub_copy(
        {"review": Value("string"), "mood": ClassLabel(names=["bad", "good"])},
        train={"review": ["a", "b"], "mood": [1, 0]},
    )
    task = Classification(text_column="review", label_column="mood")
    assert [example.answer for example in task.examples(typed, "train")] == ["good", "bad"]
    with pytest.raises(TaskDataError, match="no column text: .*, train, row 0: review, mood"):
        Classification().examples(typed, "train")


@pytest.mark.parametrize(
    "label", ["Infinity", "-Infinity", "1e999", "1e39", "9" * 400, "[1]", '{"a": 1}', '"inf"']
)
def test_a_number_that_cannot_be_learned_is_refused_where_it_is_read(tmp_path, label):
    path = tmp_path / "train.jsonl"
    path.write_text(f'{{"text": "a", "label": -2.5}}\n{{"text": "b", "label": {label}}}\n')
    with pytest.raises(TaskDataError, match=r"train\.jsonl:2 .fix the label"):
        Classification(kind="regression").examples(path, "train")


@pytest.mark.parametrize("label", ['{"a": 1}', '["up"]'])
def test_a_label_is_no_list_and_no_mapping(tmp_path, label):
    path = tmp_path / "train.jsonl"
    path.write_text(f'{{"text": "b", "label": {label}}}\n')
    with pytest.raises(TaskDataError, match="not a label, .*train.jsonl:1"):
        Classification().examples(path, "train")


@pytest.mark.parametrize("rows", [["[0, 1, 1]", "[1, 0, 0]"], ["0,1", "1,0"], ["[True, False]"]])
def test_a_list_of_0_and_1_for_each_label_is_refused(tmp_path, rows):
    path = tmp_path / "train.csv"
    path.write_text("text,label\n" + "".join(f'a,"{row}"\n' for row in rows))
    with pytest.raises(TaskDataError, match=r"list of 0 and 1, .*train.csv:2 .*names of the label"):
        Classification(kind="multiple").examples(path, "train")
    path.write_text('text,label\na,"0,1"\nb,1\nc,\n')
    found = Classification(kind="multiple").examples(path, "train")
    assert [each.answer for each in found] == [("0", "1"), ("1",), ()]
    path.write_text('text,label\na,"0,1"\n')
    trained = Classification(kind="multiple", labels=("0", "1", "2"))
    assert [example.answer for example in trained.examples(path, "train")] == [("0", "1")]


def test_labels_of_bytes_and_empty_lines_below_a_table(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": ["a"], "label": [b"x"]}), tmp_path / "train.parquet")
    (found,) = Classification().examples(tmp_path / "train.parquet", "train")
    assert found.answer == "x"
    (tmp_path / "dev.csv").write_text("text,label\na,x\n,\n,\n")
    assert len(Classification().examples(tmp_path / "dev.csv", "dev")) == 1


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
        (example.first, example.second, example.answer)
        for example in GLUE[name].examples(tmp_path, "train")
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
        [example.answer for example in GLUE["mrpc"].examples(typed, split)]
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
            assert {example.answer for example in examples} == set(GLUE[name].labels)


def test_the_error_of_another_table_names_its_columns_alone(tmp_path):
    (tmp_path / "dev.tsv").write_text("sentence1\tlabel\na\t1\n")
    with pytest.raises(TaskDataError, match=r"no column #2 String.*: sentence1, label \("):
        GLUE["mrpc"].examples(tmp_path, "dev")
