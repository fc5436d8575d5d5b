"""Every option of every task: another value changes what the task does, or is refused."""

import json

import numpy as np
import pytest

from bert_core.errors import UserError
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.classification import Classification
from bert_core.tasks.documentation.answers import AnswersInDocstring
from bert_core.tasks.documentation.library import LibraryOfPassage
from bert_core.tasks.documentation.parameters import ParametersInDocstring
from bert_core.tasks.multiple_choice import MultipleChoice
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import refuse_ignored_options

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
        "label_column": ("other", {}, TABLE),
        "drop_labels": (("up",), {}, TABLE),
        "header": (False, {"text_column": "0", "label_column": "1"}, TABLE),
        "skip_ragged": (True, {"max_skipped": 1}, TABLE + RAGGED),
        "max_skipped": (1, {"skip_ragged": True}, TABLE + RAGGED),
        "overflow": ("left", {"max_length": 16}, TABLE),
        "metric": ("f1_macro", {}, TABLE),
    },
    MultipleChoice: {
        "max_length": (16, {"context_column": "label"}, CHOICES.replace("cat", LONG)),
        "labels": (("a", "b"), {}, CHOICES),
        "context_column": ("sent", {}, CHOICES),
        "start_column": ("sent", {}, CHOICES),
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
    shape = len(rows.places), task.head.num_outputs
    outputs = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = task.decode(outputs, rows, examples)
    arrays = rows.input_ids, rows.lengths, rows.labels, rows.truncated, rows.example
    return repr((examples, [each.tolist() for each in arrays], found, task.criterion, task.labels))


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
