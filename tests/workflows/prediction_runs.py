"""Texts for the prediction command, and what it wrote, for the tests of several modules."""

import json
import random

import pyarrow.parquet as pq
from small_tasks import WORDS

LONG = " ".join(WORDS * 20)
"""Too long for a row of any of the small models."""


def some_texts(seed, count, longest=20):
    """Texts of few words, seeded, the last of them too long for a row."""
    choose = random.Random(seed)
    texts = [" ".join(choose.choices(WORDS, k=choose.randint(1, longest))) for _ in range(count)]
    return [*texts[:-1], LONG]


def write_jsonl(path, records):
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return path


def read_rows(folder):
    """All rows, as anybody would read them: in their order."""
    paths = sorted((folder / "predictions").iterdir())
    if paths[0].suffix == ".parquet":
        return pq.read_table(folder / "predictions").to_pylist()
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def read_index(folder):
    return json.loads((folder / "index.json").read_text())
