import json
import shutil
from pathlib import Path

import pytest
from pretraining_runs import Run, train_here, write_corpus

from bert_core.errors import UserError
from bert_core.model_folder import load_model_folder
from bert_core.text.shards import open_shards
from bert_core.tokenizer import tokenizer_hash
from bert_core.training.checkpoint import newest_checkpoint
from workflows.mlflow_run import open_client
from workflows.pretrain_settings import PretrainSettings
from workflows.pretraining_report import open_command, register, summary_lines, write_results
from workflows.pretraining_setup import tracked_run
from workflows.run_folder import RunFolder
from workflows.settings import parse_command_line
from workflows.tracker import Tracker, TrackingSummary


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run after its last step: its settings, its folder, its shards."""
    storage = tmp_path_factory.mktemp("storage")
    run = Run(storage, "run", write_corpus(storage / "corpus"), steps=8)
    train_here(run)
    (run.folder / "artifacts").mkdir()
    settings = parse_command_line(PretrainSettings, run.arguments())
    return settings, RunFolder(run.folder), open_shards(run.shards)


@pytest.fixture
def again(finished, tmp_path):
    """The same, in a copy to change."""
    settings, folder, shards = finished
    return settings, RunFolder(Path(shutil.copytree(folder.path, tmp_path / "run"))), shards


def test_the_last_checkpoint_becomes_a_model_folder_with_card_and_plot(again):
    settings, folder, shards = again
    results = write_results(settings, folder, shards)
    config, model, tokenizer = load_model_folder(folder.model)
    assert (config.num_hidden_layers, config.vocab_size) == (1, shards.vocab_size)
    assert tokenizer_hash(tokenizer) == shards.tokenizer_hash
    assert {"masked_token", "next_sentence"} <= set(model.heads)
    loss = f"{results.figures['heldout/masked_token_loss']:.4g}"
    for part in (loss, shards.data_hash, "8 x 32", "Unigram baseline", "280"):
        assert part.lower() in results.card.lower(), part
    assert results.plot.read_bytes().startswith(b"\x89PNG")
    assert str(folder.path) not in results.card
    # Killed in between, the command does it all again.
    first = (folder.model / "model.safetensors").read_bytes()
    write_results(settings, folder, shards)
    assert (folder.model / "model.safetensors").read_bytes() == first


def test_the_summary_says_what_it_came_to_and_where_it_lies(again):
    settings, folder, shards = again
    results = write_results(settings, folder, shards)
    text = "\n".join(summary_lines(folder, results))
    checkpoint = results.checkpoint
    assert f"8 steps, 64 rows, {checkpoint.num_tokens_seen:,} tokens" in text
    assert "core-hours" in text and "assuming 10 W per core" in text
    for path in (folder.model, results.plot, folder.settings):
        assert str(path) in text
    assert ("under" in text) == (
        results.figures["heldout/masked_token_loss"] < results.figures["heldout/unigram_loss"]
    )


def test_without_a_whole_checkpoint_there_is_no_result(again):
    settings, folder, shards = again
    path, _ = newest_checkpoint(folder.checkpoints)
    (path / "state.json").write_text("{}")
    with pytest.raises(UserError, match="no whole checkpoint"):
        write_results(settings, folder, shards)


def test_registered_once_and_only_then_the_run_is_done(again, tmp_path, capsys):
    settings, folder, shards = again
    results = write_results(settings, folder, shards)
    down = TrackingSummary("run", "0", 5, "server does not answer", "send")
    register(settings, tmp_path, folder, results, down)
    assert "5 records not sent: server does not answer" in capsys.readouterr().out
    assert not folder.summary.exists()

    tracker = Tracker(folder.path, tracked_run(settings, tmp_path, folder, shards))
    tracking = tracker.finish("FINISHED", 120)
    assert (tracking.error, tracking.unsent_records) == (None, 0)
    register(settings, tmp_path, folder, results, tracking)
    folder.summary.unlink()  # killed before it was written
    register(settings, tmp_path, folder, results, tracking)
    printed = capsys.readouterr().out
    assert printed.count("models:/bert/1") == 2 and folder.summary.read_text() in printed
    client = open_client(f"sqlite:///{tmp_path}/mlflow/mlflow.db")
    (version,) = client.search_model_versions("name = 'bert'")
    assert version.description == results.card
    assert version.tags["data.sha256"] == shards.data_hash
    logged = json.dumps([version.tags, version.description, version.name])
    assert str(tmp_path) not in logged


def test_how_mlflow_is_opened():
    assert open_command("http://mlflow:5000") == "http://mlflow:5000"
    command = open_command("sqlite:////a b/mlflow.db")
    assert command.endswith("mlflow ui --backend-store-uri 'sqlite:////a b/mlflow.db'")
