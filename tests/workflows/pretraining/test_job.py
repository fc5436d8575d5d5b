import json

import pytest
from pretraining_runs import Run, train_here, write_corpus

from bert_core.errors import UserError
from bert_core.model_folder import load_model_folder
from bert_core.text.shards import open_shards
from bert_core.tokenizer import tokenizer_hash
from bert_core.training.checkpoint import newest_checkpoint
from workflows.pretraining.job import PretrainingJob
from workflows.pretraining.settings import PretrainSettings
from workflows.runs.folder import RunFolder
from workflows.runs.storage import open_storage
from workflows.settings import parse_command_line


def test_the_last_checkpoint_becomes_a_model_folder_with_card_and_plot(pretraining_job):
    assert pretraining_job.folder.is_trained()
    folder, shards = pretraining_job.folder, pretraining_job.shards
    results = pretraining_job.write_results()
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
    pretraining_job.write_results()
    assert (folder.model / "model.safetensors").read_bytes() == first


def test_left_to_right_it_becomes_a_language_model(tmp_path):
    run = Run(tmp_path, "run", write_corpus(tmp_path / "corpus", num_documents=40), steps=3)
    run.settings["rows.objective"] = "left_to_right"
    train_here(run)
    (run.folder / "artifacts").mkdir()
    settings = parse_command_line(PretrainSettings, run.arguments())
    storage, shards = open_storage(str(tmp_path)), open_shards(run.shards)
    job = PretrainingJob(settings, storage, RunFolder(run.folder), shards)
    results = job.write_results()
    config, model, _ = load_model_folder(job.folder.model)
    assert config.is_decoder and list(model.heads) == ["next_token"]
    written = json.loads((job.folder.model / "config.json").read_text())
    assert written["is_decoder"] is True and written["architectures"] == ["BertLMHeadModel"]
    loss = results.figures["heldout/next_token_loss"]
    text = "\n".join(results.lines)
    assert "objective    left_to_right\n" in text and f"next-token loss {loss:.3f}" in text
    for part in ("left-to-right language model", "pipeline_tag: text-generation", "`is_decoder`"):
        assert part in results.card, part
    assert f"| Next-token loss (nats) | {loss:.4g} |" in results.card
    assert "predicts every next token" in results.card
    # What it weighs is known before there is one.
    path, _ = newest_checkpoint(run.checkpoints)
    size = sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    assert 0 < job.checkpoint_bytes() - size < 2**20


def test_without_a_whole_checkpoint_there_is_no_result(pretraining_job):
    path, _ = newest_checkpoint(pretraining_job.folder.checkpoints)
    (path / "state.json").write_text("{}")
    assert not pretraining_job.folder.is_trained()
    with pytest.raises(UserError, match="no whole checkpoint"):
        pretraining_job.write_results()
