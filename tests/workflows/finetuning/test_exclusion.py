"""Examples that a file of suspects leaves out of training."""

import csv
import json

import pytest
from finetuning_runs import arguments, write_encoder, write_tagged, write_task
from hostile_labels import HOSTILE_LABELS

from bert_core.errors import UserError
from bert_core.evaluation.outcomes import write_predictions
from bert_core.tasks.tables import read_table
from bert_core.tokenizer import load_tokenizer
from workflows.audits.findings import write_csv
from workflows.finetune import parse
from workflows.finetuning.data import read_task_data
from workflows.finetuning.splits import as_cell, of_cell, place_of

FORMULAS = (
    "=1+1",
    "+SUM(A1)",
    "-2+3",
    "@cmd",
    "\tx",
    "\rx",
    "'=1",
    "''+x",
    "'tis",
    "-1",
    "+1.5",
    "'-1",
    "",
    'a\n=b,"c"\r\nd',
)


@pytest.fixture
def storage(tmp_path):
    write_task(tmp_path / "data")
    write_encoder(tmp_path / "encoder")
    return tmp_path


def read(storage, *more, **changed):
    given = [*arguments(storage, **changed), *more]
    return read_task_data(parse(given), load_tokenizer(storage / "encoder"))


def write(storage, examples, name="out.csv", **changed):
    """A file that names these examples."""
    records = [
        {"where": place_of(each.where), "text": each.first, "label": each.answer} | changed
        for each in examples
    ]
    path = storage / name
    if path.suffix == ".csv":
        write_csv(records, list(records[0]), path)
    else:
        write_predictions(records, path)
    return path


@pytest.mark.parametrize("text", [*FORMULAS, *HOSTILE_LABELS])
def test_a_cell_is_no_formula_and_is_read_back(tmp_path, text):
    assert of_cell(as_cell(text)) == text
    assert as_cell(text)[:1] not in ("=", "@", "\t", "\r") or as_cell(text) == ""
    if as_cell(text)[:1] in ("+", "-") and len(text):
        float(as_cell(text))  # a number is none
    path = tmp_path / "cells.csv"
    write_csv([{"where": "a", "text": text}], ["where", "text"], path)
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [of_cell(row["text"]) for row in rows] == [text]
    assert [of_cell(each.values["text"]) for each in read_table(path)] == [text]


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl"])
def test_exactly_the_named_examples_are_left_out(storage, name):
    whole = read(storage)
    named = whole.train.examples[3:60:7]
    data = read(storage, exclude=write(storage, named, name))
    assert data.train.examples == [each for each in whole.train.examples if each not in named]
    assert data.train.rows.tally["excluded"] == len(named)
    assert data.dev.examples == whole.dev.examples and data.task == whole.task
    assert data.sha256 != whole.sha256
    line = next(line for line in data.tally_lines if line.startswith("train"))
    assert f"{len(named)} excluded" in line


def test_the_name_of_a_run_is_that_of_its_data(storage):
    recipe = parse(arguments(storage, exclude="somewhere.csv")).recipe()
    assert recipe == parse(arguments(storage)).recipe() and "exclude" not in recipe


def test_only_train_loses_them_where_it_is_divided(storage):
    whole = read(storage, split=0.3)
    named = [*whole.train.examples[:5], *whole.dev.examples[:4]]
    data = read(storage, split=0.3, exclude=write(storage, named))
    assert data.dev.examples == whole.dev.examples
    assert data.train.examples == whole.train.examples[5:]
    assert data.train.rows.tally["excluded"] == 5


def test_texts_of_any_kind_are_found_again(storage):
    table = storage / "all.csv"
    texts = [f"{text} {n}" for n, text in enumerate([*FORMULAS, *HOSTILE_LABELS]) if text.strip()]
    texts += ["line,one,x\nline,two,x\nline,three,x\nline,four,x\nline,five,x"]
    rows = [{"text": text, "label": "up" if n % 2 else "down"} for n, text in enumerate(texts)]
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["text", "label"])
        writer.writeheader()
        writer.writerows(rows)
    given = {"data": table, "split": 0.3, "options.max_skipped": 1}
    whole = read(storage, **given)
    named = whole.train.examples[::2]
    data = read(storage, exclude=write(storage, named), **given)
    assert data.train.examples == whole.train.examples[1::2]


def test_sentences_with_a_suspect_word_are_left_out(storage):
    write_tagged(storage / "tagged")
    given = {"task": "tagging", "data": storage / "tagged"}
    whole = read(storage, **given)
    named = whole.train.examples[2:40:5]
    rows = [
        {"where": place_of(each.where), "text": " ".join(each.words), "word": word}
        for each in named
        for word in (1, 2)
    ]
    path = storage / "words.jsonl"
    write_predictions(rows, path)
    data = read(storage, exclude=path, **given)
    assert data.train.rows.tally["excluded"] == len(named)
    assert data.train.examples == [each for each in whole.train.examples if each not in named]


def test_what_names_no_example_is_refused(storage):
    examples = read(storage).train.examples

    def refused(path, message, **changed):
        with pytest.raises(UserError, match=message) as error:
            read(storage, exclude=path, **changed)
        assert "\n" not in str(error.value)

    refused(write(storage, examples[:2], text="another"), "another text at train.tsv:2")
    refused(write(storage, examples[:2], where="train.tsv:999"), "no training example at")
    refused(write(storage, examples[:2], where="dev.tsv:2"), "no training example at dev.tsv:2")
    refused(write(storage, examples), "nothing is left")
    refused(storage / "nowhere.csv", "no such file")
    refused(storage / "data" / "train.tsv", "unknown kind of file")
    (storage / "rows.csv").write_text("place,text\ntrain.tsv:2,x\n")
    refused(storage / "rows.csv", "no column where")
    (storage / "rows.jsonl").write_text(json.dumps({"where": "train.tsv:2"}) + "\n")
    refused(storage / "rows.jsonl", "no column text")
