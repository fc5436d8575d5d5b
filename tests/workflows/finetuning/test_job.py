"""What a fine-tuning run leaves behind, and what is said of it; without Ray."""

import torch
from safetensors.torch import load_file

from bert_core.hugging_face import from_hugging_face
from bert_core.predictor import load_predictor
from workflows.finetune import announce
from workflows.finetuning.results import write_results
from workflows.finetuning.worker import BEST_WEIGHTS
from workflows.runs.tracker import without_machine_paths
from workflows.training.job import tracked_run


def test_the_best_epoch_becomes_a_model_folder_that_knows_its_task(finetuning_job):
    assert finetuning_job.folder.is_trained()
    results = write_results(finetuning_job)
    predictor = load_predictor(finetuning_job.folder.model)
    assert (predictor.task_name, predictor.task.labels) == ("classification", ("down", "up"))
    predictions, _ = predictor.predict_examples(finetuning_job.data.dev.examples)
    accuracy = predictor.task.metrics(predictions, finetuning_job.data.dev.examples)["accuracy"]
    assert accuracy == results.figures["dev/accuracy"]
    best = load_file(finetuning_job.folder.path / BEST_WEIGHTS)
    saved = from_hugging_face(load_file(finetuning_job.folder.model / "model.safetensors"))
    assert best.keys() == saved.keys()
    assert all(torch.equal(best[name], saved[name]) for name in best)
    data_hash, lost = finetuning_job.data.sha256, "0 examples truncated"
    for part in ("text-classification", "Training examples | 90", lost, "down, up", data_hash):
        assert part in results.card
    assert str(finetuning_job.folder.path.parent) not in results.card
    assert (
        (finetuning_job.folder.path / "artifacts" / "loss.png").read_bytes().startswith(b"\x89PNG")
    )


def test_mlflow_is_told_everything_but_where_this_machine_keeps_it(finetuning_job):
    run = tracked_run(finetuning_job)
    assert run.experiment == "fine-tuning"
    assert run.params["task"] == "classification" and run.params["examples.train"] == "90"
    assert run.tags["data.sha256"] == finetuning_job.data.sha256 == run.dataset.sha256
    assert run.tags["encoder.name"] == "encoder" and len(run.tags["tokenizer.sha256"]) == 64
    assert finetuning_job.data_description()["sha256"] == finetuning_job.data.sha256
    everything = [*run.params.values(), *run.tags.values(), run.dataset.source]
    assert [without_machine_paths(text) for text in everything] == everything


def test_what_is_about_to_happen_is_said(finetuning_job, capsys):
    announce(finetuning_job)
    printed = capsys.readouterr().out
    assert "90 training examples, 40 dev examples" in printed
    assert "labels down, up" in printed and "3 epochs of 12, 8 examples each" in printed
    assert printed.count("0 examples truncated") == 2, "train and dev"
