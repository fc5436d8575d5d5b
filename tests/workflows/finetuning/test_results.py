"""The results of a fine-tuning run: model folder, card, report on the dev set."""

import json
from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from finetuning_runs import WORDS, finetune_here, write_encoder, write_task
from hostile_labels import HOSTILE_LABELS
from safetensors.torch import load_file
from transformers import BertModel

from bert_core.example import check_example, read_example
from bert_core.example_answers import answer_of
from bert_core.hugging_face.families import BERT
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.predictor import load_predictor
from bert_core.tasks.label_values import label_of
from bert_core.training_statistics import read_training_statistics
from workflows.finetune import announce, parse
from workflows.finetuning.data import read_task_data
from workflows.finetuning.job import FinetuningJob
from workflows.finetuning.results import (
    DEV_REPORT,
    summary_lines,
    write_results,
)
from workflows.finetuning.worker import BEST_WEIGHTS
from workflows.model_location import open_encoder
from workflows.runs.storage import open_storage
from workflows.runs.tracker import without_machine_paths
from workflows.training.job import begin, tracked_run


def test_the_best_epoch_becomes_a_model_folder_that_knows_its_task(
    finetuning_job, finetuning_results
):
    job, results = finetuning_job, finetuning_results
    assert job.folder.is_trained()
    predictor = load_predictor(job.folder.model)
    assert (predictor.task_name, predictor.task.labels) == ("classification", ("down", "up"))
    predictions, _ = predictor.predict_examples(job.data.dev.examples)
    accuracy = predictor.task.metrics(predictions, job.data.dev.examples)["accuracy"]
    assert accuracy == results.figures["dev/accuracy"]
    best = load_file(job.folder.path / BEST_WEIGHTS)
    saved = BERT.to_ours(load_file(job.folder.model / "model.safetensors"))
    assert best.keys() == saved.keys()
    assert all(torch.equal(best[name], saved[name]) for name in best)
    for part in ("text-classification", "Training examples | 90", "down, up", job.data.sha256):
        assert part in results.card
    assert "left" not in results.card and str(job.folder.path.parent) not in results.card
    assert (job.folder.path / "artifacts" / "loss.png").read_bytes().startswith(b"\x89PNG")

    text = "\n".join(results.lines)
    assert "36 steps, 270 examples" in text
    assert f"accuracy {accuracy:.3f} after epoch" in text
    assert text.count("0 examples truncated") == 2, "train and dev"
    assert str(job.folder.model) in text and str(job.folder.settings) in text


def test_the_folder_has_an_example_of_dev_and_statistics_of_train(
    finetuning_job, finetuning_results
):
    folder, data = finetuning_job.folder.model, finetuning_job.data
    example = read_example(folder)
    assert example.kind == "classify" and example.precision == "float32"
    assert example.inputs in [each.first for each in data.dev.examples]
    assert check_example(example, answer_of(folder, example)) is None
    statistics = read_training_statistics(folder)
    answers = [each.answer for each in data.train.examples]
    assert statistics.num_examples == len(answers) == 90 and statistics.unknown_token_share == 0
    assert statistics.label_shares["up"] == pytest.approx(answers.count("up") / 90)
    assert statistics.lengths.mean == pytest.approx(data.train.rows.num_tokens.mean())
    load_model_folder(folder)
    listed = (folder / "checksums").read_text()
    assert "example.json" in listed and "training_statistics.json" in listed


@pytest.mark.slow
def test_a_decoder_learns_stays_one_and_says_so(tmp_path):
    """What it says of a text it reads at the last token: the first has seen nothing."""
    write_task(tmp_path / "data")
    folder = write_encoder(tmp_path / "both")
    _, model, tokenizer = load_model_folder(folder, changes={"is_decoder": True})
    save_model_folder(tmp_path / "encoder", model, tokenizer, card="")
    run, _, _ = finetune_here(tmp_path)
    (run.folder.path / "artifacts").mkdir()
    encoder = open_encoder(run.parts.settings.model, tmp_path, "sqlite://")
    data = read_task_data(run.parts.settings, encoder.tokenizer)
    job = FinetuningJob(run.parts.settings, open_storage(str(tmp_path)), run.folder, encoder, data)
    results = write_results(job)
    assert results.figures["dev/accuracy"] > 0.9
    config = json.loads((job.folder.model / "config.json").read_text())
    assert config["is_decoder"] is True and config["architectures"] == ["BertModel"]
    assert "read at its last token" in results.card and "pipeline_tag" not in results.card
    example = read_example(job.folder.model)
    assert check_example(example, answer_of(job.folder.model, example)) is None
    predictor = load_predictor(job.folder.model)
    assert predictor.model.config.is_decoder
    found, _ = predictor.predict_examples(data.dev.examples)
    metrics = predictor.task.metrics(found, data.dev.examples)
    assert metrics["accuracy"] == pytest.approx(results.figures["dev/accuracy"])
    assert BertModel.from_pretrained(job.folder.model).config.is_decoder


def test_a_test_file_is_measured_once_in_the_end(finetuning_job, finetuning_results):
    """Of dev as test the figures are those of the best epoch."""
    job = copy(finetuning_job)
    job.data = replace(job.data, test=job.data.dev)
    checkpoint = job.folder.last_checkpoint()
    lines = summary_lines(job, checkpoint, Path("plot.png"))
    (line,) = [each for each in lines if each.startswith("test")]
    accuracy = checkpoint.extra["notes"]["best"]["figures"]["dev/accuracy"]
    assert line.startswith("test         40 examples, 0 examples truncated: ")
    assert f"accuracy {accuracy:.3f}" in line
    assert not [
        each
        for each in summary_lines(finetuning_job, checkpoint, Path("plot.png"))
        if each.startswith("test")
    ]


def test_the_report_is_that_of_the_best_epoch(finetuning_job, finetuning_results):
    checkpoint = finetuning_job.folder.last_checkpoint()
    folder = finetuning_job.folder.path / "artifacts" / DEV_REPORT
    report = json.loads((folder / "report.json").read_text())
    best = checkpoint.extra["notes"]["best"]
    figures = {f"dev/{name}": each["value"] for name, each in report["metrics"].items()}
    assert figures == {name: value for name, value in best["figures"].items() if name in figures}
    assert figures["dev/accuracy"] == best["score"]
    assert report["metrics"]["accuracy"]["low"] <= best["score"]
    assert sum(map(sum, report["confusion"]["counts"])) == 40
    assert report["tally"] == {"examples truncated": 0}
    assert f"after epoch {best['epoch']}" in report["title"]
    pages = {"report.html", "report.md", "report.json", "mistakes.md"}
    assert {each.name for each in folder.iterdir()} == pages | {"confusion.png", "reliability.png"}
    for name in pages:
        assert str(finetuning_job.folder.path.parent) not in (folder / name).read_text()


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


MISSING = {"nan", "None", "null", "-"}
"""What a reader of classes may take for no answer, or for annotators who did not agree."""
CLASSES = tuple(label for label in HOSTILE_LABELS if label not in MISSING)


def write_classes(folder, kind):
    folder.mkdir()
    rows = [
        {"text": " ".join(WORDS[number % 7 :]), "label": [label] if kind == "multiple" else label}
        for number, label in enumerate(CLASSES * 2)
    ]
    for split in ("train", "dev"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
@pytest.mark.parametrize("kind", ["single", "multiple"])
def test_classes_of_any_characters_are_learned_and_reported(tmp_path, kind, capsys):
    write_classes(tmp_path / "data", kind)
    write_encoder(tmp_path / "encoder")
    run, _, _ = finetune_here(tmp_path, options__kind=kind, epochs=1)
    encoder = open_encoder(run.parts.settings.model, tmp_path, "sqlite://")
    data = read_task_data(run.parts.settings, encoder.tokenizer)
    read = {stripped for each in CLASSES if (stripped := label_of(each))}
    assert set(data.task.labels) == read
    job = FinetuningJob(run.parts.settings, open_storage(str(tmp_path)), run.folder, encoder, data)
    announce(job)
    announced = capsys.readouterr().out
    assert all(line.isprintable() for line in announced.splitlines())
    begin(job)
    results = write_results(job)
    assert all(line.isprintable() for line in results.lines)
    assert "<script>" not in results.card and "\n# C" not in results.card
    predictor = load_predictor(run.folder.model)
    assert predictor.task.labels == data.task.labels
    assert read_example(run.folder.model) is not None
    report = run.folder.path / "artifacts" / "dev" / "report.json"
    classes = json.loads(report.read_text(encoding="utf-8"))["classes"]
    assert {each["name"] for each in classes} == read


def test_labels_of_any_characters_stand_in_a_settings_file(tmp_path):
    given = {"task": "classification", "data": "d", "model": "m"}
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(given | {"options": {"labels": list(HOSTILE_LABELS)}}))
    settings = parse(["--preset", str(path)])
    assert settings.options.labels == HOSTILE_LABELS
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(settings.portable() | {"data": "d", "model": "m"}))
    assert parse(["--preset", str(again)]).options.labels == HOSTILE_LABELS
