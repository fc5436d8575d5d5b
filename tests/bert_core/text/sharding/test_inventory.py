import json
from collections import Counter

import numpy
import pytest

from bert_core.text.reading.sources import CorpusError, find_parts
from bert_core.text.sharding import pieces
from bert_core.text.sharding.inventory import (
    SampleTexts,
    describe_sources,
    group_parts,
    take_inventory,
)
from bert_core.text.sharding.pieces import scan_parts

DOCUMENTS = [f"Document number {n}. It has {n} apples.\nAnd a second line." for n in range(40)]


@pytest.fixture
def scanned(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_BYTES", 500)
    for number in range(4):
        texts = DOCUMENTS[number * 10 : number * 10 + 10]
        lines = "\n".join(json.dumps({"text": text}) for text in texts)
        (tmp_path / f"{number}.jsonl").write_text(lines)
    units = list(group_parts(find_parts([str(tmp_path / "*.jsonl")], "text", Counter())))
    work = tmp_path / "work"
    records = [
        scan_parts(work, f"{n:06d}", unit, text_column="text", strict=False)
        for n, unit in enumerate(units)
    ]
    return work, units, records


def test_the_sample_and_the_description(scanned):
    work, units, records = scanned
    corpus = take_inventory(work, records, 0.1, 10**6)
    read = []
    texts = SampleTexts(work, corpus, read.append)
    trained_on = [DOCUMENTS[i] for i in numpy.flatnonzero(numpy.concatenate(corpus.choices) == 0)]
    expected = [line for text in trained_on for line in text.split("\n")]
    assert list(texts) == expected == list(texts)
    assert sum(read) == 2 * corpus.sample_bytes
    (source,) = describe_sources(work, units, records)
    assert source["num_documents"] == 40 and len(source["sha256"]) == 64


def test_no_document_at_all(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n \n")
    unit = list(find_parts([str(path)], "text", Counter()))
    record = scan_parts(tmp_path, "000000", unit, text_column="text", strict=False)
    with pytest.raises(CorpusError, match="empty corpus"):
        take_inventory(tmp_path, [record], 0.1, 10**6)
