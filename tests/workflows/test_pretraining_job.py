import shutil
from pathlib import Path

import pytest
from pretraining_runs import Run, train_here, write_corpus

from bert_core.errors import UserError
from bert_core.model_folder import load_model_folder
from bert_core.text.shards import open_shards
from bert_core.tokenizer import tokenizer_hash
from bert_core.training.checkpoint import newest_checkpoint, read_checkpoint
from workflows.pretrain_settings import PretrainSettings
from workflows.pretraining_job import PretrainingJob
from workflows.run_folder import RunFolder
from workflows.settings import parse_command_line
from workflows.storage import open_storage


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run after its last step: its settings, its folder, its shards."""
    storage = tmp_path_factory.mktemp("storage")
    run = Run(storage, "run", write_corpus(storage / "corpus"), steps=8)
    train_here(run)
    (run.folder / "artifacts").mkdir()
    settings = parse_command_line(PretrainSettings, run.arguments())
    return settings, run.folder, open_shards(run.shards)


@pytest.fixture
def job(finished, tmp_path):
    """The same, in a copy to change."""
    settings, path, shards = finished
    folder = RunFolder(Path(shutil.copytree(path, tmp_path / "run")))
    return PretrainingJob(settings, open_storage(str(tmp_path)), folder, shards)


def test_the_last_checkpoint_becomes_a_model_folder_with_card_and_plot(job):
    assert job.folder.is_trained()
    folder, shards = job.folder, job.shards
    results = job.write_results()
    config, model, tokenizer = load_model_folder(folder.model)
    assert (config.num_hidden_layers, config.vocab_size) == (1, shards.vocab_size)
    assert tokenizer_hash(tokenizer) == shards.tokenizer_hash
    assert {"masked_token", "next_sentence"} <= set(model.heads)
    loss = f"{results.figures['heldout/masked_token_loss']:.4g}"
    for part in (loss, shards.data_hash, "8 x 32", "Unigram baseline", "280"):
        assert part.lower() in results.card.lower(), part
    plot = folder.path / "artifacts" / "loss.png"
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert str(folder.path) not in results.card
    # Killed in between, the command does it all again.
    first = (folder.model / "model.safetensors").read_bytes()
    job.write_results()
    assert (folder.model / "model.safetensors").read_bytes() == first


def test_the_summary_says_what_it_came_to_and_where_it_lies(job):
    results = job.write_results()
    text = "\n".join(results.lines)
    path, _ = newest_checkpoint(job.folder.checkpoints)
    assert f"8 steps, 64 rows, {read_checkpoint(path).num_tokens_seen:,} tokens" in text
    assert "core-hours" in text and "assuming 10 W per core" in text
    plot = job.folder.path / "artifacts" / "loss.png"
    for path in (job.folder.model, plot, job.folder.settings):
        assert str(path) in text
    assert ("under" in text) == (
        results.figures["heldout/masked_token_loss"] < results.figures["heldout/unigram_loss"]
    )


def test_without_a_whole_checkpoint_there_is_no_result(job):
    path, _ = newest_checkpoint(job.folder.checkpoints)
    (path / "state.json").write_text("{}")
    assert not job.folder.is_trained()
    with pytest.raises(UserError, match="no whole checkpoint"):
        job.write_results()
