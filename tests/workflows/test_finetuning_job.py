"""What a fine-tuning run leaves behind, and what is said of it; without Ray."""

import pytest
import torch
from finetuning_runs import finetune_here, write_encoder, write_task
from safetensors.torch import load_file

from bert_core.hugging_face import from_hugging_face
from bert_core.predictor import load_predictor
from workflows.finetune import announce
from workflows.finetuning_data import open_encoder, read_task_data
from workflows.finetuning_job import FinetuningJob
from workflows.finetuning_worker import BEST_WEIGHTS
from workflows.storage import open_storage
from workflows.tracker import without_machine_paths
from workflows.training_job import tracked_run


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A run after its last step."""
    storage = tmp_path_factory.mktemp("storage")
    write_task(storage / "data")
    write_encoder(storage / "encoder")
    run, _, _ = finetune_here(storage)
    (run.folder.path / "artifacts").mkdir()
    encoder = open_encoder(run.settings.model, storage, "sqlite://")
    data = read_task_data(run.settings, encoder.tokenizer)
    return FinetuningJob(run.settings, open_storage(str(storage)), run.folder, encoder, data)


def test_the_best_epoch_becomes_a_model_folder_that_knows_its_task(job):
    assert job.folder.is_trained()
    results = job.write_results()
    predictor = load_predictor(job.folder.model)
    assert (predictor.task_name, predictor.task.labels) == ("classification", ("down", "up"))
    predictions, _ = predictor.predict(job.data.dev.examples)
    accuracy = predictor.task.metrics(predictions, job.data.dev.examples)["accuracy"]
    assert accuracy == results.figures["dev/accuracy"]
    best = load_file(job.folder.path / BEST_WEIGHTS)
    saved = from_hugging_face(load_file(job.folder.model / "model.safetensors"))
    assert best.keys() == saved.keys()
    assert all(torch.equal(best[name], saved[name]) for name in best)
    for part in ("text-classification", "Training examples | 90", "down, up", job.data.sha256):
        assert part in results.card
    assert str(job.folder.path.parent) not in results.card
    assert (job.folder.path / "artifacts" / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_the_summary_says_what_it_came_to_and_where_it_lies(job):
    results = job.write_results()
    text = "\n".join(results.lines)
    assert "36 steps, 270 examples" in text
    assert f"accuracy {results.figures['dev/accuracy']:.3f} after epoch" in text
    for path in (job.folder.model, job.folder.settings):
        assert str(path) in text


def test_mlflow_is_told_everything_but_where_this_machine_keeps_it(job):
    run = tracked_run(job)
    assert run.experiment == "fine-tuning"
    assert run.params["task"] == "classification" and run.params["examples.train"] == "90"
    assert run.tags["data.sha256"] == job.data.sha256 == run.dataset.sha256
    everything = [*run.params.values(), *run.tags.values(), run.dataset.source]
    assert [without_machine_paths(text) for text in everything] == everything


def test_what_is_about_to_happen_is_said(job, capsys):
    announce(job.settings, job.folder, job.encoder, job.data)
    printed = capsys.readouterr().out
    assert "90 training examples, 40 dev examples" in printed
    assert "labels down, up" in printed and "3 epochs of 12, 8 examples each" in printed
    assert "0 examples truncated" in printed
