"""Which choice a key means: every way to write it, and what may mean two choices."""

import csv
import json

import numpy as np
import pytest
import torch
from parity import random_model

from bert_core.tasks.catalog import TASKS
from bert_core.tasks.encoded_rows import TaskBatchSource
from bert_core.tasks.multiple_choice import (
    Choices,
    MultipleChoice,
    answers_of,
    key_of,
    listed_choices,
)
from bert_core.tasks.tables import TaskDataError
from bert_core.tasks.task import task_loss
from bert_core.tokenizer_training import train_wordpiece

SWAG_HEADER = ["", "sent1", "sent2", "ending0", "ending1", "ending2", "ending3", "label"]
SWAG = [
    ["0", "A man opens the door.", "He", "walks in.", "is a door.", "eats it.", "sings low.", "0"],
    ["1", "She lifts, then drops it.", "The bar", "falls.", "sings a very long song to the man "
     "who opens the door.", "opens.", "is a man.", "1"],
    ["2", "They sing.", "The song", "is low.", "walks.", "drops the bar.", "lifts.", "3"],
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return train_wordpiece([" ".join(row) for row in SWAG] * 3, 90, lowercase=True)


@pytest.fixture
def swag_folder(tmp_path):
    with (tmp_path / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([SWAG_HEADER, *SWAG])
    (tmp_path / "train.csv").rename(tmp_path / "val.csv")
    return tmp_path


@pytest.fixture
def model(small_config):
    return random_model(small_config, MultipleChoice())


@pytest.fixture
def questions():
    """Seven questions of three choices, one of them without an answer."""
    random = np.random.default_rng(0)
    words = " ".join(" ".join(row) for row in SWAG).split()
    texts = [" ".join(random.choice(words, random.integers(1, 6))) for _ in range(28)]
    return [
        Choices(texts[4 * i], tuple(texts[4 * i + 1 : 4 * i + 4]), None if i == 3 else i % 3)
        for i in range(7)
    ]


def test_swag_becomes_four_rows_an_example(swag_folder, tokenizer):
    task = TASKS["swag"]
    examples = task.examples(swag_folder, "dev")
    assert [example.answer for example in examples] == [0, 1, 3]
    assert examples[0].where.endswith("val.csv:2")
    rows = task.encode(examples, tokenizer)
    assert rows.num_items == 3 and rows.rows_per_item.tolist() == [4, 4, 4]
    assert rows.example.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert rows.labels.tolist() == [0, 1, 3] and rows.num_truncated == 0
    starts = np.cumsum(rows.lengths) - rows.lengths
    for row, (begin, length) in enumerate(zip(starts, rows.lengths, strict=True)):
        _, sent1, sent2, *endings, _ = SWAG[row // 4]
        expected = tokenizer.encode(sent1, f"{sent2} {endings[row % 4]}")
        assert rows.input_ids[begin : begin + length].tolist() == expected.ids
        assert rows.first_lengths[row] == expected.type_ids.index(1)


def trained(model):
    return [(name, each) for name, each in model.named_parameters() if each.grad is not None]


def test_shares_of_a_step_add_up_to_the_whole(model, questions, tokenizer):
    task = MultipleChoice()
    rows = task.encode(questions, tokenizer)
    totals = []
    for max_tokens, world_size, layout in (
        (10_000, 1, "packed"),
        (60, 1, "padded"),
        (60, 3, "packed"),
    ):
        source = TaskBatchSource(rows, batch_size=5, max_tokens=max_tokens, seed=1, layout=layout)
        model.zero_grad()
        sums = torch.zeros(3)
        for rank in range(world_size):
            step = source.step(0, rank, world_size)
            assert step.num_rows == 15
            for batch in step.micro_batches:
                loss, some = task_loss(task, model, batch, **step.counts)
                loss.backward()
                sums += some
        totals.append((sums, [each.grad for _, each in trained(model)]))
    for sums, gradients in totals[1:]:
        assert torch.allclose(sums, totals[0][0], atol=1e-5)
        for found, expected in zip(gradients, totals[0][1], strict=True):
            assert (found - expected).norm() < 1e-5 * (1 + expected.norm())


def test_what_has_no_answer_teaches_nothing(model, questions, tokenizer):
    task = MultipleChoice()
    rows = task.encode(questions, tokenizer)
    assert rows.label_counts.tolist() == [1, 1, 1, 0, 1, 1, 1]
    for batch in (
        rows.batch(np.array([3]), "packed"),
        rows.batch(np.array([0]), "packed", without_labels=True),
    ):
        loss, sums = task_loss(task, model, batch, num_labels=1)
        loss.backward()
        assert loss == 0 and sums.tolist() == [0, 0, 0]
        assert model.heads["classifier"].linear.weight.grad.abs().sum() == 0


def test_decodes_and_counts_what_is_right(questions, tokenizer):
    task = MultipleChoice()
    rows = task.encode(questions[:2], tokenizer)
    outputs = np.array([[0], [2], [1], [3], [-1], [0]], dtype=np.float32)
    predictions = task.decode(outputs, rows, questions[:2])
    assert [prediction["choice"] for prediction in predictions] == [1, 0]
    assert predictions[0]["scores"] == pytest.approx([0.0900, 0.6652, 0.2447], abs=1e-4)
    examples = [Choices("", ("", "", ""), 1), Choices("", ("", "", ""), 2)]
    assert task.metrics(predictions, examples) == {"accuracy": 0.5}
    assert task.decode(outputs[:0], task.encode([], tokenizer), []) == []


def test_truncation_is_counted_by_example(tokenizer):
    words = "man door song bar " * 3
    examples = [
        Choices("man", (words, words, "bar"), 0),
        Choices("man", ("song", "bar", "door"), 1),
    ]
    rows = MultipleChoice(max_length=10).encode(examples, tokenizer)
    assert rows.lengths.max() == 10 and rows.num_truncated == 1


def lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_column_may_hold_the_list_and_an_answer_may_be_missing(tmp_path):
    path = lines(
        tmp_path / "dev.jsonl",
        {"context": "Two.", "choices": ["one", "three"], "label": 1},
        {"context": "Two.", "choices": ["one", "three"], "label": None},
        {"context": "One.", "choices": ["two", "three"], "label": 0},
    )
    assert [example.answer for example in MultipleChoice().examples(path, "dev")] == [1, None, 0]


def test_an_answer_may_be_a_columns_name(tmp_path):
    task = MultipleChoice(choice_columns=("a", "b"))
    path = lines(tmp_path / "dev.jsonl", {"context": "Two.", "a": "x", "b": "y", "label": "b"})
    assert task.examples(path, "dev")[0].answer == 1


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"context": "c", "choices": ["x", "y"], "label": 2}, r"unknown label '2'.*dev.jsonl:2"),
        ({"context": "c", "choices": ["x", " "], "label": 0}, r"no text.*choices.*dev.jsonl:2"),
        ({"context": "c", "choices": "x", "label": 0}, r"no list of choices.*dev.jsonl:2"),
        ({"context": "c", "choices": ["x"], "label": 0}, r"no list of choices.*dev.jsonl:2"),
        ({"choices": ["x", "y"], "label": 0}, r"no column context.*dev.jsonl:2"),
        ({"context": "c", "choices": ["x", "y", "z"], "label": 0}, r"3 choices.*2.*dev.jsonl:2"),
    ],
)
def test_bad_records_are_named(tmp_path, tokenizer, record, message):
    good = {"context": "c", "choices": ["x", "y"], "label": 0}
    path = lines(tmp_path / "dev.jsonl", good, record)
    with pytest.raises(TaskDataError, match=message):
        MultipleChoice().encode(MultipleChoice().examples(path, "dev"), tokenizer)


def test_swag_comes_from_the_hub_with_its_hidden_test_set(hub_copy):
    from datasets import ClassLabel, Value

    names = ("sent1", "sent2", *(f"ending{index}" for index in range(4)))
    columns = {name: [f"{name} a", f"{name} b"] for name in names}
    features = {name: Value("string") for name in names}
    features["label"] = ClassLabel(names=["0", "1", "2", "3"])
    typed = hub_copy(
        features, train={**columns, "label": [3, 0]}, test={**columns, "label": [-1, -1]}
    )
    first, second = TASKS["swag"].examples(typed, "train")
    assert (first.context, first.choices[1]) == ("sent1 a", "sent2 a ending1 a")
    assert (first.answer, second.answer) == (3, 0)
    assert [example.answer for example in TASKS["swag"].examples(typed, "test")] == [None, None]


def numbered(path, keys, names=("1", "2", "3", "4")):
    """Questions whose choices stand in columns of numbers."""
    rows = [f"q{n},w{n},x{n},y{n},z{n},{key}" for n, key in enumerate(keys)]
    path.write_text("\n".join([f"context,{','.join(names)},label", *rows]))


def test_columns_called_1_to_4_are_meant_by_keys_from_1_to_4(tmp_path):
    numbered(tmp_path / "train.csv", [1, 2, 3, 4, 1])
    numbered(tmp_path / "dev.csv", [2, 2, 1])
    task = MultipleChoice(choice_columns=("1", "2", "3", "4"))
    assert [example.answer for example in task.examples(tmp_path, "train")] == [0, 1, 2, 3, 0]
    assert [example.answer for example in task.examples(tmp_path, "dev")] == [1, 1, 0]


@pytest.mark.parametrize(("keys", "first"), [([0, 3, 1], 0), ([1, 4, 2], 1)])
def test_numbers_count_as_those_of_all_splits_do(tmp_path, keys, first):
    names = ("a", "b", "c", "d")
    numbered(tmp_path / "train.csv", keys, names)
    numbered(tmp_path / "dev.csv", [2, 1], names)
    task = MultipleChoice(choice_columns=names)
    assert [example.answer for example in task.examples(tmp_path, "dev")] == [2 - first, 1 - first]
    with pytest.raises(TaskDataError, match="'2' may be the choice .*dev.csv:2 .*first_number"):
        task.examples(tmp_path / "dev.csv", "dev")
    told = MultipleChoice(choice_columns=names, first_number=first)
    found = told.examples(tmp_path / "dev.csv", "dev")
    assert [each.answer for each in found] == [2 - first, 1 - first]
    numbered(tmp_path / "dev.csv", [4, 0], names)
    with pytest.raises(TaskDataError, match="numbers from 0 to 4"):
        task.examples(tmp_path, "dev")


def test_the_text_of_a_choice_may_be_the_key_with_words_before_it(tmp_path):
    path = tmp_path / "dev.jsonl"
    record = {"context": "c", "start": "He", "choices": ["walks", "runs"], "label": "runs"}
    path.write_text(json.dumps(record))
    (found,) = MultipleChoice(start_column="start").examples(path, "dev")
    assert (found.answer, found.choices) == (1, ("He walks", "He runs"))


ARC = {"text": ["cat", "dog", "fox"], "label": ["A", "B", "C"]}
NUMBERED_ARC = {"text": ["cat", "dog", "fox"], "label": ["1", "2", "3"]}
LISTED = [{"label": name, "text": text} for name, text in zip("ABC", ARC["text"], strict=True)]
MEDICAL = dict(zip("ABC", ARC["text"], strict=True))


@pytest.mark.parametrize(
    ("rows", "answers"),
    [
        ([(ARC, "B"), (NUMBERED_ARC, "3"), (NUMBERED_ARC, "1"), (ARC, None)], [1, 2, 0, None]),
        ([(ARC, "(B)"), (ARC, "c."), (ARC, "a)")], [1, 2, 0]),
        ([(LISTED, "B"), (LISTED[::-1], "A")], [1, 2]),
        ([(MEDICAL, "C"), (MEDICAL, "dog")], [2, 1]),
        ([({**ARC, "label": [3, 2, 1]}, 1), ({**ARC, "label": [3, 2, 1]}, 3)], [2, 0]),
        ([(ARC["text"], "B."), (ARC["text"], "[c]")], [1, 2]),
        ([(str(ARC["text"]), "0"), (json.dumps(ARC["text"]), "2")], [0, 2]),
        ([(str(ARC), "B"), (json.dumps(LISTED), "C")], [1, 2]),
    ],
)
def test_choices_as_published_sets_list_them(tmp_path, rows, answers):
    records = [{"context": "c", "choices": choices, "label": key} for choices, key in rows]
    found = MultipleChoice().examples(lines(tmp_path / "dev.jsonl", *records), "dev")
    assert [each.answer for each in found] == answers
    assert {*found[0].choices} == {"cat", "dog", "fox"}


@pytest.mark.parametrize("key", ["D", "4", "(D)"])
def test_a_key_that_no_choice_of_the_record_is_called_is_refused(tmp_path, key):
    path = lines(tmp_path / "dev.jsonl", {"context": "c", "choices": ARC, "label": key})
    with pytest.raises(TaskDataError, match=r"unknown label.*dev.jsonl:1"):
        MultipleChoice().examples(path, "dev")


def test_a_field_within_a_column_is_named_with_a_point(tmp_path):
    record = {"id": "1", "question": {"stem": "Who barks?", "choices": LISTED}, "answerKey": "B"}
    path = lines(tmp_path / "dev.jsonl", record)
    columns = {"choice_columns": ("question.choices",), "label_column": "answerKey"}
    task = MultipleChoice(context_column="question.stem", **columns)
    assert task.examples(path, "dev")[0].answer == 1
    remedy = r"dev.jsonl:1 .name a field of it, question.stem or question.choices"
    with pytest.raises(TaskDataError, match=remedy):
        MultipleChoice(context_column="question", **columns).examples(path, "dev")


TEXTS = ("cat", "dog", "fox", "hen")
NUMBERED = ("1", "2", "3", "4")


def read(values, texts=TEXTS, **options):
    """The answers of a file of these values, each beside the same texts."""
    given = {"names": (), "names_are_numbers": False, "first_number": None, **options}
    others = [key_of(value, texts, "other") for value in given.pop("others", ())]
    keys = [key_of(value, texts, f"line {line}") for line, value in enumerate(values, start=1)]
    return answers_of(keys, others=lambda: others, **given)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 1, 3], [0, 1, 3]),
        (["0", "3"], [0, 3]),
        ([1, 4], [0, 3]),
        (["1 ", " 4"], [0, 3]),
        ([4.0, 1.0, 2.0], [3, 0, 1]),
        (["4.0", "01"], [3, 0]),
        ([0, None, "", -1, -1.0, float("nan"), "-1", " ", 3], [0, *[None] * 7, 3]),
        (["A", "d"], [0, 3]),
        (["B", "1", "4"], [1, 0, 3]),  # ARC has both
        (["dog", "Hen "], [1, 3]),
        ([None, None], [None, None]),
        ([], []),
    ],
)
def test_one_rule_reads_the_keys_of_a_file(values, expected):
    assert read(values) == expected


@pytest.mark.parametrize("values", [[1, 2, 3], [1], ["2", "3"]])
def test_numbers_that_may_count_from_0_or_1_are_refused_until_it_is_said(values):
    with pytest.raises(TaskDataError, match=r"may be the choice .*line 1.*first_number 0 or 1"):
        read(values)
    numbers = [int(value) for value in values]
    assert read(values, first_number=0) == numbers
    assert read(values, first_number=1) == [number - 1 for number in numbers]
    assert read(values, others=[0]) == numbers, "the other splits say it"
    assert read(values, others=[4, "A", None]) == [number - 1 for number in numbers]


@pytest.mark.parametrize("value", [1, "1", 1.0, " 1"])
def test_the_name_of_a_column_comes_before_its_number(value):
    assert read([value, 2, "3", 4], names=NUMBERED) == [0, 1, 2, 3]
    assert read([value], names=NUMBERED) == [0]
    assert read([value, 4], names=NUMBERED[::-1]) == [3, 0]
    assert read([value, 4], names=NUMBERED, first_number=1) == [0, 3]
    with pytest.raises(TaskDataError, match="name of a column, and the number of another: line 1"):
        read([value], names=NUMBERED, first_number=0)


def test_names_in_another_case_and_order():
    assert read(["b", "A"], names=("B", "A", "C", "D")) == [0, 1]
    assert read(["ending1", "Ending0"], names=("ending0", "ending1", "x", "y")) == [1, 0]
    assert read(["dog"], names=("dog", "cat", "x", "y")) == [0], "before a text too"


def test_numbers_of_which_some_are_names_of_other_columns_are_refused():
    with pytest.raises(TaskDataError, match="first_number"):
        read([0, 1, 2, 3], names=NUMBERED)
    assert read([0, 1, 2, 3], names=NUMBERED, first_number=0) == [0, 1, 2, 3]


def test_without_a_header_the_numbers_of_columns_are_no_names():
    options = {"names": NUMBERED, "names_are_numbers": True}
    assert read([0, 3], **options) == [0, 3]
    assert read([1, 4], **options) == [0, 3]
    with pytest.raises(TaskDataError, match="may be the choice"):
        read([1, 3], **options)
    assert read([1, 3], **options, first_number=0) == [1, 3]


@pytest.mark.parametrize(
    ("values", "texts"),
    [(["4"], ("3", "4", "5", "6")), (["4", "3"], ("3", "4", "5", "6")), (["A"], ("B", "A"))],
)
def test_a_key_that_is_the_text_of_one_choice_and_the_number_of_another_is_refused(values, texts):
    with pytest.raises(TaskDataError, match="may be the choice"):
        read(values, texts)


def test_a_text_that_no_number_can_be_is_a_text():
    assert read(["20", "40"], ("10", "20", "30", "40")) == [1, 3]
    assert read(["4"], ("3", "4", "5", "6"), first_number=1) == [3]


@pytest.mark.parametrize(
    ("values", "options", "match"),
    [
        ([0, 1, 4], {}, r"unknown label '4': numbers from 0 to 4.*line 3"),
        ([0, 3], {"others": [4]}, r"unknown label '0': numbers from 0 to 3.*other splits"),
        ([0, 4], {"first_number": 0}, "unknown label '4'.*line 2"),
        ([0, -2], {}, "unknown label '-2'.*line 2"),
        (["A", "E"], {}, "unknown label 'E': line 2"),
        (["A", "?"], {}, "unknown label '[?]': line 2"),
        ([True, "1.5"], {}, "unknown label 'True': line 1"),
        ([["cat"]], {}, "unknown label .*line 1"),
        (["e"], {"names": ("a", "b")}, "unknown label 'e': line 1 .one of a, b, a letter"),
    ],
)
def test_what_is_no_choice_is_named(values, options, match):
    with pytest.raises(TaskDataError, match=match):
        read(values, **options)


def read_labelled(values, labels, **options):
    """The answers of a file whose records each call their choices so."""
    given = {"names": (), "names_are_numbers": False, "first_number": None, **options}
    texts, names = listed_choices({"text": list(TEXTS), "label": list(labels)})
    others = [key_of(value, texts, "other", names) for value in given.pop("others", ())]
    keys = [key_of(value, texts, f"line {line}", names) for line, value in enumerate(values)]
    return answers_of(keys, others=lambda: others, **given)


def test_what_a_record_calls_its_choices_counts_where_all_keys_are_such_names():
    assert read_labelled([3, "1"], NUMBERED) == [2, 0]
    assert read_labelled([0, 2], NUMBERED) == [0, 2], "0 is none of them, so keys are numbers"
    assert read_labelled([2], NUMBERED, others=[0]) == [2], "another split says it"
    assert read_labelled([2], NUMBERED, others=[4]) == [1]
    assert read_labelled([None, "A"], ("A", "B", "C", "")) == [None, 0]
    assert read_labelled([1, 0], (1, 0, 0, 0)) == [1, 0], "1 and 0 mark the answer"
    assert read_labelled([0, 2], ("A", "A", "B", "C")) == [0, 2], "labels that repeat are no names"
    marked = [{"text": "a", "label": 1}, {"text": "b", "label": 0}]
    assert listed_choices(marked) == (("a", "b"), ())
