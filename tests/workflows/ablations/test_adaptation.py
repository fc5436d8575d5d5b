"""The study of adaptation: its four arms, what each is trained and measured on, its verdict."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ablation_runs import AblationCommand, write_inputs
from pretraining_runs import Channel, worker_threads, write_corpus
from safetensors.torch import load_file

from bert_core.config import SIZES
from bert_core.errors import UserError
from bert_core.model.bert import Bert
from bert_core.model_folder import save_model_folder
from bert_core.new_pieces import extend_tokenizer
from bert_core.special_tokens import num_embeddings
from bert_core.tokenizer import load_tokenizer
from workflows.ablations.ablation import opened_ablation
from workflows.ablations.held_out import adaptation_verdict
from workflows.ablations.report import write_ablation_report
from workflows.ablations.settings import parse
from workflows.clusters.workers import Worker
from workflows.pretraining.worker import pretraining_parts
from workflows.runs.storage import open_storage
from workflows.training.run import TrainingRun


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A corpus and a task, other text with the same tokenizer, and a start model for both."""
    folder = write_inputs(tmp_path_factory.mktemp("inputs"))
    tokenizer = load_tokenizer(folder / "corpus")
    write_corpus(folder / "other", seed=11, num_documents=120, tokenizer=tokenizer)
    changes = {
        "vocab_size": num_embeddings(tokenizer),
        "num_hidden_layers": 1,
        "max_position_embeddings": 32,
    }
    model = Bert.for_pretraining(SIZES["tiny"].model_copy(update=changes))
    save_model_folder(folder / "start", model, tokenizer, "# A card\n")
    return folder


def settings_of(storage, inputs, **changed):
    options = {
        "study": "adaptation",
        "preset": "adapt",
        "start_from": inputs / "start",
        "control": inputs / "other",
        "optimizer.peak_learning_rate": 3e-3,
        "optimizer.warmup_steps": 0,
    } | changed
    given = {name: value for name, value in options.items() if value is not None}
    return parse(AblationCommand(storage, "ablation", inputs, 30, given).arguments())


def train(planned):
    """What a worker of Ray does of a variant, in this process."""
    job = planned.job
    worker = Worker(0, 1, torch.device("cpu"), Channel())
    start = None if job.start is None else job.start.encoder.path
    with worker_threads():
        parts = pretraining_parts(job.settings, job.shards.folder, worker, job.folder.path, start)
        TrainingRun(parts, worker, job.folder.path).train()
    (job.folder.path / "artifacts").mkdir()
    planned.finish()


@pytest.mark.slow
def test_four_arms_are_trained_on_their_text_and_measured_on_both(tmp_path, inputs):
    storage = open_storage(str(tmp_path))
    with opened_ablation(settings_of(tmp_path, inputs), storage) as ablation:
        arms = {planned.variant.name: planned for planned in ablation.variants}
        assert list(arms) == ["start", "adapted", "control", "scratch"]
        for planned in ablation.variants:
            train(planned)
        outcome = ablation.outcome(at_once=1)
    weights = load_file(inputs / "start" / "model.safetensors")
    unchanged = load_file(arms["start"].job.folder.model / "model.safetensors")
    shared = weights.keys() & unchanged.keys()
    assert len(shared) > 15 and all(torch.equal(weights[n], unchanged[n]) for n in shared)
    figures = {variant.name: variant.figures for variant in outcome.variants}
    loss = "masked_token_loss"
    own = {name: found[f"heldout/{loss}"] for name, found in figures.items()}
    other = {name: found[f"other/{loss}"] for name, found in figures.items()}
    assert own["adapted"] < own["control"] and other["control"] < other["adapted"]
    assert own["adapted"] < own["start"]
    journal = {s: m for s, m in _records(arms["adapted"]) if s == 0}
    assert journal[0][f"heldout/{loss}"] == own["start"], "the state before the first step"
    assert arms["scratch"].job.settings.model == arms["adapted"].job.settings.model

    findings = write_ablation_report(outcome, tmp_path / "report")
    assert adaptation_verdict(outcome).startswith("helped beyond the control: ")
    assert adaptation_verdict(findings.outcome) in (tmp_path / "report" / "report.md").read_text()
    worse = [
        replace(v, figures=v.figures | {f"heldout/{loss}": 99.0}) if v.name == "adapted" else v
        for v in outcome.variants
    ]
    said = adaptation_verdict(replace(outcome, variants=tuple(worse)))
    assert said.startswith("did not help beyond the control")


def _records(planned):
    from workflows.runs.journal import read_records

    path = Path(planned.job.folder.path) / "journal.jsonl"
    return [(record.step, record.metrics) for record in read_records(path)]


def test_from_scratch_it_has_the_extended_vocabulary_and_positions(tmp_path, inputs):
    old = load_tokenizer(inputs / "corpus")
    tokenizer = extend_tokenizer(old, ["bakelimo nurashito"] * 9, 2)
    for number, name in enumerate(("domain", "general")):
        write_corpus(tmp_path / name, num_documents=40, seed=number, tokenizer=tokenizer)
    changed = {
        "shards": tmp_path / "domain",
        "control": tmp_path / "general",
        "vocabulary": "extend",
        "model.max_position_embeddings": 48,
        "model.position_extension": "interpolate",
    }
    settings = settings_of(tmp_path, inputs, **changed)
    with opened_ablation(settings, open_storage(str(tmp_path))) as ablation:
        shapes = {
            (planned.job.settings.model.max_position_embeddings, planned.config.vocab_size)
            for planned in ablation.variants
        }
    assert shapes == {(48, num_embeddings(tokenizer))}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"control": None}, "give --control"),
        ({"start_from": None, "preset": "quickstart"}, "give --start_from"),
        ({"study": "objective", "preset": "mini"}, "a control of no study"),
    ],
)
def test_what_is_missing_or_too_much_is_one_line(tmp_path, inputs, changed, message):
    with pytest.raises(UserError, match=message):
        settings_of(tmp_path, inputs, **changed)
