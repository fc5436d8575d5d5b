"""Every option of every task: another value changes what the task does, or is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import BaseModel

from bert_core.errors import UserError
from bert_core.model.bert import Bert
from bert_core.model.encoder import Encoder
from bert_core.tasks.catalog import CONFIG_FIELD, TASKS, architecture_of, task_config, task_of
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.docstring_tasks import (
    AnswersInDocstring,
    LibraryOfPassage,
    ParametersInDocstring,
)
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.label_values import (
    as_known,
    class_warnings,
    divided_warnings,
    label_of,
    likeness_warnings,
    not_labels,
)
from bert_core.tasks.metrics import less_is_better
from bert_core.tasks.multiple_choice import MultipleChoice
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import (
    add_task_head,
    compute_outputs,
    head_answers,
    refuse_ignored_options,
)


def test_the_encoder_and_a_fitting_head_stay_all_else_goes(small_config):
    torch.manual_seed(0)
    model = Bert.for_pretraining(small_config)
    pooler = model.heads["pooler"].dense.weight
    two = Classification(labels=("a", "b"))
    assert add_task_head(model, two) == ["classifier"]
    assert set(model.heads) == {"pooler", "classifier"}
    assert model.heads["pooler"].dense.weight is pooler
    weight = model.heads["classifier"].linear.weight
    assert add_task_head(model, two) == [] and model.heads["classifier"].linear.weight is weight
    assert add_task_head(model, Classification(labels=("a", "b", "c"))) == ["classifier"]
    assert model.heads["classifier"].linear.weight.shape == (3, 64)
    assert add_task_head(Bert(Encoder(small_config), {}), two) == ["pooler", "classifier"]


def test_what_a_decoder_says_of_a_text_hangs_on_all_of_it(small_config):
    rows = EncodedRows(
        input_ids=np.array([5, 6, 7, 8, 9, 10]),
        lengths=np.array([4, 2]),
        first_lengths=np.array([4, 2]),
        places=np.array([0, 0]),
        place_counts=np.array([1, 1]),
        labels=np.array([0, 1]),
        labels_per_item=np.array([1, 1]),
        rows_per_item=np.array([1, 1]),
        example=np.array([0, 1]),
        num_tokens=np.array([4, 2]),
        truncated=np.array([False, False]),
        notes={},
    )
    changed = replace(rows, input_ids=np.array([5, 6, 7, 11, 9, 10]))
    for is_decoder in (False, True):
        torch.manual_seed(0)
        model = Bert(Encoder(small_config.model_copy(update={"is_decoder": is_decoder})), {})
        add_task_head(model, Classification(labels=("a", "b")))
        model.eval()
        found, other = (
            compute_outputs(model, each.batch(np.arange(2), "packed")) for each in (rows, changed)
        )
        assert not torch.allclose(found[0], other[0]), "its last token decides too"
        assert torch.allclose(found[1], other[1])


def test_one_head_answers_and_no_other(small_config):
    model = Bert(Encoder(small_config), {})
    add_task_head(model, Classification(labels=("a", "b")))
    states, counts = torch.zeros(2, small_config.hidden_size), torch.ones(2, dtype=torch.int64)
    assert head_answers(model, [states], counts).shape == (2, 2)
    model.add_task_head("span", 2)
    with pytest.raises(ValueError, match="unpack"):
        head_answers(model, [states], counts)


def test_labels_given_are_not_learned():
    texts = [Text("x", None, label) for label in ("10", "9", "b", "a")]
    assert Classification().with_labels(texts).labels == ("a", "b", "9", "10")
    assert Classification(labels=("z",)).with_labels(texts).labels == ("z",)
    assert Classification(kind="regression").with_labels(texts).labels == ()


@pytest.mark.parametrize("name", TASKS)
def test_more_is_better_of_the_metric_that_selects_the_best_epoch(name):
    task = TASKS[name]
    assert not less_is_better(task.criterion)
    if isinstance(task, Classification):
        assert task.criterion in task.metric_names


@pytest.mark.parametrize("name", TASKS)
def test_every_setting_of_every_task_is_explained_and_survives_json(name):
    task = TASKS[name]
    assert isinstance(task, BaseModel)
    assert all(field.description for field in type(task).model_fields.values())
    if "labels" in type(task).model_fields:
        task = task.model_copy(update={"labels": ("a", "b")})
    config = json.loads(json.dumps(task_config(name, task)))
    found_name, found = task_of(config)
    assert (found_name, type(found), found.written()) == (name, type(task), task.written())
    assert config["architectures"] == [architecture_of(task)]
    if task.head.num_outputs:  # vectors have none
        assert len(config["id2label"]) == max(2, task.head.num_outputs)


def test_the_labels_are_where_transformers_looks_for_them():
    config = task_config("sst2", Classification(labels=("bad", "good")))
    assert config["id2label"] == {"0": "bad", "1": "good"}
    assert config["label2id"] == {"bad": 0, "good": 1}
    assert config["problem_type"] == "single_label_classification"
    number = task_config("stsb", TASKS["stsb"])
    assert (number["id2label"], number["problem_type"]) == ({"0": "LABEL_0"}, "regression")


def test_a_folder_of_somebody_else_knows_no_task():
    assert task_of({"architectures": ["BertModel"]}) is None


@pytest.mark.parametrize(
    "described",
    [
        {"name": "parsing", "settings": {}},
        {"name": "sst2", "settings": {"of_the_future": 1}},
        {"name": "sst2"},
        "sst2",
    ],
)
def test_a_task_of_another_version_is_one_line(described):
    with pytest.raises(UserError, match="unknown task or task settings"):
        task_of({CONFIG_FIELD: described})


LONG = "the cat sat on a mat " * 5
TABLE = f"text\tlabel\tpair\tother\n{LONG}\tup\tfar\tdown\nthe mat\tdown\taway\tup\n"
CHOICES = "context\tsent\ta\tb\tlabel\tother\nc\tthe\tcat\tdogs\ta\tb\nd\ta\tmat\trun\tb\ta\n"
NUMBERED = CHOICES.replace("\ta\tb\n", "\t1\t1\n").replace("\tb\ta\n", "\t1\t1\n")
RAGGED = "dogs\n"
TAGGED = "the B-X O\n" + "".join(f"{word} I-X B-Y\n" for word in LONG.split()) + "\ncat O O\n"
LISTS = [
    {"tokens": ["the", "cat"], "tags": [1, 0], "others": [0, 1], "document": "d"},
    {"tokens": ["dogs"], "tags": [0], "others": [1], "document": "d"},
]
OF_LISTS = {"word_column": "tokens", "tag_column": "tags"}
QUESTIONS = [
    {
        "id": "q",
        "question": "the cat sat on a mat " * 2,
        "context": LONG * 3,
        "answers": {"text": ["cat sat"], "answer_start": [4]},
    }
]
OTHERS = {
    Classification: {
        "max_length": (16, {}, TABLE),
        "labels": (("up", "down"), {}, TABLE),
        "kind": ("multiple", {}, TABLE),
        "text_column": ("other", {}, TABLE),
        "second_column": ("pair", {}, TABLE),
        "classifier_pooling": ("mean", {}, TABLE),
        "label_column": ("other", {}, TABLE),
        "drop_labels": (("up",), {}, TABLE),
        "header": (False, {"text_column": "0", "label_column": "1"}, TABLE),
        "skip_ragged": (True, {"max_skipped": 1}, TABLE + RAGGED),
        "max_skipped": (1, {"skip_ragged": True}, TABLE + RAGGED),
        "overflow": ("left", {"max_length": 16}, TABLE),
        "metric": ("f1_macro", {}, TABLE),
        "thresholds": ({"up": 0.0}, {}, TABLE),
    },
    MultipleChoice: {
        "max_length": (16, {"context_column": "label"}, CHOICES.replace("cat", LONG)),
        "labels": (("a", "b"), {}, CHOICES),
        "context_column": ("sent", {}, CHOICES),
        "start_column": ("sent", {}, CHOICES),
        "classifier_pooling": ("mean", {}, CHOICES),
        "choice_columns": (("b", "a"), {}, CHOICES),
        "label_column": ("other", {}, CHOICES),
        "first_number": (1, {"first_number": 0}, NUMBERED),
        "header": (False, {"choice_columns": ("2", "3"), "context_column": "0"}, CHOICES),
        "skip_ragged": (True, {"max_skipped": 1}, CHOICES + RAGGED),
        "max_skipped": (1, {"skip_ragged": True}, CHOICES + RAGGED),
    },
    Tagging: {
        "max_length": (16, {}, TAGGED),
        "labels": (("O", "B-Y", "I-Y"), {}, TAGGED),
        "word_column": ("1", {}, TAGGED),
        "tag_column": ("1", {}, TAGGED),
        "columns": (("w", "t"), {}, TAGGED),
        "document_column": ("document", OF_LISTS, LISTS),
        "comment": ("the", {}, TAGGED),
        "tag_names": (("O", "B-X"), OF_LISTS, LISTS),
        "scheme": ("none", {}, TAGGED),
        "invalid_tags": ("refuse", {"tag_column": "1", "scheme": "iob2"}, "a I-X O\n"),
        "overflow": ("right", {"max_length": 16}, TAGGED),
        "document_context": (True, {**OF_LISTS, "document_column": "document"}, LISTS),
    },
    QuestionAnswering: {
        "max_length": (32, {}, QUESTIONS),
        "labels": (("a",), {}, QUESTIONS),
        "stride": (8, {"max_length": 40}, QUESTIONS),
        "overflow": ("right", {"max_length": 40}, QUESTIONS),
        "max_query_length": (2, {}, QUESTIONS),
        "max_answer_length": (1, {}, QUESTIONS),
        "n_best": (2, {}, QUESTIONS),
        "align_to_words": (True, {}, [{**QUESTIONS[0], "context": "catsat matrun " * 5}]),
        "no_answer": (True, {}, QUESTIONS),
        "null_threshold": (-1e6, {"no_answer": True}, QUESTIONS),
    },
}
"""For each option another value, the options that hold beside it, and the data."""
CASES = [(kind, name) for kind in OTHERS for name in kind.model_fields]


def all_it_does(task, path, tokenizer):
    """What a task does with a file of data, or why it is refused."""
    try:
        refuse_ignored_options(task)
        examples = task.examples(path, "train")
        task = task.with_labels(examples)
        rows = task.encode(examples, tokenizer)
    except UserError as error:
        return str(error)
    shape = len(rows.lengths if task.head.per_row else rows.places), task.head.num_outputs
    outputs = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = task.decode(outputs, rows, examples)
    arrays = rows.input_ids, rows.lengths, rows.labels, rows.truncated, rows.example, rows.places
    return repr(
        (examples, [array.tolist() for array in arrays], found, task.criterion, task.labels)
    )


@pytest.mark.parametrize(("kind", "name"), CASES, ids=lambda each: getattr(each, "__name__", each))
def test_another_value_changes_something_or_is_refused(tmp_path, tokenizer, kind, name):
    other, beside, data = OTHERS[kind][name]
    if isinstance(data, str):
        path = tmp_path / ("train.txt" if kind is Tagging else "train.tsv")
        path.write_text(data)
    else:
        path = tmp_path / "train.jsonl"
        path.write_text("\n".join(map(json.dumps, data)))
    if kind is MultipleChoice:
        beside = {"choice_columns": ("a", "b"), **beside}
    did = all_it_does(kind(**beside), path, tokenizer)
    assert all_it_does(kind(**{**beside, name: other}), path, tokenizer) != did


@pytest.mark.parametrize("kind", [LibraryOfPassage, ParametersInDocstring, AnswersInDocstring])
def test_tasks_made_of_documentation_refuse_what_says_how_files_are_read(kind):
    about_files = ("column", "header", "skip", "comment", "scheme", "tag", "document_context")
    for name in kind.model_fields:
        assert (name in kind.unused) == any(part in name for part in about_files) or name in (
            *("kind", "columns", "labels", "no_answer", "null_threshold", "drop_labels"),
        ), name
        if name in kind.unused:
            assert kind.model_fields[name].default == getattr(kind(), name)


def test_the_options_that_the_catalog_sets_are_none_that_say_nothing():
    for task in TASKS.values():
        refuse_ignored_options(task)


@pytest.mark.parametrize(
    ("task", "option", "ending", "content"),
    [
        (Classification(header=False), "header", "jsonl", '{"text": "a", "label": "b"}'),
        (Classification(skip_ragged=True), "skip_ragged", "jsonl", '{"text": "a", "label": "b"}'),
        (MultipleChoice(max_skipped=0.5), "max_skipped", "jsonl", "{}"),
        (Tagging(document_column="a"), "document_column", "txt", "a O\n"),
        (Tagging(tag_names=("O", "B-X")), "tag_names", "conll", "a 0\n"),
        (Tagging(comment="#"), "comment", "jsonl", '{"0": ["a"], "-1": ["O"]}'),
    ],
)
def test_an_option_of_another_form_of_data_is_refused(tmp_path, task, option, ending, content):
    path = tmp_path / f"train.{ending}"
    path.write_text(content)
    with pytest.raises(UserError, match=f"--options.{option} is for .*train.{ending}"):
        task.examples(path, "train")


NAN = float("nan")


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("pos", "pos"),
        (" pos\t", "pos"),
        ("\u00a0pos\u3000", "pos"),
        ("\ufeffpos\u200b\u2028", "pos"),
        ("very  good", "very  good"),
        (3, "3"),
        (3.0, "3"),
        (-1.0, "-1"),
        (0.5, "0.5"),
        (True, "True"),
        ("none", "none"),
        ("-", "-"),
        (None, None),
        (NAN, None),
        ("", None),
        (" \u200b", None),
        ("NaN", None),
        ("nan ", None),
        ("<NA>", None),
        ("#N/A", None),
        ("\\N", None),
    ],
)
def test_the_label_of_a_cell(value, label):
    assert label_of(value) == label


@pytest.mark.parametrize(
    ("names", "nothing"),
    [
        (["-1"], ["-1"]),
        (["-1", "pos", "neg"], ["-1"]),
        (["-1", "0", "1", "2"], ["-1"]),
        (["-1", "1", "2", "3"], ["-1"]),
        (["-1.0", "0.0", "2.0"], ["-1.0"]),
        (["-1", "0", "pos"], ["-1"]),
        (["-1", "0", "1"], []),  # sentiment
        (["-1", "1"], []),
        (["-1", "0"], []),
        (["-2", "-1", "0", "1", "2"], []),
        (["-1", "-0.5", "2"], []),
        (["none", "favor", "against"], []),
        (["NA", "null", "None", "N/A", "x"], []),
        (["-", "entailment", "neutral"], ["-"]),
        (["-", "ENTAILMENT", "NOT_ENTAILMENT"], ["-"]),
        (["-1", "-", "Entailment", "contradiction"], ["-", "-1"]),
        (["-", "+"], []),
        (["-"], []),
    ],
)
def test_what_is_no_label_where_labels_are_not_known_yet(names, nothing):
    assert not_labels(set(names)) == set(nothing)
    assert not_labels(set(names), dropped=[names[0]]) >= {names[0]}


def test_what_a_model_does_not_know_and_may_be_nothing_is_nothing():
    names = {"-1", "none", "NULL", "NA", "n/a", "-", "other", "0"}
    assert not_labels(names, known=("0", "1")) == {"-1", "none", "NULL", "NA", "n/a"}
    assert not_labels(names, known=("-1", "0", "1", "none")) == {"NULL", "NA", "n/a"}
    assert not_labels({"None"}, known=("none", "some")) == set(), "a label in another case"
    assert not_labels({"-"}, known=("entailment", "neutral", "contradiction")) == {"-"}
    assert not_labels({"-"}, known=("entailment", "-")) == set()


def test_labels_to_be_dropped_are_none_unless_they_are_asked_for():
    assert not_labels({"x", "?"}, dropped=[" ? "]) == {"?"}
    assert not_labels({"x", "?"}, known=("x", "?"), dropped=["?"]) == set()
    assert not_labels({"-", "neutral"}, dropped=["?"]) == set(), "the default is no more"


def test_a_number_is_the_known_label_however_it_is_written():
    assert [as_known(name, ("0", "1")) for name in ("1.0", "1", "01", "x", "2")] == [
        "1", "1", "1", "x", "2",
    ]  # fmt: skip
    assert as_known("1.0", ("1.0", "1")) == "1.0"
    assert as_known("caf\u00e9", ("bar", "cafe\u0301")) == "cafe\u0301", (
        "é is one code point or two"
    )
    assert as_known("pos", ("neg", "pos ")) == "pos ", "of a model that was trained on such labels"


def test_labels_that_may_be_meant_to_be_one_are_told():
    labels = ["Pos", "pos", "neg", "very good", "Very  good", "ﬁne", "fine", "é", "e\u0301"]
    warnings = likeness_warnings([*labels, "1", "1.0", "2"])
    assert len(warnings) == 5 and "'Pos', 'pos'" in warnings[0]
    assert likeness_warnings(["a", "b", "a b"]) == []


def test_classes_that_may_mean_nothing_are_told_with_a_remedy():
    assert ["drop_labels=None" in warning for warning in class_warnings(["None", "x"])] == [True]
    assert len(class_warnings(["-1", "NA", "null", "N/A", "0", "nothing"])) == 4


def test_no_agreement_is_known_beside_the_letters_of_entailment():
    assert not_labels({"e", "n", "c", "-"}) == {"-"}
    assert not_labels({"n", "-"}) == set()
    (warning,) = class_warnings(["good", "bad", "-"])
    assert "'-'" in warning and "--options.drop_labels=-" in warning


@pytest.mark.parametrize(
    ("labels", "multiple", "expected"),
    [
        (["x|y", "z"], True, ["x|y"]),
        (["x", "y;x"], True, ["y;x"]),
        (["x", "y", "x y", "x / y"], True, ["x y", "x / y"]),
        (["new york", "and/or", "x"], True, []),
        (["x", "y", "x,y", "y | x"], False, ["x,y", "y | x"]),
        (["x", "y", "x y", "x/y", "a,b", "a|b"], False, []),
    ],
)
def test_labels_that_may_be_several_are_told(labels, multiple, expected):
    found = divided_warnings(labels, multiple=multiple)
    assert found == [each for each in found if ", ".join(map(repr, expected)) in each]
    assert len(found) == bool(expected)
    task = Classification(kind="multiple" if multiple else "single", labels=labels)
    assert task.label_warnings() == found


@pytest.mark.parametrize("labels", [['"x"', '"y"'], ["'x'", "'y'"], ["\u201cx\u201d"]])
def test_labels_in_quotes_are_told(labels):
    (told,) = Classification(labels=labels).label_warnings()
    assert "quotes" in told and labels[0] in told
    assert Classification(labels=[*labels, "z"]).label_warnings() == []
    assert Classification(labels=['"', "''z"]).label_warnings() == []
