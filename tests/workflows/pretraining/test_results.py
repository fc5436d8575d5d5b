"""What a pre-training run leaves behind: model folder, card, plot, summary."""

import json

import numpy as np
import pytest
import torch
from pretraining_runs import Run, train_here, write_corpus

from bert_core.config import ModernConfig
from bert_core.errors import UserError
from bert_core.example import check_example, read_example
from bert_core.example_answers import answer_of
from bert_core.model_folder import load_model_folder
from bert_core.text.shards import open_shards
from bert_core.tokenizer import load_tokenizer, tokenizer_hash
from bert_core.training.checkpoint import newest_checkpoint, read_checkpoint
from bert_core.training_statistics import read_training_statistics
from workflows.pretraining.job import PretrainingJob, continue_from, find_start
from workflows.pretraining.results import write_results
from workflows.pretraining.settings import PretrainSettings
from workflows.runs.folder import RunFolder
from workflows.runs.storage import open_storage
from workflows.settings import parse_command_line


def test_the_last_checkpoint_becomes_a_model_folder_with_card_and_plot(pretraining_results):
    job, results = pretraining_results
    folder, shards = job.folder, job.shards
    assert folder.is_trained()
    config, model, tokenizer = load_model_folder(folder.model)
    assert (config.num_hidden_layers, config.vocab_size) == (1, shards.vocab_size)
    assert tokenizer_hash(tokenizer) == shards.tokenizer_hash
    assert {"masked_token", "next_sentence"} <= set(model.heads)
    loss = f"{results.figures['heldout/masked_token_loss']:.4g}"
    for part in (loss, shards.data_hash, "8 x 32", "Unigram baseline", "280"):
        assert part.lower() in results.card.lower(), part
    assert str(folder.path) not in results.card
    plot = folder.path / "artifacts" / "loss.png"
    assert plot.read_bytes().startswith(b"\x89PNG")

    text = "\n".join(results.lines)
    path, _ = newest_checkpoint(folder.checkpoints)
    assert f"8 steps, 64 rows, {read_checkpoint(path).num_tokens_seen:,} tokens" in text
    assert "core-hours" in text and "assuming 10 W per core" in text
    assert not [each for each in (folder.model, plot, folder.settings) if str(each) not in text]
    assert "objective" not in text, "it is the paper's"
    assert ("under" in text) == (
        results.figures["heldout/masked_token_loss"] < results.figures["heldout/unigram_loss"]
    )


def test_the_folder_has_a_heldout_example_and_statistics_of_the_text(
    pretraining_results, pretraining_job
):
    first, job = pretraining_results[0], pretraining_job
    path = job.shards.folder / "token_counts.npy"
    kept = path.read_bytes()
    counts = np.load(path)
    unknown = load_tokenizer(job.shards.folder).token_to_id("[UNK]")
    counts[unknown] += counts.sum() // 9  # a tenth of all
    np.save(path, counts)
    try:
        write_results(job)
    finally:
        path.write_bytes(kept)
    folder = job.folder.model
    example = read_example(folder)
    assert example.kind == "fill-mask" and "[MASK]" in example.inputs
    assert check_example(example, answer_of(folder, example)) is None
    statistics = read_training_statistics(folder)
    assert statistics.num_examples == job.shards.num_documents
    assert statistics.unknown_token_share == pytest.approx(0.1, abs=1e-3)
    assert statistics.lengths is None and statistics.label_shares is None
    # Killed in between, the command does it all again.
    weights = [each / "model.safetensors" for each in (folder, first.folder.model)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_without_a_whole_checkpoint_there_is_no_result(pretraining_job):
    path, _ = newest_checkpoint(pretraining_job.folder.checkpoints)
    (path / "state.json").write_text("{}")
    assert not pretraining_job.folder.is_trained()
    with pytest.raises(UserError, match="no whole checkpoint"):
        write_results(pretraining_job)


def test_left_to_right_it_becomes_a_language_model(tmp_path):
    run = Run(tmp_path, "run", write_corpus(tmp_path / "corpus", num_documents=40), steps=3)
    run.settings["rows.objective"] = "left_to_right"
    train_here(run)
    (run.folder / "artifacts").mkdir()
    settings = parse_command_line(PretrainSettings, run.arguments())
    storage, shards = open_storage(str(tmp_path)), open_shards(run.shards)
    job = PretrainingJob(settings, storage, RunFolder(run.folder), shards)
    results = write_results(job)
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


def test_the_modern_block_becomes_a_folder_of_its_last_phase_and_goes_on_from_there(tmp_path):
    corpus = write_corpus(tmp_path / "corpus", num_documents=40)
    run = Run(tmp_path, "run", corpus, steps=3)
    run.settings |= {
        "model.block": "modern",
        "model.num_hidden_layers": 2,
        "phases": '[{"sequence_length": 16, "steps": 2, "masked_share": 0.4, "global_batch_size":'
        ' 4}, {"sequence_length": 32, "steps": 1, "global_rope_theta": 160000}]',
    }
    train_here(run)
    predictions, (first, *_, last) = "heldout/num_predictions", run.records()
    assert first[0] == 1 and predictions in last[1]
    (run.folder / "artifacts").mkdir()
    storage, shards = open_storage(str(tmp_path)), open_shards(corpus)
    settings = parse_command_line(PretrainSettings, run.arguments())
    job = PretrainingJob(settings, storage, RunFolder(run.folder), shards)
    results = write_results(job)
    assert results.lines[0].startswith("finished     3 steps, 16 rows")
    assert "2 x 16 (global_batch_size 4, masked_share 0.4), 1 x 32" in results.card
    config, model, _ = load_model_folder(job.folder.model)
    assert isinstance(config, ModernConfig) and list(model.heads) == ["masked_token"]
    assert (config.global_rope_theta, config.local_rope_theta) == (160_000, 10_000)
    example = read_example(job.folder.model)
    assert check_example(example, answer_of(job.folder.model, example)) is None

    longer = Run(tmp_path, "longer", corpus, steps=1)
    longer.settings |= {
        "preset": "adapt",
        "start_from": job.folder.model,
        "model.block": "modern",
        "model.num_hidden_layers": 2,
        "model.max_position_embeddings": 64,
        "model.global_rope_theta": 500_000,
        "phases": '[{"sequence_length": 64, "steps": 1}]',
        "optimizer.peak_learning_rate": 1e-60,
    }
    train_here(longer)
    settings = parse_command_line(PretrainSettings, longer.arguments())
    start = find_start(settings, storage)
    settings = continue_from(settings, start)
    (longer.folder / "artifacts").mkdir()
    job = PretrainingJob(settings, storage, RunFolder(longer.folder), shards, start=start)
    write_results(job)
    config, continued, _ = load_model_folder(job.folder.model)
    assert (config.global_rope_theta, config.max_position_embeddings) == (500_000, 64)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, continued.state_dict()[name]), name
