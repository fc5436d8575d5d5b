"""Variants of equal time: how many steps they get, and what a report says of them."""

import json
import re
from dataclasses import replace

import pytest
import torch
from ablation_runs import ablation_settings, made_up_variants, objective, write_inputs
from pretraining_runs import Channel, worker_threads, write_corpus

from bert_core.config import SIZES
from bert_core.model.bert import Bert
from bert_core.model_folder import save_model_folder
from bert_core.pretraining import compute_loss
from bert_core.special_tokens import num_embeddings
from bert_core.tokenizer import load_tokenizer
from workflows.ablations import equal_time
from workflows.ablations.ablation import opened_ablation
from workflows.ablations.equal_time import TimedPhase, with_minutes
from workflows.ablations.held_out import (
    curve_figures,
    equal_time_verdict,
    minutes_curve,
    pretraining_table,
)
from workflows.ablations.report import write_ablation_report
from workflows.ablations.studies import chosen_variants, find_study, variant_settings
from workflows.clusters.workers import Worker
from workflows.pretraining.settings import PretrainSettings
from workflows.pretraining.worker import pretraining_parts
from workflows.runs.storage import open_storage
from workflows.settings import parse_command_line
from workflows.training.run import TrainingRun

PHASES = '[{"sequence_length": 64, "steps": 90}, {"sequence_length": 128, "steps": 10}]'


def test_steps_are_scaled_to_the_minutes():
    options = ["--phases", PHASES, "--optimizer.warmup_steps", "10", "--evaluation.every_steps"]
    settings = parse_command_line(PretrainSettings, [*options, "20"])
    timed = with_minutes(settings, (0.1, 0.6), 10)  # 15 seconds become 600
    assert [phase.steps for phase in timed.phases] == [3600, 400]
    assert (timed.optimizer.warmup_steps, timed.evaluation.every_steps) == (400, 800)
    short = with_minutes(settings, (0.1, 0.6), 0.001)
    assert [phase.steps for phase in short.phases] == [1, 1]


@pytest.fixture
def block_settings(tmp_path):
    inputs = write_inputs(tmp_path / "inputs")
    return ablation_settings(tmp_path, inputs, study="block", minutes=0.05)


def train(planned):
    job = planned.job
    worker = Worker(0, 1, torch.device("cpu"), Channel())
    with worker_threads():
        parts = pretraining_parts(job.settings, job.shards.folder, worker, job.folder.path)
        TrainingRun(parts, worker, job.folder.path).train()
    (job.folder.path / "artifacts").mkdir()
    planned.finish()


def test_both_blocks_are_trained_for_the_same_time_and_compared(
    tmp_path, block_settings, monkeypatch
):
    storage = open_storage(str(tmp_path))

    def measured(settings, shards, models, _):  # what a task of Ray does, in this process
        values = settings.model_dump(mode="json")
        with worker_threads():
            phases = range(len(settings.phases))
            return [
                equal_time._time_steps(values, number, shards, models, 1, 0.1) for number in phases
            ]

    monkeypatch.setattr(equal_time, "_measured", measured)
    with opened_ablation(block_settings, storage) as ablation:
        names = [planned.name for planned in ablation.variants]
        known = json.loads((ablation.folder.path / "seconds_per_step.json").read_text())
        for planned in ablation.variants:
            (seconds,) = known[planned.variant.name]
            steps = planned.job.settings.total_steps
            assert steps == max(1, round(3 / seconds)), "3 seconds"
            train(planned)
        outcome = ablation.outcome(at_once=1)

    def refused(*_):
        raise AssertionError("it is measured already")

    monkeypatch.setattr(equal_time, "_measured", refused)
    with opened_ablation(block_settings, storage) as again:
        assert [planned.name for planned in again.variants] == names
        assert not again.left()

    assert [variant.name for variant in outcome.variants] == ["bert", "modern"]
    papers, modern = outcome.variants
    assert papers.is_reference and papers.question == modern.question
    for variant in outcome.variants:
        minutes, loss = minutes_curve(variant)[-1]
        (seconds,) = known[variant.name]
        assert minutes == pytest.approx(variant.curve[-1][0] * seconds / 60)
        assert loss == pytest.approx(variant.figures["heldout/masked_token_loss"])
    findings = write_ablation_report(outcome, tmp_path / "report")
    text = (tmp_path / "report" / "report.md").read_text()
    assert equal_time_verdict(findings.outcome) in text
    assert "0.05 minutes each" in text
    svg = (tmp_path / "report" / "pretraining.svg").read_text()
    assert "over minutes of training" in svg and "modern block" in svg


@pytest.mark.ray
def test_steps_are_measured_on_the_cluster(block_settings, ray_cluster, monkeypatch):
    monkeypatch.setattr(equal_time, "_SECONDS", 0.1)
    phases = [phase.model_copy(update={"steps": 1}) for phase in block_settings.phases * 2]
    settings = block_settings.model_copy(update={"phases": phases})
    _, modern = chosen_variants("block", settings, [])
    settings = variant_settings(settings, modern)
    first, second = equal_time._measured(settings, block_settings.shards, (None, None), 1.0)
    assert 0 < first < 30 and 0 < second < 30


def test_a_slow_moment_of_the_machine_takes_no_steps_from_a_variant(
    tmp_path, block_settings, monkeypatch, capsys
):
    asked = []

    def measured(settings, *_):
        asked.append(settings.model.block)
        return [0.01 if len(asked) not in {2, 3, 4} else 0.07]

    monkeypatch.setattr(equal_time, "_measured", measured)
    with opened_ablation(block_settings, open_storage(str(tmp_path))) as ablation:
        steps = [planned.job.settings.total_steps for planned in ablation.variants]
    assert steps == [300, 300]
    assert asked[:4] == ["bert", "modern"] * 2, "in turns"
    said = capsys.readouterr().out
    assert (
        "steps of 2 variants in turns, 1 min 40 s or more" in said and "round 4 of 5  ETA" in said
    )


def of_an_hour(curves, phases):
    """Variants of the study objective that trained for an hour each, by their losses by step."""
    made_up = objective()
    variants = [
        replace(
            variant,
            curve=tuple(curve),
            figures={"heldout/masked_token_loss": curve[-1][1]},
            seconds=3600.0,
            phases=phases,
        )
        for variant, curve in zip(made_up.variants, curves, strict=False)
    ]
    return replace(made_up, variants=tuple(variants), minutes=60.0)


def saved_model(tokenizer, folder, **changes):
    config = SIZES["tiny"].model_copy(update={"vocab_size": num_embeddings(tokenizer), **changes})
    save_model_folder(folder, Bert.for_pretraining(config), tokenizer, "# A card\n")
    return folder


def test_steps_are_measured_with_the_teacher(tmp_path, monkeypatch):
    inputs = write_inputs(tmp_path / "inputs")
    teacher = saved_model(load_tokenizer(inputs / "corpus"), tmp_path / "teacher")
    settings = ablation_settings(
        tmp_path, inputs, study="masking_rate", minutes=0.05, variants="0.15", teacher=teacher
    )
    monkeypatch.setattr(equal_time, "_measured", lambda *given: asked.append(given) or [0.1])
    asked = []
    with opened_ablation(settings, open_storage(str(tmp_path))):
        each, shards, models, _ = asked[0]
    assert models == (None, teacher)
    opened = []
    monkeypatch.setattr(
        "workflows.pretraining.worker._loss",
        lambda *given: opened.append(given[-1]) or compute_loss,
    )
    with worker_threads():
        equal_time._time_steps(each.model_dump(mode="json"), 0, shards, models, 1, 0.01)
    assert opened == [teacher]


def test_a_start_model_is_measured_as_it_is(tmp_path, monkeypatch):
    inputs = write_inputs(tmp_path / "inputs")
    tokenizer = load_tokenizer(inputs / "corpus")
    shape = {"num_hidden_layers": 1, "max_position_embeddings": 32}
    start = saved_model(tokenizer, tmp_path / "start", **shape)
    write_corpus(tmp_path / "other", seed=11, num_documents=60, tokenizer=tokenizer)
    settings = ablation_settings(
        tmp_path,
        inputs,
        study="adaptation",
        preset="adapt",
        minutes=1,
        start_from=start,
        control=tmp_path / "other",
    )
    monkeypatch.setattr(equal_time, "_measured", lambda *_: [0.1])
    with opened_ablation(settings, open_storage(str(tmp_path))) as ablation:
        steps = {each.variant.name: each.job.settings.total_steps for each in ablation.variants}
    assert steps == {"start": 1, "adapted": 600, "control": 600, "scratch": 600}


ONE_PHASE = (TimedPhase(128, 200, 18.0),)


def test_the_verdict_says_when_the_better_one_was_where_the_other_ended():
    outcome = of_an_hour([[(100, 4.0), (200, 3.0)], [(100, 2.9), (200, 2.5)]], ONE_PHASE)
    first, second = outcome.variants
    said = equal_time_verdict(outcome)
    assert said.startswith("after 60 minutes each, ") and "nats a token" in said
    assert f"{second.title} reaches the 3.0000 of {first.title} after 30 minutes" in said
    *_, note = pretraining_table(outcome, find_study("objective").paper).notes
    seconds = [f"{each.title} {each.phases[0].seconds:.3g}" for each in (first, second)]
    assert all(each in note for each in seconds), note
    of_equal_steps = [replace(variant, phases=()) for variant in outcome.variants]
    assert equal_time_verdict(replace(outcome, variants=tuple(of_equal_steps), minutes=None)) == ""


def test_losses_of_other_questions_are_not_compared():
    outcome = of_an_hour(
        [[(100, 4.0), (200, 3.0)], [(100, 2.9), (200, 2.5)], [(100, 1.2), (200, 1.1)]], ONE_PHASE
    )
    first, second, third = outcome.variants
    assert first.question == second.question != third.question
    said = equal_time_verdict(outcome)
    assert f"{third.title} 1.1000" in said and "compare only between" in said
    assert f"; {second.title} reaches the 3.0000" in said and f"; {third.title} reaches" not in said
    drawn = [figure.name for figure in curve_figures(outcome) if "over-minutes" in figure.name]
    assert len(drawn) == len(set(drawn)) == 2, "a picture for each question"


def test_no_two_variants_have_one_color():
    variants = tuple(replace(each, phases=ONE_PHASE) for each in made_up_variants("recipe"))
    figures = curve_figures(replace(objective(), variants=variants, minutes=1.0))
    assert len(figures) == 2, "over minutes, and over steps"
    for figure in figures:
        colors = re.findall(r"stroke: var\(--(\w+), #\w+\); stroke-width: 1\.5", figure.svg)
        assert len(set(colors)) == len(variants)


def test_minutes_are_those_of_the_phase_that_a_step_is_of():
    phases = (TimedPhase(128, 200, 3.6), TimedPhase(512, 100, 28.8))  # 12 minutes, then 48
    curve = [(100, 4.0), (200, 2.9), (250, 2.8), (300, 2.5)]
    outcome = of_an_hour([[*curve[:-1], (300, 2.95)], curve], phases)
    slow = [replace(each, seconds=2 * each.seconds) for each in outcome.variants]
    outcome = replace(outcome, variants=tuple(slow))  # evaluation and others' use of the machine
    assert [round(minutes, 6) for minutes, _ in minutes_curve(outcome.variants[1])] == [
        6,
        12,
        36,
        60,
    ]
    said = equal_time_verdict(outcome)
    assert said.endswith("after 36 minutes"), "rows of 128 tokens are others than rows of 512"
