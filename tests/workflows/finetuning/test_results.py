"""The results of a fine-tuning run: model folder, card, report on the dev set."""

import json
from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest
from finetuning_runs import finetune_here, write_encoder, write_task
from transformers import BertModel

from bert_core.example import check_example, read_example
from bert_core.example_answers import answer_of
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.predictor import load_predictor
from bert_core.training_statistics import read_training_statistics
from workflows.finetuning.data import open_encoder, read_task_data
from workflows.finetuning.job import FinetuningJob
from workflows.finetuning.results import (
    DEV_REPORT,
    summary_lines,
    write_dev_report,
    write_results,
)
from workflows.runs.storage import open_storage


def test_the_summary_says_what_it_came_to_and_where_it_lies(finetuning_job):
    results = write_results(finetuning_job)
    text = "\n".join(results.lines)
    assert "36 steps, 270 examples" in text
    assert f"accuracy {results.figures['dev/accuracy']:.3f} after epoch" in text
    assert text.count("0 examples truncated") == 2, "train and dev"
    for path in (finetuning_job.folder.model, finetuning_job.folder.settings):
        assert str(path) in text
    assert "left" not in results.card


def test_the_folder_has_an_example_of_dev_and_statistics_of_train(finetuning_job):
    write_results(finetuning_job)
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
    first = (folder / "example.json").read_bytes()
    write_results(finetuning_job)
    assert (folder / "example.json").read_bytes() == first


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


def test_a_test_file_is_measured_once_in_the_end(finetuning_job):
    """Of dev as test the figures are those of the best epoch."""
    job = copy(finetuning_job)
    if not job.folder.model.exists():
        write_results(job)
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


def test_the_report_is_that_of_the_best_epoch(finetuning_job):
    checkpoint = finetuning_job.folder.last_checkpoint()
    write_dev_report(finetuning_job, checkpoint)
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
