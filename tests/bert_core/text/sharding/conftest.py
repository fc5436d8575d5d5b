"""Documents that were scanned, as both sides of the scan are tested on."""

import json
from collections import Counter

import pytest

from bert_core.text import pieces
from bert_core.text.pieces import group_parts, scan_parts
from bert_core.text.sources import find_parts


@pytest.fixture
def documents():
    """Forty of two lines, each different."""
    return [f"Document number {n}. It has {n} apples.\nAnd a second line." for n in range(40)]


@pytest.fixture
def scanned(documents, tmp_path, monkeypatch):
    """Those, ten to a file, in pieces of 500 bytes: the work folder, the units, the records."""
    monkeypatch.setattr(pieces, "PIECE_BYTES", 500)
    for number in range(4):
        texts = documents[number * 10 : number * 10 + 10]
        lines = "\n".join(json.dumps({"text": text}) for text in texts)
        (tmp_path / f"{number}.jsonl").write_text(lines)
    units = list(group_parts(find_parts([str(tmp_path / "*.jsonl")], "text", Counter())))
    work = tmp_path / "work"
    records = [
        scan_parts(work, f"{n:06d}", unit, text_column="text", strict=False)
        for n, unit in enumerate(units)
    ]
    return work, units, records
