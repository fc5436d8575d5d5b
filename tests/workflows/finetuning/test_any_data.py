"""Whatever a file holds, it is learned from or refused in one line, before the first step.

Files of every task and form that are as they should be but for a value, a cell or some bytes.
"""

import json
import re
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from finetuning_runs import arguments, write_encoder
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_core.errors import UserError
from bert_core.evaluation.outcomes import prediction_records, write_predictions
from bert_core.tasks.encoded_rows import TaskBatchSource
from bert_core.tasks.task import has_answer
from bert_core.tokenizer import load_tokenizer
from bert_core.training_statistics import statistics_of_examples
from workflows.evaluation.report import evaluation_report
from workflows.finetune import parse
from workflows.finetuning.data import read_task_data

TEXTS = ["ba keli", "monu", "rashi ba vuza", "to noka"]
ODD_TEXTS = [
    *("", " ", "\u200b", "\u00a0", "日本", "😀", "\0", "\x85", "\u2028", '"', "#", "-1"),
    "x " * 200,
]
ODD_LABELS = [
    *("", "-1", "nan", "inf", "-inf", "1e39", "1e999", "9" * 400, "B-", "I-X", "o", "a,b", "1.0"),
]
ODD_BYTES = [
    *(b"\xff", b"\xed\xa0\x80", b"\0", b"\r", b"\n\n", b"\n", b"\t", b",", b";", b'"', b'""'),
    *(b"\xef\xbb\xbf", b"[" * 5000, b'{"a":' * 5000, b"{", b"]", b"null", b"NaN", b"9" * 5000),
    *(b"\\ud800", b"\\u0000", b"-DOCSTART- O\n\n", b"\x1f\x8b", b"1e999", b"Infinity", b"\\"),
]
TEXT = st.sampled_from(TEXTS)
ANSWERS = {
    "classification": st.sampled_from(["up", "down"]),
    "regression": st.sampled_from([0.5, 1, 2.5]),
    "multiple": st.sampled_from(["up", "down", "up,down", ""]),
    "choice": st.sampled_from([0, 1]),
    "name": st.sampled_from(["text", "pair"]),
}
QUESTION = {
    "id": st.sampled_from(["a", "b"]),
    "context": st.just("ba keli monu"),
    "question": TEXT,
    "answers": st.sampled_from([{"text": ["ba"], "answer_start": [0]}] * 3),
}
TAGGED = {
    "tokens": st.just(["ba", "keli"]),
    "ner_tags": st.sampled_from([["O", "B-PER"], ["B-PER", "I-PER"], ["O", "O"]]),
}


def of_text(answer):
    return {"text": TEXT, "label": ANSWERS[answer], "pair": TEXT}


CHOICES = {"context": TEXT, "choices": st.just(["ba", "monu"]), "label": ANSWERS["choice"]}
LABELLED_CHOICES = {
    "context": TEXT,
    "choices": st.sampled_from([{"text": ["ba", "monu"], "label": ["A", "B"]}] * 3),
    "label": st.sampled_from(["A", "(B)"]),
}
WORD_A_LINE = {
    "sent_id": st.sampled_from(["1", "2", ""]),
    "word": st.sampled_from(["ba", "keli"]),
    "tag": st.sampled_from(["O", "B-PER"]),
}
HEADERLESS = "--no-options.header --options.text_column 0 --options.label_column 1"

CASES = {
    "classification": ("tsv csv jsonl parquet", of_text("classification")),
    "classification --options.second_column pair": ("csv jsonl", of_text("classification")),
    "classification --options.kind multiple": ("tsv jsonl parquet", of_text("multiple")),
    "classification --options.kind regression": ("tsv jsonl parquet", of_text("regression")),
    f"classification {HEADERLESS}": ("tsv csv", of_text("classification")),
    "multiple_choice": ("jsonl parquet csv", CHOICES),
    "multiple_choice --options.choice_columns choices": ("jsonl csv", LABELLED_CHOICES),
    "multiple_choice --options.choice_columns pair,text": (
        "csv jsonl",
        {"context": TEXT, **of_text("name")},
    ),
    "ner --options.word_column tokens --options.tag_column ner_tags": ("jsonl parquet csv", TAGGED),
    "ner --options.tag_column tag": ("csv", WORD_A_LINE),
    "ner": ("txt", TAGGED),
    "ner --options.scheme none": ("conll", TAGGED),
    "squad": ("json jsonl parquet csv", QUESTION),
    "squad_v2": ("json jsonl", QUESTION),
}
OF_ENDINGS = [(task, ending) for task, (endings, _) in CASES.items() for ending in endings.split()]


def any_value():
    leaves = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-2, 3),
        st.sampled_from([1 << 31, 1 << 62, 1 << 63, -(1 << 64), 10**400]),
        st.sampled_from([0.0, 1.0, -1.0, 0.5, 1e39, float("nan"), float("inf"), float("-inf")]),
        st.sampled_from([*TEXTS, *ODD_TEXTS, *ODD_LABELS, "\ud800", "a\udfff"]),
    )
    keys = st.sampled_from(["text", "answer_start", "a"])
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(keys, inner, min_size=1, max_size=2)
        ),
        max_leaves=4,
    )


@st.composite
def any_records(draw, columns):
    """Some records, of which a value or a column may be another than it should be."""
    records = [
        {name: draw(column) for name, column in columns.items()}
        for _ in range(draw(st.sampled_from([0, 1, 2, 4, 8])))
    ]
    for _ in range(draw(st.integers(0, 2)) if records else 0):
        record, name = draw(st.sampled_from(records)), draw(st.sampled_from([*columns]))
        if draw(st.integers(0, 9)) == 0:
            record.pop(name, None)
        else:
            record[name] = draw(any_value())
    return records


@st.composite
def any_bytes_in(draw, content):
    """The bytes with others among them, cut off, or as they are."""
    place = draw(st.integers(0, len(content)))
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return content[:place]
    odd = draw(st.sampled_from(ODD_BYTES) | st.binary(max_size=3)) if kind == 1 else b""
    return content[:place] + odd + content[place:]


def cell(value):
    return value if isinstance(value, str) else json.dumps(value)


def as_table(records, columns, divider, header):
    lines = [divider.join(columns)] if header else []
    for record in records:
        cells = [cell(record.get(name, "")) for name in columns]
        if divider == ",":
            cells = [
                '"{}"'.format(each.replace('"', '""')) if re.search('[,"\n\r]', each) else each
                for each in cells
            ]
        lines.append(divider.join(cells))
    return "\n".join(lines)


def as_conll(records):
    sentences = []
    for record in records:
        columns = [each if isinstance(each, list) else [each] for each in record.values()]
        lines = zip(*columns, strict=False)
        sentences.append("\n".join(" ".join(map(cell, line)) for line in lines))
    return "\n\n".join(sentences)


def as_squad(records):
    articles = []
    for record in records:
        context, answers = record.pop("context", None), record.get("answers")
        if isinstance(answers, dict) and isinstance(answers.get("text"), list):
            starts = answers.get("answer_start")
            record["answers"] = [
                {
                    "text": answer,
                    "answer_start": starts[0] if isinstance(starts, list) and starts else starts,
                }
                for answer in answers["text"]
            ]
        articles.append(
            {"title": record.get("id"), "paragraphs": [{"context": context, "qas": [record]}]}
        )
    return json.dumps({"data": articles})


def as_parquet(records, columns):
    arrays = {}
    for name in columns:
        values = [record.get(name) for record in records]
        try:
            arrays[name] = pa.array(values)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            arrays[name] = pa.array([json.dumps(value) for value in values])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(arrays), sink)
    return sink.getvalue().to_pybytes()


@st.composite
def any_file(draw, task, ending):
    columns = CASES[task][1]
    records = draw(any_records(columns))
    if ending == "parquet":
        content = as_parquet(records, columns)
    elif ending in ("txt", "conll"):
        content = as_conll(records)
    elif ending == "json":
        content = as_squad(records)
    elif ending == "jsonl":
        content = "\n".join(map(json.dumps, records))
    else:
        divider = "\t" if ending == "tsv" else ","
        content = as_table(records, columns, divider, HEADERLESS not in task)
    if isinstance(content, str):
        content = content.encode("utf-8", "replace")
    return draw(any_bytes_in(content))


@st.composite
def train_and_dev(draw, task, ending):
    """Two files of which one may be odd."""
    good, odd = (draw(any_file(task, ending)) for _ in range(2))
    return draw(st.sampled_from([(odd, odd), (good, odd), (odd, good)]))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return write_encoder(tmp_path_factory.mktemp("any") / "encoder")


def learn_first_stages(given_settings, tokenizer, folder):
    """All that a run does with its data but for the model: what that says is made up."""
    data = read_task_data(given_settings.model_copy(update={"data": str(folder)}), tokenizer)
    statistics_of_examples(data.task, data.train.examples, data.train.rows, tokenizer)
    source = TaskBatchSource(data.train.rows, batch_size=4, max_tokens=64, seed=0, layout="packed")
    assert source.step(0, 0, 1).micro_batches
    assert not np.isinf(data.train.rows.labels).any()
    rows, examples = data.dev.rows, data.dev.examples
    shape = len(rows.places), data.task.head.num_outputs
    outputs = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    predictions = data.task.decode(outputs, rows, examples)
    labelled = [index for index, each in enumerate(examples) if has_answer(each)]
    if not labelled:
        return
    known, found = ([all_[index] for index in labelled] for all_ in (examples, predictions))
    figures = data.task.metrics(found, known)
    assert np.isfinite([*figures.values()]).all() and data.task.criterion in figures
    data.task.tuned(found, known)
    evaluation_report(
        data.task, found, known, title="t", slice_by=(), num_resamples=100, seed=0, hurried=True
    )
    write_predictions(prediction_records(data.task, found, known), folder / "out.jsonl")


@pytest.mark.some(12)
@pytest.mark.parametrize(("task", "ending"), OF_ENDINGS)
def test_any_file_is_learned_from_or_refused_in_one_line(encoder, task, ending):
    name, *options = task.split()
    given_settings = parse(["--task", name, *arguments(encoder.parent, model=encoder), *options])
    tokenizer = load_tokenizer(encoder)

    @settings(max_examples=20, deadline=None, derandomize=True, database=None)
    @given(both=train_and_dev(task, ending))
    def run(both):
        with tempfile.TemporaryDirectory() as folder:
            for split, content in zip(("train", "dev"), both, strict=True):
                (Path(folder) / f"{split}.{ending}").write_bytes(content)
            try:
                learn_first_stages(given_settings, tokenizer, Path(folder))
            except UserError as error:
                assert "\n" not in str(error) and error.remedy
                str(error).encode()

    run()


GOOD = {
    "tsv": "text\tlabel\tpair\nba keli\tup\tto\nmonu\tdown\tba\n",
    "csv": "text,label,pair\nba keli,up,to\nmonu,down,ba\n",
    "jsonl": '{"text": "ba", "label": "up"}\n{"text": "to", "label": "down"}\n',
    "txt": "ba B-ONE\nto O\n\nkeli B-TWO\n",
    "json": '{"data": [{"paragraphs": [{"context": "ba keli", "qas": [{"id": "a",'
    ' "question": "keli", "answers": [{"text": "ba", "answer_start": 0}]}]}]}]}',
}
NUMBERS = '{"text": "ba", "label": 0.5}\n{"text": "to", "label": 1.5}\n'
REGRESSION = "classification --options.kind regression"
BROKEN = [
    ("classification", "tsv", "", "no examples in the SPLIT split"),
    ("classification", "tsv", "text\tlabel\n", "no examples in the SPLIT split"),
    ("classification", "csv", "\ufeff", "no examples in the SPLIT split"),
    ("classification", "jsonl", "\n\n", "no examples in the SPLIT split"),
    ("classification", "jsonl", '{"text": "\\ud800", "label": "up"}', "lone surrogate.*:1"),
    ("classification", "jsonl", '{"text": "ba", "label": "\\udfff"}', "lone surrogate.*:1"),
    ("classification", "jsonl", "\n" + "[" * 100_000, "not JSON: .*SPLIT.jsonl:2"),
    ("classification", "jsonl", '{"a":' * 100_000, "not JSON: .*SPLIT.jsonl:1"),
    ("classification", "jsonl", f'{{"text": {"9" * 5000}}}', "not JSON: .*SPLIT.jsonl:1"),
    ("classification", "jsonl", '{"text": 5, "label": "up"}', "no text .*SPLIT.jsonl:1"),
    ("classification", "jsonl", '{"text": ["ba"], "label": "up"}', "no text .*SPLIT.jsonl:1"),
    ("classification", "jsonl", '{"text": "ba", "label": {"a": 1}}', "not a label.*SPLIT.jsonl:1"),
    ("classification", "tsv", "text\tlabel\n \tup\n", "no text .*SPLIT.tsv:2"),
    ("classification", "csv", 'text,label\n"ba,up\nto,down\n', "not closed: .*SPLIT.csv:2"),
    (
        REGRESSION,
        "jsonl",
        NUMBERS + '{"text": "ba", "label": 1e999}',
        "be learned: .*SPLIT.jsonl:3",
    ),
    (REGRESSION, "jsonl", NUMBERS + '{"text": "ba", "label": "x"}', "not a num.*SPLIT.jsonl:3"),
    ("ner", "txt", "\n\n-DOCSTART- O\n\n", "no examples in the SPLIT split"),
    ("squad", "json", '{"data": ' + "[" * 100_000, "not JSON: .*SPLIT.json"),
    ("squad", "json", "9" * 5000, "not JSON: .*SPLIT.json"),
    ("squad", "json", '{"data": []}', "no examples in the SPLIT split"),
]


@pytest.mark.parametrize("split", ["train", "dev"])
@pytest.mark.parametrize(("task", "ending", "content", "match"), BROKEN)
def test_a_file_that_breaks_an_assumption_is_named(
    encoder, tmp_path, split, task, ending, content, match
):
    good = NUMBERS if task == REGRESSION else GOOD[ending]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.{ending}").write_text(content if name == split else good)
    name, *options = task.split()
    given_settings = parse(["--task", name, *arguments(encoder.parent, model=encoder), *options])
    with pytest.raises(UserError, match=match.replace("SPLIT", split)):
        learn_first_stages(given_settings, load_tokenizer(encoder), tmp_path)


def test_words_of_which_none_has_a_token_are_refused(encoder, tmp_path):
    (tmp_path / "train.txt").write_text(GOOD["txt"])
    (tmp_path / "dev.txt").write_text("\u200b O\n\u200b B-ONE\n")
    given_settings = parse(["--task", "ner", *arguments(encoder.parent, model=encoder)])
    with pytest.raises(UserError, match="no word of the dev split has a token"):
        learn_first_stages(given_settings, load_tokenizer(encoder), tmp_path)


def test_data_of_few_examples_is_learned_from(encoder, tmp_path):
    """As many labels as examples, one example of dev, a text without a token, a very long one."""
    lines = [("ba", "a"), ("\u200b", "b"), ("keli " * 50_000, "c"), ("to\0", "d")]
    rows = "".join(f"{text}\t{label}\n" for text, label in lines)
    (tmp_path / "train.tsv").write_text(f"text\tlabel\n{rows}")
    (tmp_path / "dev.tsv").write_text("text\tlabel\nba\ta\n")
    given_settings = parse(arguments(encoder.parent, model=encoder))
    learn_first_stages(given_settings, load_tokenizer(encoder), tmp_path)
