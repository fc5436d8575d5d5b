import json

import pytest

from benchmarks.data import preparation
from bert_core.text.encoding import split_sentences
from bert_core.tokenizer import save_tokenizer, train_wordpiece

TEXT = "The cat sat on a mat. Dogs run far away."


def test_the_arms_must_do_the_same_work():
    preparation.check_equal(5, 5)
    with pytest.raises(RuntimeError, match="4 tokens, not 5"):
        preparation.check_equal(4, 5)


def test_text_is_cut_after_whole_documents(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("\n\n".join(["twenty bytes of text"] * 10))
    num_bytes = preparation.cut_corpus(str(text), 70 / 1e6, tmp_path / "corpus.jsonl")
    assert num_bytes == 80
    (documents,) = preparation.pieces(tmp_path / "corpus.jsonl")
    assert documents == ["twenty bytes of text"] * 4


def test_the_arms_of_the_libraries_count_the_same_tokens(tmp_path):
    tokenizer = train_wordpiece([TEXT] * 3, 60, lowercase=True)
    path, corpus = tmp_path / "tokenizer.json", tmp_path / "corpus.jsonl"
    save_tokenizer(tokenizer, path)
    corpus.write_text(json.dumps({"text": TEXT}) + "\n")
    expected = sum(
        len(tokenizer.encode(sentence, add_special_tokens=False))
        for sentence in split_sentences(TEXT)
    )
    assert preparation.segment_and_encode(([TEXT], str(path))) == expected
    split, encoding = preparation.timed_threads(corpus, path, expected)
    assert split > 0 and encoding > 0
    with pytest.raises(RuntimeError, match="the arms differ"):
        preparation.timed_threads(corpus, path, expected + 1)


def test_the_table_names_every_arm(capsys):
    arms = {
        "ours": {"tokens_per_second": 3e6},
        preparation.PROCESSES: {"tokens_per_second": 1e6, "ratio": 3.0},
        preparation.BARE: {"tokens_per_second": 2e6, "ratio": 1.5},
    }
    preparation.print_preparation(
        {
            "text_bytes": 10_000_000,
            "tokens": 2_000_000,
            "cores": 2,
            "load_average_before": 0.5,
            "arms": arms,
            "with_tokenizer_training_seconds": 1.0,
            "peak_bytes_above_idle_cluster": 5_000_000,
        }
    )
    said = capsys.readouterr().out
    assert "3,000,000 tokens/s    15.0 MB/s" in said
    assert "ours is 1.50 times as fast" in said
