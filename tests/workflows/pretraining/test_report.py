"""What a pre-training run leaves behind."""

from bert_core.training.checkpoint import newest_checkpoint, read_checkpoint


def test_the_summary_says_what_it_came_to_and_where_it_lies(pretraining_job):
    results = pretraining_job.write_results()
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
