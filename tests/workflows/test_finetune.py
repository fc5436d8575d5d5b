"""The fine-tuning command: refused in one line; and, at length, killed and resumed."""

import random
import re
import shutil
import signal

import pytest
import torch
from finetuning_runs import (
    FineTuning,
    FineTunings,
    arguments,
    write_encoder,
    write_tagged,
    write_task,
)
from pretraining_runs import (
    Channel,
    StoppingWorker,
    find_writer,
    rank_one_beside,
    stop_inside_a_checkpoint_write,
    writer_of,
)

from bert_core.training.checkpoint import newest_checkpoint
from workflows.finetune import main, opened_job, parse
from workflows.runs.sender import verify_exactly_once
from workflows.runs.storage import open_storage
from workflows.training.run import TrainingRun


@pytest.fixture
def storage(tmp_path):
    write_task(tmp_path / "data")
    write_encoder(tmp_path / "encoder")
    return tmp_path


def give_tags(storage):
    write_tagged(storage / "data")


def refused(storage, capsys, **changed):
    """The one line with which the command refuses; nothing of a run is left."""
    assert main(arguments(storage, **changed)) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), captured.err
    assert not (storage / "runs" / "run").exists()
    return lines[0]


def edit(storage, split, *replaced, end=""):
    path = storage / "data" / f"{split}.tsv"
    path.write_text(path.read_text().replace(*(replaced or ("", ""))) + end)


def lose_a_column(storage):
    edit(storage, "dev", "text\tlabel", "sentence\tlabel")


def add_a_label(storage):
    edit(storage, "dev", end="ba keli\tsideways\n")


def keep_one_label(storage):
    edit(storage, "train", "\tdown", "\tup")


def tear_a_line(storage):
    edit(storage, "train", end="ba keli\n")


def lose_dev(storage):
    (storage / "data" / "dev.tsv").unlink()


def swap_the_tokenizer(storage):
    """The tokenizer has more words than the model has embeddings."""
    write_encoder(storage / "encoder", vocab_size=30)


def damage_the_weights(storage):
    path = storage / "encoder" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


TAGGING = {"approach": "features", "task": "ner"}
CATS = {"tracking.register_as": "cats"}


@pytest.mark.parametrize(
    ("spoil", "changed", "match"),
    [
        (None, {"task": "mprc"}, "unknown task, did you mean mrpc.*one of .*mrpc"),
        (None, {"data": "/nowhere"}, "no such file or folder: /nowhere"),
        (None, {"data": __file__}, "one file, and two are needed: .*test_finetune.py"),
        (None, {"model": "nobody"}, "no such model: nobody .*models:/NAME@ALIAS"),
        (None, {"options.max_lenth": 64}, r"unknown setting, did you mean options.max_length"),
        (None, {"options.max_length": 64}, "rows of 64 tokens.*32 positions.*--options.max_length"),
        (None, {"epochs": 0}, "--epochs"),
        (None, {"loss.class_weights": '{"upp": 5}'}, "unknown label, did you mean up.*down, up"),
        (None, {"loss.class_weights": "balancd"}, "--loss.class_weights"),
        (None, {"task": "embedding", "loss.focal_gamma": 1}, "no effect on --task embedding"),
        (None, {"approach": "feature"}, "unknown approach, did you mean features.*one of finetune"),
        (None, {"approach": "features"}, "features are for tags of words, not for --task classif"),
        (give_tags, TAGGING | {"strategy": "lost"}, "unknown strategy, did you mean last: lost"),
        (give_tags, TAGGING, "concat_last_four needs 4 layers: the model has 1"),
        (None, {"tracking.register_as": "team/sentiment"}, "no name for a model.*take '/' out"),
        (None, {"tracking.register_as": "a@champion"}, "take '@' out of it"),
        (None, {"tracking.register_as": " "}, "1 to 200 characters"),
        (None, {"tracking.experiment": "a\nb"}, "no name for an experiment"),
        (None, {"name": "ü" * 100}, "a name of 200 bytes: at most 180"),
        (None, CATS | {"tracking.uri": "http://127.0.0.1:9"}, "no version .*without registration"),
        (None, CATS | {"tracking.uri": "htp://mlflow"}, "no version of cats can be registered"),
        (lose_a_column, {}, "no column text: .*dev.tsv:2: sentence, label"),
        (add_a_label, {}, "unknown label 'sideways': .*dev.tsv:42 .*down, up"),
        (keep_one_label, {}, "fewer than two labels, up"),
        (tear_a_line, {}, "1 columns, expected 2: .*train.tsv:92"),
        (lose_dev, {}, "no file of the dev split"),
        (swap_the_tokenizer, {}, "the tokenizer has .* words, the model 30"),
        (damage_the_weights, {}, "damaged model folder: .*model.safetensors"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(storage, capsys, spoil, changed, match):
    if spoil:
        spoil(storage)
    line = refused(storage, capsys, **changed)
    assert re.search(match, line), line


def test_the_options_are_those_of_the_task(storage, capsys):
    assert parse(arguments(storage, task="mrpc")).options.text_column == "#1 String"
    assert parse(arguments(storage, task="mrpc", **{"options.metric": "accuracy"})).options.labels
    assert parse([*arguments(storage), "--register", "cats"]).tracking.register_as == "cats"
    assert parse([*arguments(storage), "--register=cats"]).tracking.register_as == "cats"
    for task, option in (("stsb", "--options.kind"), ("classification", "--options.text_column")):
        with pytest.raises(SystemExit) as ended:
            main(["--task", task, "--help"])
        assert ended.value.code == 0
        assert option in capsys.readouterr().out


EPOCHS = 40
STEPS = 12 * EPOCHS
SETTINGS = {"epochs": EPOCHS, "checkpoint.every_steps": 30, "cluster.max_failures": 100}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The folder of data and encoder."""
    folder = tmp_path_factory.mktemp("source")
    write_task(folder / "data")
    write_encoder(folder / "encoder")
    return folder


@pytest.fixture
def make_run(tmp_path, source, ray_cluster):
    """Makes runs on the shared cluster."""

    def make(name, storage=None, **settings):
        named = SETTINGS | {key.replace("__", "."): value for key, value in settings.items()}
        environment = {"RAY_ADDRESS": ray_cluster}
        return FineTuning(storage or tmp_path / "storage", name, source, STEPS, named, environment)

    return make


def left(run):
    """Whatever the steps of a run decide."""
    path, damaged = newest_checkpoint(run.checkpoints)
    assert path is not None and not damaged
    names = ["model.safetensors", "optimizer.safetensors"]
    names += ["files/best.safetensors", "files/best_predictions.jsonl"]
    return path.name, run.records(), [(path / name).read_bytes() for name in names]


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("num_workers", "settings"),
    [
        (1, {}),
        (2, {}),
        # Vectors: a step's loss is of all its texts, on both workers and in many micro-batches.
        (2, {"task": "embedding", "options__kind": "labels", "max_tokens": 48}),
    ],
)
def test_killed_wherever_it_is_it_learns_the_same_bits(make_run, num_workers, settings):
    reference = make_run("reference", cluster__num_workers=num_workers, **settings)
    printed = reference.finish(seconds=600)
    assert f"finished     {STEPS} steps" in printed
    run = make_run("troubled", cluster__num_workers=num_workers, **settings)
    choose = random.Random(num_workers)
    driver = run.start()
    for moment in ("worker", "worker in write", "driver", "worker", "driver in write"):
        driver.until_step(run.step() + choose.randint(20, 50), 300)
        worker = writer = writer_of(run)
        if moment.endswith("in write"):
            stop_inside_a_checkpoint_write(driver, worker)
        elif moment == "worker" and (other := rank_one_beside(worker)):
            worker = choose.choice([worker, other])
        if moment.startswith("driver"):
            driver.kill()
            driver = run.start()
        else:
            worker.kill()
        driver.until(lambda gone=writer: find_writer(run) not in (None, gone), 300, pause=0.3)
    assert driver.wait(600) == 0, driver.output()
    assert "resuming from step" in driver.output()
    assert left(run) == left(reference)
    report = verify_exactly_once(run.folder)
    assert report.correct and report.num_metrics > 4 * STEPS, report


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_two_workers_become_one(make_run, tmp_path):
    dropout = {"dropout.hidden_dropout_prob": 0.0, "dropout.attention_probs_dropout_prob": 0.0}
    two = make_run("two", cluster__num_workers=2, **dropout)
    driver = two.start()
    driver.until_step(100)
    driver.process.send_signal(signal.SIGTERM)
    assert driver.wait() == 130, driver.output()
    first = two.step()
    one = make_run("two", tmp_path / "one", cluster__num_workers=1, **dropout)
    shutil.copytree(two.folder, one.folder)
    for run in (two, one):
        assert f"resuming from step {first}" in run.finish()
    losses = [
        {step: each["train/loss"] for step, each in run.records() if "train/loss" in each}
        for run in (one, two)
    ]
    assert losses[0].keys() == losses[1].keys() == set(range(1, STEPS + 1))
    worst = max(abs(losses[0][step] - losses[1][step]) for step in range(first + 1, first + 21))
    print(f"20 steps after two workers became one, losses differ by {worst:.2g} at most")
    assert worst < 1e-5
    assert losses[0] != losses[1]  # it was another number of workers


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_jobs_share_workers_and_a_death_in_the_second_changes_no_bit(make_run, tmp_path):
    different = [{}, {"seed": 5, "batch_size": 6}, {"optimizer.name": "lamb"}]
    jobs, alone = (
        [make_run(f"{kind}-{number}", **each) for number, each in enumerate(different)]
        for kind in ("shared", "alone")
    )
    group = FineTunings(jobs[0].storage, "group", tmp_path, 0, {}, jobs[0].environment, jobs)
    driver = group.start()
    driver.until(lambda: jobs[1].step() >= 100, 300)
    trained, _ = newest_checkpoint(jobs[0].checkpoints)
    manifest = trained / "manifest.json"
    assert trained.name == f"step-{STEPS:08d}"
    written = manifest.stat().st_mtime_ns
    writer = writer_of(jobs[1])
    writer.kill()
    driver.until(lambda: find_writer(jobs[1]) not in (None, writer), 300, pause=0.1)
    driver.until(lambda: jobs[2].step() >= 50, 300)
    driver.process.send_signal(signal.SIGTERM)
    assert driver.wait() == 130, driver.output()
    output = driver.output()
    assert "2 of 3 shared-1  resuming from step" in output and "stopped after step" in output
    assert "1 of 3 shared-0  resuming" not in output, "it was passed over"
    assert manifest.stat().st_mtime_ns == written
    output = group.finish()
    assert "3 of 3 shared-2  resuming from step" in output
    assert "step 1/" not in output, "only the last was left"
    for job, single in zip(jobs, alone, strict=True):
        single.finish()
        assert left(job) == left(single), job.name
        assert verify_exactly_once(job.folder).correct
        assert (job.folder / "summary.txt").exists()


@pytest.mark.slow
def test_a_finished_run_is_registered_and_measured_when_it_is_asked_later(tmp_path, capsys):
    write_task(tmp_path / "data")
    write_encoder(tmp_path / "encoder")
    given = arguments(tmp_path, epochs=1)
    with opened_job(parse(given), open_storage(str(tmp_path))) as job:
        made = job.worker_job()
        worker = StoppingWorker(0, 1, torch.device("cpu"), Channel())
        TrainingRun(made.open_parts(worker, made.run_folder), worker, made.run_folder).train()

    def printed(*more):
        assert main([*given, *more]) == 0
        return capsys.readouterr().out

    assert "registered" not in printed()
    assert "registered   models:/cats/1" in printed("--register", "cats")
    assert "registered   models:/cats/1" in printed()
    file = tmp_path / "test.tsv"
    test = str(file)
    file.write_text((tmp_path / "data" / "dev.tsv").read_text())
    assert re.search(r"^test +40 examples", printed("--test", test), re.MULTILINE)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-1]))
    assert re.search(r"^test +39 examples", printed("--test", test), re.MULTILINE), "of today"
    file.write_text("".join(lines))
    printed("--test", test)
    weights = (job.folder.model / "model.safetensors").stat().st_mtime_ns
    assert re.search(r"^test +40 examples", printed("--test", test), re.MULTILINE)
    printed("--register", "cats")
    assert (job.folder.model / "model.safetensors").stat().st_mtime_ns == weights, "nothing is done"
    assert "registered   models:/dogs/1" in printed("--register", "dogs")
