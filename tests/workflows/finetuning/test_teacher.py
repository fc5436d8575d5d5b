"""Runs that learn from a teacher: kept outputs, exact resuming, ranks, who may teach."""

import json
import shutil

import pytest
import torch
from finetuning_runs import WORDS, arguments, finetune_here, write_encoder, write_task
from pretraining_runs import Channel, StoppingWorker, worker_threads
from safetensors.torch import load_file

from bert_core.config import ModernConfig
from bert_core.errors import UserError
from bert_core.evaluation.decisions import Decisions
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tasks.catalog import TASKS, task_config
from bert_core.tasks.task import add_task_head
from bert_core.training.checkpoint import newest_checkpoint
from workflows.finetune import parse, read_inputs
from workflows.finetuning.data import read_task_data
from workflows.finetuning.job import FinetuningJob
from workflows.finetuning.results import write_results
from workflows.finetuning.teacher import Teaching
from workflows.finetuning.worker import finetuning_parts
from workflows.model_location import open_encoder
from workflows.runs.journal import read_records
from workflows.runs.storage import open_storage
from workflows.sweeps.sweep import opened_sweep
from workflows.training.run import TrainingRun
from workflows.tune import parse as parse_sweep

SMALL = {"keep_layers": 1, "epochs": 2, "checkpoint__every_steps": 4}


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    storage = tmp_path_factory.mktemp("storage")
    write_encoder(storage / "encoder", layers=2)
    return with_teacher(storage)


def with_teacher(storage, **changed):
    """Adds a task, a finished teacher, and texts without labels to the storage of an encoder."""
    write_task(storage / "data")
    run, _, _ = finetune_here(storage, name="teacher", **changed)
    (run.folder.path / "artifacts").mkdir()
    settings = run.parts.settings
    encoder = open_encoder(settings.model, storage, "sqlite://")
    data = read_task_data(settings, encoder.tokenizer)
    write_results(FinetuningJob(settings, open_storage(str(storage)), run.folder, encoder, data))
    texts = [" ".join(WORDS[n % 10 :][:4]) for n in range(14)]
    (storage / "texts.txt").write_text("\n".join(texts) + "\n\n")
    (storage / "more.tsv").write_text(
        "text\tlabel\n" + "\n".join(f"{t}\todd" for t in texts) + "\n"
    )
    return storage


def settings_of(storage, **changed):
    given = {"teacher": storage / "runs" / "teacher" / "model", **SMALL, **changed}
    files = storage / "texts.txt", storage / "more.tsv"
    return parse([*arguments(storage, **given), "--unlabelled", *map(str, files)])


def learn(storage, stop_after=-1, **changed):
    """One start of a student's worker, in this process."""
    settings = settings_of(storage, **changed)
    encoder, data = read_inputs(settings, open_storage(str(storage)))
    worker = StoppingWorker(0, 1, torch.device("cpu"), Channel())
    worker.steps_left = stop_after
    folder = storage / "runs" / settings.name
    folder.mkdir(parents=True, exist_ok=True)
    teaching = Teaching.of(data.teacher, storage, settings.precision)
    with worker_threads():
        parts = finetuning_parts(settings, encoder.path, worker, folder, teaching=teaching)
        run = TrainingRun(parts, worker, folder)
        run.train()
    return run, FinetuningJob(settings, open_storage(str(storage)), run.folder, encoder, data)


def weights(run):
    return (newest_checkpoint(run.folder.checkpoints)[0] / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_stopped_and_resumed_it_ends_bit_equal(storage):
    whole, job = learn(storage, name="whole")
    assert job.data.num_items == 90 + 14 + 14 and whole.parts.total_steps == 2 * 15
    learn(storage, 7, name="parts")
    kept = list((storage / "teachers").rglob("*.npy"))
    assert len(kept) == 2, "train, and what has no labels"
    written = [path.stat().st_mtime_ns for path in kept]
    again, _ = learn(storage, name="parts")
    assert weights(whole) == weights(again)
    other, _ = learn(storage, name="other", seed=1)
    assert [path.stat().st_mtime_ns for path in kept] == written, "computed once"
    assert weights(other) != weights(whole)
    last = [record.metrics for record in read_records(whole.folder.path / "journal.jsonl")][-2:]
    figures = last[0] | last[1]
    assert figures["train/loss_to_teacher"] > 0 and figures["dev/accuracy"] > 0.9
    assert len(load_file(whole.folder.path / "best.safetensors")) > 0


@pytest.mark.slow
def test_two_ranks_have_the_gradients_of_one(storage):
    """The sums of the shares of every rank, which all are computed in this process."""
    settings = settings_of(storage, name="ranks", dropout__hidden_dropout_prob=0.0)
    settings = settings.model_copy(
        update={"dropout": settings.dropout.model_copy(update={"attention_probs_dropout_prob": 0})}
    )
    encoder, data = read_inputs(settings, open_storage(str(storage)))
    worker = StoppingWorker(0, 1, torch.device("cpu"), Channel())
    teaching = Teaching.of(data.teacher, storage, settings.precision)
    parts = finetuning_parts(settings, encoder.path, worker, storage, teaching=teaching)
    model = parts.state.model.train()

    def gradient(world_size):
        total = []
        model.zero_grad()
        for rank in range(world_size):
            source = parts.batches.args[0]
            step = source.step(0, rank, world_size)
            for batch in step.micro_batches:
                loss, _ = parts.compute_loss(model, batch, **step.counts)
                loss.backward()
                total.append(float(loss.detach()))
        return sum(total), torch.cat([each.grad.flatten() for each in model.parameters()])

    whole, expected = gradient(1)
    for world_size in (2, 8):
        loss, found = gradient(world_size)
        assert loss == pytest.approx(whole, rel=1e-5)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_the_results_tell_teacher_and_student_apart(storage, monkeypatch):
    other = storage / "old" / "teacher"  # whatever it is called
    shutil.copytree(storage / "runs" / "teacher" / "model", other)
    run, job = learn(storage, name="told", compare=other)
    (run.folder.path / "artifacts").mkdir(exist_ok=True)
    results = write_results(job)
    models = json.loads((run.folder.path / "artifacts" / "distillation.json").read_text())
    assert [each["model"] for each in models] == ["teacher", "teacher", "told, distilled"]
    assert models[0]["difference"] is None
    assert models[-1]["score"]["value"] == pytest.approx(results.figures["dev/accuracy"])
    assert models[-1]["megabytes"] < models[0]["megabytes"]
    assert all(each["p50_milliseconds"] > 0 for each in models)
    assert "Teacher and student" in results.card and "told, distilled" in results.card
    assert any("told, distilled" in line for line in results.lines)
    config, _, _ = load_model_folder(job.folder.model)
    assert config.num_hidden_layers == 1
    assert job.described()[1]["teacher.sha256"] == job.data.teacher.sha256

    tuned = [{"label": "up", "scores": {"down": 0.6, "up": 0.4}}] * 40
    decisions = Decisions(job.data.task, tuned)
    monkeypatch.setattr("workflows.finetuning.results.dev_decisions", lambda *_: decisions)
    write_results(job)
    models = json.loads((run.folder.path / "artifacts" / "distillation.json").read_text())
    share = [each.answer for each in job.data.dev.examples].count("up") / 40
    assert models[-1]["score"]["value"] == pytest.approx(share)


def test_the_modern_block_teaches_and_learns_by_whole_turns(tmp_path):
    write_encoder(tmp_path / "encoder", layers=7, kind=ModernConfig)
    mean = {"options__classifier_pooling": "mean", "dropout__attention_probs_dropout_prob": 0}
    storage = with_teacher(tmp_path, **mean)
    run, job = learn(storage, name="student", keep_layers=4, **mean)
    (run.folder.path / "artifacts").mkdir(exist_ok=True)
    results = write_results(job)
    config, model, _ = load_model_folder(job.folder.model)
    assert (config.num_hidden_layers, model.encoder.layers[3].reach) == (4, None)
    said = json.loads((job.folder.model / "config.json").read_text())
    assert said["classifier_pooling"] == "mean"
    assert results.figures["dev/accuracy"] > 0.8


def test_a_run_without_a_teacher_keeps_its_recipe(storage):
    recipe = parse(arguments(storage)).recipe()
    assert not recipe.keys() & {"teacher", "unlabelled", "compare", "distillation", "keep_layers"}
    taught = settings_of(storage, name="named").recipe()
    assert taught["distillation"] == {"temperature": 2.0, "alpha": 0.9}
    assert taught["keep_layers"] == 1 and "teacher" not in taught, "its hash is, where it is open"


def refused(storage, **changed):
    settings = settings_of(storage, name="refused", **changed)
    with pytest.raises(UserError) as error:
        read_inputs(settings, open_storage(str(storage)))
    return str(error.value)


def write_model(storage, name, task, tokenizer_of="encoder"):
    _, model, tokenizer = load_model_folder(storage / tokenizer_of)
    add_task_head(model, task)
    save_model_folder(
        storage / name, model, tokenizer, extra_config=task_config("classification", task)
    )
    return storage / name


def test_who_answers_other_questions_is_no_teacher(storage):
    classification = TASKS["classification"]
    others = classification.model_copy(update={"labels": ("down", "sideways")})
    text = refused(storage, teacher=write_model(storage, "others", others))
    assert "labels are down, sideways, the task's down, up" in text
    numbers = classification.model_copy(update={"kind": "regression"})
    text = refused(storage, teacher=write_model(storage, "numbers", numbers))
    assert "the model gives a number, the task is a label" in text
    pairs = classification.model_copy(update={"labels": ("down", "up"), "second_column": "b"})
    text = refused(storage, teacher=write_model(storage, "pairs", pairs))
    assert "the model reads pairs, the task has single texts" in text
    assert "no known task" in refused(storage, teacher=storage / "encoder")
    text = refused(storage, task="embedding", options__max_length=16)
    assert "--task embedding has no distillation" in text
    assert "give --keep_layers 2" in refused(storage, keep_layers=3)
    several = classification.model_copy(update={"labels": ("down", "up"), "kind": "multiple"})
    for each in ("others", "numbers", "pairs", write_model(storage, "several", several)):
        assert f"--compare {storage / each}" in refused(storage, compare=storage / each)
    with pytest.raises(UserError, match="nothing is learned from labels: --loss.label_smoothing"):
        settings_of(storage, distillation__alpha=1, loss__label_smoothing=0.1)
    with pytest.raises(UserError, match="nothing is learned from the teacher: --unlabelled"):
        settings_of(storage, distillation__alpha=0)
    with pytest.raises(UserError, match="from the teacher: --distillation.temperature"):
        given = {"distillation__alpha": 0, "distillation__temperature": 5}
        parse(arguments(storage, teacher="teacher", **given))
    assert parse(arguments(storage, teacher="teacher", distillation__alpha=0))
    with pytest.raises(UserError, match="no teacher to learn from"):
        parse(arguments(storage, unlabelled=storage / "texts.txt"))
    with pytest.raises(UserError, match="no teacher to learn from"):
        parse(arguments(storage, distillation__alpha=0.5))


@pytest.mark.slow
def test_the_same_labels_in_another_order_teach_the_same(storage):
    """Columns follow the names of the labels."""
    task = TASKS["classification"].model_copy(update={"labels": ("up", "down")})
    _, model, tokenizer = load_model_folder(storage / "runs" / "teacher" / "model")
    linear = model.heads["classifier"].linear
    linear.weight.data = linear.weight.data.flip(0)
    linear.bias.data = linear.bias.data.flip(0)
    save_model_folder(
        storage / "turned", model, tokenizer, extra_config=task_config("classification", task)
    )
    plain, _ = learn(storage, name="as-it-is")
    turned, _ = learn(storage, name="turned", teacher=storage / "turned")
    ours, theirs = (load_file(run.folder.path / "best.safetensors") for run in (plain, turned))
    for name, weight in ours.items():
        torch.testing.assert_close(theirs[name], weight, rtol=1e-4, atol=1e-6)


def test_a_sweep_varies_alpha_and_layers_of_the_same_teacher(storage):
    given = [
        text for text in arguments(storage, teacher="teacher") if text not in ("--name", "run")
    ]
    axes = ["distillation.alpha=0.5,0.9", "keep_layers=1,2"]
    texts = str(storage / "texts.txt")
    settings = parse_sweep([*given, "--unlabelled", texts, "--axis", *axes])
    with opened_sweep(settings, open_storage(str(storage))) as sweep:
        jobs = [trial.job for trial in sweep.trials]
        assert {(job.settings.distillation.alpha, job.settings.keep_layers) for job in jobs} == {
            (alpha, layers) for alpha in (0.5, 0.9) for layers in (1, 2)
        }
        assert {job.settings.unlabelled for job in jobs} == {(texts,)}
        assert {job.worker_job().open_parts.keywords["teaching"].model for job in jobs} == {
            storage / "runs" / "teacher" / "model"
        }
        assert len({job.folder.name for job in jobs}) == 4
