from collections import Counter

import numpy as np

from bert_core.text import pieces
from bert_core.text.encoding import SentenceEncoder
from bert_core.text.pieces import (
    encode_piece,
    join_pieces,
    read_piece,
    scan_parts,
    take_inventory,
    written_bytes,
)
from bert_core.text.shards import map_shard
from bert_core.text.sources import find_parts
from bert_core.tokenizer import train_wordpiece


def encode(documents, work, corpus):
    tokenizer = train_wordpiece(documents, 200, lowercase=True)
    encoder = SentenceEncoder(tokenizer, "uint16")
    return tokenizer, [
        encode_piece(work, piece, choice, encoder, "en")
        for piece, choice in zip(corpus.pieces, corpus.choices, strict=True)
    ]


def test_small_files_are_read_together_and_cut_into_pieces(documents, scanned):
    work, units, records = scanned
    assert len(units) == 1 and len(units[0]) == 4
    found = [read_piece(work, piece) for piece in records[0].pieces]
    assert [document for piece in found for document in piece] == documents
    assert len(found) > 3
    separators = sum(len(piece) - 1 for piece in found)
    assert written_bytes(work) == sum(p.num_bytes for p in records[0].pieces) + separators
    for piece, read in zip(records[0].pieces, found, strict=True):
        assert piece.num_documents == len(read)
        assert piece.num_bytes == sum(len(each.encode()) for each in read) < 650


def test_a_finished_step_is_not_done_again(documents, scanned, tmp_path):
    work, units, records = scanned
    for path in tmp_path.glob("*.jsonl"):
        path.unlink()
    again = scan_parts(work, "000000", units[0], text_column="text", strict=False)
    assert again == records[0]
    corpus = take_inventory(work, records, 0.1, 10**6)
    _, encoded = encode(documents, work, corpus)
    assert not list((work / "text").glob("*.txt"))
    assert encode(documents, work, corpus)[1] == encoded


def test_shards_hold_the_documents_in_order(documents, scanned):
    work, _, records = scanned
    corpus = take_inventory(work, records, 0.2, 10**6)
    tokenizer, encoded = encode(documents, work, corpus)
    found = {}
    for number, split in enumerate(pieces.ENCODED_SPLITS):
        entries = [record.splits[split] for record in encoded if split in record.splits]
        entry, counts = join_pieces(work, work / "joined", split, entries, 200)
        shard = map_shard(work / "joined", split)
        assert counts.sum() == entry.num_tokens == shard.num_tokens
        assert (np.bincount(shard.tokens, minlength=200) == counts).all()
        texts = [
            tokenizer.decode(
                shard.tokens[
                    shard.sentences[shard.documents[d]] : shard.sentences[shard.documents[d + 1]]
                ].tolist()
            )
            for d in range(shard.num_documents)
        ]
        chosen = np.concatenate(corpus.choices) == number
        expected = [text for text, mine in zip(documents, chosen, strict=True) if mine]
        assert [t.replace(" ", "") for t in texts] == [
            "".join(text.lower().split()) for text in expected
        ]
        assert shard.num_sentences == 3 * len(expected)
        found[split] = len(expected)
    assert found["heldout"] > 0 and sum(found.values()) == 40


def test_documents_without_a_token_are_counted(documents, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("Some words.\n\n\u200b\n\nMore words.\n\u200b\n")
    unit = list(find_parts([str(path)], "text", Counter()))
    record = scan_parts(tmp_path, "000000", unit, text_column="text", strict=False)
    corpus = take_inventory(tmp_path, [record], 0, 10**6)
    _, encoded = encode(documents, tmp_path, corpus)
    assert encoded[0].splits["train"].num_documents == 2
    assert encoded[0].splits["train"].num_sentences == 2
    assert encoded[0].counts["documents_without_token"] == 1
    assert encoded[0].counts["sentences_without_token"] == 2
