"""A corpus in pieces: scanned, chosen from, encoded and joined."""

import json
from collections import Counter

import numpy as np
import pytest

from bert_core.settings import RowSettings
from bert_core.text import pieces
from bert_core.text.encoding import SentenceEncoder
from bert_core.text.pairs import RowPlanner
from bert_core.text.pieces import (
    DUPLICATE,
    HELDOUT,
    TRAIN,
    SampleTexts,
    choose_documents,
    choose_sample,
    describe_sources,
    encode_piece,
    group_parts,
    join_pieces,
    read_piece,
    scan_parts,
    take_inventory,
    written_bytes,
)
from bert_core.text.shards import TokenShards, map_shard
from bert_core.text.sources import CorpusError, find_parts
from bert_core.tokenizer_training import train_wordpiece


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


def test_a_text_without_sentences_is_trained_on_as_a_whole(documents, tmp_path):
    """A transcript: nearly all of it would be in no row."""
    path = tmp_path / "a.txt"
    path.write_text(f"{'well this has a number of apples ' * 300}\n\nA document.\n\nAnd one.\n")
    unit = list(find_parts([str(path)], "text", Counter()))
    record = scan_parts(tmp_path, "000000", unit, text_column="text", strict=False)
    corpus = take_inventory(tmp_path, [record], 0, 10**6)
    tokenizer, (encoded,) = encode(documents, tmp_path, corpus)
    assert encoded.counts["sentences_of_more_than_256_tokens"] == 1
    assert encoded.counts["documents_of_one_sentence"] == 2
    entry, _ = join_pieces(tmp_path, tmp_path, "train-00000", [encoded.splits["train"]], 200)
    shard = map_shard(tmp_path, "train-00000")
    assert shard.num_documents == 3
    starts = shard.sentences[: shard.documents[1]]
    assert not any(tokenizer.id_to_token(each).startswith("##") for each in shard.tokens[starts])
    shards = TokenShards(tmp_path, "train", [shard], 200, "", "")
    full = RowSettings(objective="mlm", input_format="full_sentences")
    for rows, least in ((RowSettings(), 0.8), (full, 1)):
        planner = RowPlanner(shards, rows, 128, ("key",))
        begins = planner.row_starts(0, 0)
        plan = planner.rows(np.zeros_like(begins), np.zeros_like(begins), begins)
        own = plan.a_length.sum() + plan.b_length[plan.next_sentence == 0].sum()
        assert own >= least * entry.num_tokens


def some_hashes(num, seed=0):
    return np.random.default_rng(seed).integers(0, 2**64, num, dtype=np.uint64)


def test_the_first_of_equal_documents_stays():
    hashes = some_hashes(50)
    repeated = np.concatenate([hashes, hashes[:10], hashes[:5]])
    choice = choose_documents(repeated, 0.1)
    assert (choice[50:] == DUPLICATE).all() and (choice[:50] != DUPLICATE).all()
    assert (choice[:50] == choose_documents(hashes, 0.1)).all()


def test_the_share_held_out():
    choice = choose_documents(some_hashes(100_000), 0.02)
    assert 0.018 < (choice == HELDOUT).mean() < 0.022
    assert (choose_documents(some_hashes(100), 0) == TRAIN).all()


def test_the_choice_of_a_document_does_not_hang_on_the_others():
    hashes = some_hashes(5000)
    choice = choose_documents(hashes, 0.05)
    assert (choose_documents(hashes[::-1], 0.05)[::-1] == choice).all()
    assert (choose_documents(hashes[:2500], 0.05) == choice[:2500]).all()


@pytest.mark.parametrize("share", [0.001, 0.999])
def test_small_corpora_have_both_splits(share):
    for num, least in ((2, 1), (3, 1), (4, 2), (10, 2)):
        for seed in range(10):
            choice = choose_documents(some_hashes(num, seed), share).tolist()
            assert choice.count(HELDOUT) >= least and choice.count(TRAIN) >= least
    assert choose_documents(some_hashes(1), share).tolist() == [TRAIN]
    assert choose_documents(some_hashes(0), share).tolist() == []


def test_the_sample_is_of_the_whole_corpus_and_within_its_budget():
    hashes, sizes = some_hashes(10_000), np.full(10_000, 100, dtype=np.uint64)
    choice = choose_documents(hashes, 0.1)
    sample = choose_sample(hashes, sizes, choice, 200_000)
    assert sample.sum() == 2000 and (choice[sample] == TRAIN).all()
    halves = sample[:5000].sum(), sample[5000:].sum()
    assert min(halves) > 900
    assert (choose_sample(hashes, sizes, choice, 10**9) == (choice == TRAIN)).all()
    assert choose_sample(hashes, sizes, choice, 1).sum() == 1


@pytest.mark.parametrize("large", [190_000, 10**9])
def test_a_large_document_leaves_the_sample_of_the_others(large):
    hashes, sizes = some_hashes(3000), np.full(3000, 100, dtype=np.uint64)
    choice = np.full(3000, TRAIN, dtype=np.int8)
    for number in range(0, 3000, 300):
        with_large = sizes.copy()
        with_large[number] = large
        sample = choose_sample(hashes, with_large, choice, 200_000)
        assert 180_000 <= with_large[sample].sum() <= 200_000


def test_the_sample_hangs_on_hashes_alone():
    hashes, sizes = some_hashes(1000), some_hashes(1000, 1) % np.uint64(500)
    choice = choose_documents(hashes, 0.1)
    sample = choose_sample(hashes, sizes, choice, 50_000)
    other = choose_sample(hashes[::-1], sizes[::-1], choice[::-1], 50_000)
    assert (other[::-1] == sample).all()


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
