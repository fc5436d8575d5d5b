from collections import Counter

import numpy as np
import pytest

from bert_core.text.pieces import SampleTexts, describe_sources, scan_parts, take_inventory
from bert_core.text.sources import CorpusError, find_parts


def test_the_sample_and_the_description(documents, scanned):
    work, units, records = scanned
    corpus = take_inventory(work, records, 0.1, 10**6)
    read = []
    texts = SampleTexts(work, corpus, read.append)
    trained_on = [documents[i] for i in np.flatnonzero(np.concatenate(corpus.choices) == 0)]
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
