"""What the report on prepared text counts: words, unknown words, lengths."""

import json
from collections import Counter

import numpy as np
import pytest

from bert_core.text.corpus_statistics import describe_corpus, describe_piece
from bert_core.text.encoding import SentenceEncoder
from bert_core.text.pieces import read_piece, scan_parts
from bert_core.text.screening import MOST_EXAMPLES
from bert_core.text.shards import write_shard
from bert_core.text.sources import find_parts
from bert_core.tokenizer_training import train_wordpiece


@pytest.fixture
def described(tmp_path):
    """Describes documents with their choices, the tokenizer having the Latin alphabet only."""

    def run(documents, choice):
        lines = "\n".join(json.dumps({"text": text}) for text in documents)
        (tmp_path / "a.jsonl").write_text(lines)
        parts = list(find_parts([str(tmp_path / "a.jsonl")], "text", Counter()))
        record = scan_parts(tmp_path, "000000", parts, text_column="text", strict=False)
        alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
        tokenizer = train_wordpiece([" ".join(alphabet), alphabet], 100, lowercase=True)
        encoder = SentenceEncoder(tokenizer, "uint16")
        (piece,) = record.pieces
        described = describe_piece(tmp_path, piece, np.array(choice, dtype=np.int8), encoder)
        assert len(read_piece(tmp_path, piece)) == len(documents)
        (tmp_path / "text" / f"{piece.name}.txt").unlink()
        again = describe_piece(tmp_path, piece, np.array(choice, dtype=np.int8), encoder)
        assert again == described
        return described

    return run


def test_words_of_kept_documents_are_counted_without_case_and_punctuation(described):
    record = described(["The port, “the” PORT.", "the …", "dropped words"], [0, 1, -2])
    assert record.words == {"the": 3, "port": 2}
    assert {example.text for example in record.examples} == {"The port, “the” PORT.", "the …"}


def test_words_that_become_unknown_are_listed(described):
    record = described(["known words, 東京 and Σίσυφος", "東京 again"], [0, 0])
    assert record.unknown_words == {"東京": 2, "σίσυφος": 1}


def test_examples_are_few(described):
    record = described([f"document {number}" for number in range(60)], [0] * 60)
    assert len(record.examples) == MOST_EXAMPLES
    statistics = describe_corpus([record, record], None, [])
    assert len(statistics.examples) == MOST_EXAMPLES and statistics.words["document"] == 120
    assert statistics.document_lengths == {}


def test_lengths_are_counted_in_tokens(tmp_path):
    documents = [[[5] * 3], [[5] * 16, [5] * 15], [[5] * 31, [5]], [[5] * 500]]
    write_shard(tmp_path, "train", documents, "uint16")
    statistics = describe_corpus([], tmp_path, ["train"])
    assert statistics.document_lengths == {
        "2–3": 1, "4–7": 0, "8–15": 0, "16–31": 1, "32–63": 1, "64–127": 0, "128–255": 0,
        "256–511": 1,
    }  # fmt: skip
    lengths = statistics.sentence_lengths
    assert lengths["1–15"] == 3 and lengths["16–31"] == 2 and lengths["128 or more"] == 1
    assert sum(lengths.values()) == 6
