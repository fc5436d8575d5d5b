"""Decisions tuned on dev: in the folder, in every reader of it, and in no run that did not ask."""

import json
import random
import re

import numpy as np
import pytest
import torch
from finetuning_runs import WORDS, arguments, finetune_here, write_encoder, write_tagged
from running import serving
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from bert_core.errors import UserError
from bert_core.evaluation.error_analysis import calibration
from bert_core.hugging_face.families import BERT
from bert_core.predictor import load_predictor
from bert_core.tasks.classification import Text
from workflows.evaluate import main as evaluate
from workflows.finetune import parse
from workflows.finetuning.data import read_task_data
from workflows.finetuning.job import FinetuningJob
from workflows.finetuning.results import DEV_REPORT, TEMPERATURE_FIELD, write_results
from workflows.finetuning.worker import BEST_OUTPUTS, BEST_WEIGHTS
from workflows.model_location import open_encoder
from workflows.quantize import main as quantize
from workflows.runs.storage import open_storage

BOTH = {"decisions__temperature": "true", "decisions__thresholds": "true"}
RARE = {"epochs": 1, "options__metric": "f1", "optimizer__peak_learning_rate": 2e-3}
TUNED = RARE | BOTH


def write_rare(folder):
    """A sixth of train is of the rare label, and a tenth of dev; more of its words are its own."""
    choose = random.Random(5)
    folder.mkdir()
    for split, count, period in (("train", 600, 6), ("dev", 200, 10)):
        lines = ["text\tlabel"]
        for number in range(count):
            label, share = ("rare", 0.7) if number % period == 0 else ("ordinary", 0.2)
            drawn = [WORDS[:3] if choose.random() < share else WORDS[3:] for _ in range(6)]
            lines.append(f"{' '.join(choose.choice(words) for words in drawn)}\t{label}")
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    storage = tmp_path_factory.mktemp("storage")
    write_rare(storage / "data")
    write_encoder(storage / "encoder")
    return storage


def finished(storage, stop_after=-1, **settings):
    """A run after its last step, and its results, which are written."""
    if stop_after > 0:
        finetune_here(storage, stop_after, **settings)
    run, _, _ = finetune_here(storage, **settings)
    (run.folder.path / "artifacts").mkdir(exist_ok=True)
    encoder = open_encoder(run.parts.settings.model, storage, "sqlite://")
    data = read_task_data(run.parts.settings, encoder.tokenizer)
    job = FinetuningJob(run.parts.settings, open_storage(str(storage)), run.folder, encoder, data)
    return job, write_results(job)


@pytest.fixture(scope="module")
def tuned(storage):
    return finished(storage, name="tuned", **TUNED)


@pytest.fixture(scope="module")
def plain(storage):
    return finished(storage, name="plain", **RARE)


def lines_of(results, kind):
    return [line for line in results.lines if line.startswith(kind)]


def test_a_rare_label_is_found_and_everything_says_how(tuned, plain):
    job, results = tuned
    temperature, thresholds = lines_of(results, "decisions")
    assert re.search(
        r"temperature [\d.]+: log loss ([\d.]+), then ([\d.]+) out of fold", temperature
    )
    found = re.search(r"thresholds rare 0\.\d+: f1 ([\d.]+), then ([\d.]+) out of fold", thresholds)
    assert float(found[1]) < 0.2 < 0.5 < float(found[2])
    (row,) = [line for line in results.card.splitlines() if line.startswith("| Decisions |")]
    assert temperature.removeprefix("decisions    ") in row and "thresholds rare" in row
    config = json.loads((job.folder.model / "config.json").read_text())
    assert config[TEMPERATURE_FIELD] != 1
    assert 0 < config["bertline_task"]["settings"]["thresholds"]["rare"] < 0.5

    assert not lines_of(plain[1], "decisions") and "Decisions" not in plain[1].card
    assert tuned[1].figures == plain[1].figures, "those of the epochs"
    (warning,) = lines_of(plain[1], "warning")
    assert "all 200 predictions are the same: ordinary" in warning
    assert not lines_of(results, "warning")


def test_a_run_that_did_not_ask_has_the_bits_and_the_name_that_it_had(plain, tuned, storage):
    best, other = (load_file(job.folder.path / BEST_WEIGHTS) for job in (plain[0], tuned[0]))
    saved = BERT.to_ours(load_file(plain[0].folder.model / "model.safetensors"))
    assert all(torch.equal(best[name], saved[name]) for name in saved)
    assert all(torch.equal(best[name], other[name]) for name in best), "training is the same"
    config = json.loads((plain[0].folder.model / "config.json").read_text())
    assert TEMPERATURE_FIELD not in config
    assert not (plain[0].folder.path / BEST_OUTPUTS).exists()
    recipe = parse(arguments(storage)).recipe()
    assert "decisions" not in recipe and "thresholds" not in recipe["options"]
    asked = parse(arguments(storage, decisions__temperature="true")).recipe()
    assert asked["decisions"] == {"temperature": True, "thresholds": False}


def test_every_reader_of_the_folder_decides_alike(tuned, plain, storage, tmp_path):
    job, _ = tuned
    folder, dev = job.folder.model, job.data.dev
    predictor = load_predictor(folder)
    found, _ = predictor.predict_examples(dev.examples)
    labels = [each["label"] for each in found]
    scores = np.array([each["scores"]["rare"] for each in found])
    assert 0 < labels.count("rare") < 60
    (threshold,) = predictor.task.thresholds.values()
    assert labels == ["rare" if score > threshold else "ordinary" for score in scores]

    texts = [example.first for example in dev.examples]
    assert [each.label for each in predictor.predict(texts)] == labels
    with serving({"model": folder}) as server:
        _, answer = server.ask("/v1/classify", {"model": "model", "inputs": texts[:60]})
        _, info = server.ask("/info")
        rare = texts[labels.index("rare")]
        _, explained = server.ask("/v1/explain", {"model": "model", "inputs": rare})
    assert [each["label"] for each in answer["results"]] == labels[:60]
    assert info["models"]["model"]["thresholds"] == predictor.task.thresholds
    assert explained["label"] == "rare"

    options = ["--model", str(folder), "--data", str(storage / "data")]
    written = tmp_path / "predictions.jsonl"
    assert evaluate([*options, "--output", str(written), "--report", str(tmp_path / "r")]) == 0
    records = [json.loads(line) for line in written.open()]
    assert [record["found"] for record in records] == labels
    reports = [
        json.loads((path / "report.json").read_text())
        for path in (tmp_path / "r", job.folder.path / "artifacts" / DEV_REPORT)
    ]
    assert reports[0]["metrics"]["f1"] == reports[1]["metrics"]["f1"]
    brier = [report["calibration"]["brier_score"] for report in reports]
    assert brier[0] == pytest.approx(brier[1], abs=1e-6)
    before, _ = load_predictor(plain[0].folder.model).predict_examples(dev.examples)
    uncalibrated = calibration(plain[0].data.task, before, dev.examples)
    assert brier[0] < uncalibrated.brier_score

    theirs = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = predictor.tokenizer
    for text, score in zip(texts[:5], scores, strict=False):
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.inference_mode():
            shares = theirs(ids).logits.softmax(-1)[0]
        assert shares[theirs.config.label2id["rare"]].item() == pytest.approx(score, abs=1e-5)

    given = {"model": folder, "data": storage / "data", "output": tmp_path / "int8"}
    options = [text for name, value in given.items() for text in (f"--{name}", str(value))]
    assert quantize([*options, "--storage", str(storage), "--num_resamples", "100"]) == 0
    assert load_predictor(tmp_path / "int8").task == predictor.task


@pytest.mark.slow
def test_of_epochs_that_find_nothing_the_one_with_the_lowest_loss_is_tuned(storage):
    settings = {"epochs": 2, "optimizer__peak_learning_rate": 3e-4, "options__metric": "f1"}
    best = [
        finetune_here(storage, name=name, **settings, decisions__thresholds=asked)[0]
        for name, asked in (("first", "false"), ("lowest", "true"))
    ]
    notes = [run.parts.evaluation.notes["best"] for run in best]
    assert [each["score"] for each in notes] == [0, 0]
    assert [each["epoch"] for each in notes] == [1, 2]


@pytest.mark.slow
def test_stopped_and_going_on_it_decides_the_same(tuned, storage):
    job, results = finished(storage, 30, name="parts", **TUNED, checkpoint__every_steps=7)
    assert lines_of(results, "decisions") == lines_of(tuned[1], "decisions")
    for name in ("model.safetensors", "config.json"):
        files = [each.folder.model / name for each in (job, tuned[0])]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_a_tagger_has_a_temperature(tmp_path):
    write_tagged(tmp_path / "data", dev=80)
    write_encoder(tmp_path / "encoder")
    settings = {"task": "ner", "epochs": 1, "decisions__temperature": "true"}
    job, results = finished(tmp_path, **settings)
    (line,) = lines_of(results, "decisions")
    assert "temperature 0." in line, "after two epochs it is less sure than it is right"
    best = load_file(job.folder.path / BEST_WEIGHTS)
    theirs = AutoModelForTokenClassification.from_pretrained(job.folder.model)
    config = json.loads((job.folder.model / "config.json").read_text())
    divided = best["heads.classifier.linear.weight"] / config[TEMPERATURE_FIELD]
    assert torch.allclose(theirs.classifier.weight, divided)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"task": "embedding", **BOTH}, "task embedding has no temperature to tune: --decisions.t"),
        ({"task": "ner", **BOTH}, "the task ner has no thresholds to tune: --decisions.thresholds"),
        ({"task": "mnli", **BOTH}, "the task mnli has no thresholds to tune"),
        ({"options__kind": "regression", **BOTH}, "classification has no temperature to tune"),
        ({"options__thresholds": "rare=0.2", **BOTH}, "thresholds are given as well"),
        ({"options__thresholds": "rare=1.2"}, "less than or equal to 1: --options.thresholds.rare"),
        ({"options__thresholds": "rar=0.2"}, "a threshold of 'rar', which is no label: --options"),
        ({"options__thresholds": '{"rare": 0.2, "ordinary": 0.3}'}, "that of one decides"),
    ],
)
def test_what_cannot_be_tuned_or_is_no_threshold_is_refused(storage, changed, message):
    with pytest.raises(UserError, match=re.escape(message)):
        finetune_here(storage, name="refused", **changed)


def test_thresholds_of_three_labels_are_refused_once_the_labels_are_known(storage, tmp_path):
    for split in ("train", "dev"):
        text = (storage / "data" / f"{split}.tsv").read_text()
        (tmp_path / f"{split}.tsv").write_text(f"{text}ba\tthird\n")
    for asked in ({"decisions__thresholds": "true"}, {"options__thresholds": "rare=0.2"}):
        with pytest.raises(UserError, match="for two labels, or several at once, not 3"):
            finetune_here(storage, name="refused", data=tmp_path, **asked)


@pytest.mark.slow
def test_a_threshold_may_be_given(storage):
    job, _ = finished(storage, name="given", options__thresholds="rare=0.05", epochs=1)
    assert job.settings.recipe()["options"]["thresholds"] == {"rare": 0.05}
    predictor = load_predictor(job.folder.model)
    (found,), _ = predictor.predict_examples([Text("ba to", None, None)])
    assert (found["label"] == "rare") == (found["scores"]["rare"] > 0.05)
