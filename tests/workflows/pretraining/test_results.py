"""What a pre-training run leaves behind."""

import numpy as np
import pytest

from bert_core.example import check_example, read_example
from bert_core.example_answers import answer_of
from bert_core.tokenizer import load_tokenizer
from bert_core.training.checkpoint import newest_checkpoint, read_checkpoint
from bert_core.training_statistics import read_training_statistics
from workflows.pretraining.results import write_results


def test_the_summary_says_what_it_came_to_and_where_it_lies(pretraining_job):
    results = write_results(pretraining_job)
    text = "\n".join(results.lines)
    path, _ = newest_checkpoint(pretraining_job.folder.checkpoints)
    assert f"8 steps, 64 rows, {read_checkpoint(path).num_tokens_seen:,} tokens" in text
    assert "core-hours" in text and "assuming 10 W per core" in text
    plot = pretraining_job.folder.path / "artifacts" / "loss.png"
    for path in (pretraining_job.folder.model, plot, pretraining_job.folder.settings):
        assert str(path) in text
    assert "objective" not in text, "it is the paper's"
    assert ("under" in text) == (
        results.figures["heldout/masked_token_loss"] < results.figures["heldout/unigram_loss"]
    )


def test_the_folder_has_a_heldout_example_and_what_the_text_was_like(pretraining_job):
    path = pretraining_job.shards.folder / "token_counts.npy"
    kept = path.read_bytes()
    counts = np.load(path)
    unknown = load_tokenizer(pretraining_job.shards.folder).token_to_id("[UNK]")
    counts[unknown] += counts.sum() // 9  # a tenth of all
    np.save(path, counts)
    try:
        write_results(pretraining_job)
    finally:
        path.write_bytes(kept)
    folder = pretraining_job.folder.model
    example = read_example(folder)
    assert example.kind == "fill-mask" and "[MASK]" in example.inputs
    assert check_example(example, answer_of(folder, example)) is None
    statistics = read_training_statistics(folder)
    assert statistics.num_examples == pretraining_job.shards.num_documents
    assert statistics.unknown_token_share == pytest.approx(0.1, abs=1e-3)
    assert statistics.lengths is None and statistics.label_shares is None
