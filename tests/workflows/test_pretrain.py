"""The pre-training command: killed, stopped, submitted as a job; and refused in one line."""

import os
import random
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from pretraining_runs import (
    REPOSITORY,
    Run,
    committed_checkpoints,
    find_writer,
    stop_inside_a_checkpoint_write,
    train_here,
    unfinished_checkpoints,
    write_corpus,
    writer_of,
)

from bert_core.text.shards import open_shards
from bert_core.tokenizer import save_tokenizer
from bert_core.tokenizer_training import train_wordpiece
from workflows.pretrain import main
from workflows.pretraining.settings import PretrainSettings
from workflows.runs.folder import open_run
from workflows.runs.mlflow_run import open_client
from workflows.runs.sender import verify_exactly_once
from workflows.runs.tracker import SPECIFICATION_NAME, STATE_NAME, read_json
from workflows.settings import parse_command_line

STEPS = 400
EVERY = 40
SETTINGS = {"checkpoint.every_steps": EVERY, "evaluation.every_steps": 200}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def submit(run, ray_address):
    """`ray job submit --working-dir . -- python workflows/pretrain.py …`; returns its output."""
    command = ["ray", "job", "submit", "--working-dir", ".", "--", "python"]
    for _ in range(20):
        done = subprocess.run(
            [*command, "workflows/pretrain.py", *run.arguments()],
            cwd=REPOSITORY,
            env=os.environ | {"RAY_ADDRESS": ray_address},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        if "No available agent to submit job" not in done.stdout:
            break
        time.sleep(5)  # a cluster takes jobs some time after it has started
    assert done.returncode == 0, done.stdout
    return done.stdout


@dataclass
class Story:
    """A run whose worker was killed inside a checkpoint write, then stopped, then submitted."""

    run: Run
    unfinished: str
    stop_seconds: float
    stopped_at: int
    stopped: str
    job: str


@pytest.fixture(scope="module")
def story(tmp_path_factory, corpus, ray_cluster, store_uri):
    choose = random.Random(2018)
    settings = SETTINGS | {"tracking.uri": store_uri}
    environment = {"RAY_ADDRESS": ray_cluster}
    run = Run(tmp_path_factory.mktemp("troubled"), "troubled", corpus, STEPS, settings, environment)
    driver = run.start()
    driver.until_step(choose.randint(50, 90))
    writer = writer_of(run)
    unfinished = stop_inside_a_checkpoint_write(driver, writer)
    writer.kill()
    assert unfinished in unfinished_checkpoints(run)
    driver.until(lambda: find_writer(run) not in (None, writer))

    driver.until_step(run.step() + choose.randint(10, 50))
    begin, before = time.monotonic(), committed_checkpoints(run)[-1]
    driver.process.send_signal(signal.SIGTERM)
    driver.until(lambda: committed_checkpoints(run)[-1] != before, 60)
    stop_seconds = time.monotonic() - begin
    assert driver.wait() == 130, driver.output()
    stopped_at = run.step()
    job = submit(run, ray_cluster)
    return Story(run, unfinished, stop_seconds, stopped_at, driver.output(), job)


@pytest.mark.ray
def test_killed_and_stopped_it_learns_the_same_bits(story, corpus, tmp_path):
    reference = Run(tmp_path, "reference", corpus, STEPS, SETTINGS)
    train_here(reference)
    assert story.run.records() == reference.records()
    for name in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = (
            each.checkpoints / f"step-{STEPS:08d}" / name for each in (story.run, reference)
        )
        assert ours.read_bytes() == theirs.read_bytes(), name
    assert not list(unfinished_checkpoints(story.run))


@pytest.mark.ray
def test_it_resumes_from_the_newest_whole_checkpoint(story):
    before = int(story.unfinished.split(".")[0].removeprefix("step-")) - EVERY
    assert f"resuming from step {before}" in story.stopped
    assert story.stop_seconds < 10, "from SIGTERM to the checkpoint"
    assert f"stopped after step {story.stopped_at}; the same command" in story.stopped
    assert f"resuming from step {story.stopped_at}" in story.job


@pytest.mark.ray
def test_mlflow_has_every_step_once_and_the_version(story):
    assert f"finished     {STEPS} steps" in story.job and "models:/bert/1" in story.job
    report = verify_exactly_once(story.run.folder)
    assert report.correct and report.num_metrics > 7 * STEPS, report
    client = open_client(read_json(story.run.folder / SPECIFICATION_NAME)["tracking_uri"])
    (version,) = client.search_model_versions("name = 'bert'")
    run_id = read_json(story.run.folder / STATE_NAME)["run_id"]
    assert (int(version.version), version.run_id) == (1, run_id)
    assert client.get_run(run_id).info.status == "FINISHED"


def refused(capsys, storage, *arguments):
    """The one line that the command gives; nothing of a run may stand in the storage then."""
    before = contents(storage)
    code = main(["--storage", str(storage), *map(str, arguments)])
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2 and line.startswith("error: "), line
    assert contents(storage) == before
    return line


def contents(storage):
    """The files below a folder and what they hold; empty lock files may stay behind."""
    if not storage.is_dir():
        return None if not storage.exists() else storage.read_bytes()
    files = (path for path in sorted(storage.rglob("*")) if path.is_file())
    return {path: path.read_bytes() for path in files if path.suffix != ".lock"} or None


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--batch.global_batchsize", "4"], ["did you mean batch.global_batch_size"]),
        (["--warmup_steps=4"], ["--warmup_steps", "did you mean optimizer.warmup_steps"]),
        (["--preset", "bsae"], ["unknown preset, did you mean base", "--preset bsae"]),
        (["--preset", "no/such.yaml"], ["cannot be read", "no/such.yaml", "No such file"]),
        (["--profile", "gpus"], ["unknown profile, did you mean gpu", "local"]),
        (["--profile", "tpu-v5e16"], ["unknown profile, did you mean tpu-v5e-16", "tpu-v6e-16"]),
        (
            ["--profile", "tpu-v5e-16", "--cluster.num_workers", "3"],
            ["v5e 4x4 has 4 hosts", "3 workers do not fit", "set --cluster.num_workers 4"],
        ),
        (
            ["--profile", "tpu-v4-16", "--cluster.topology", "2x2x3"],
            ["v4 has no topology 2x2x3, did you mean 2x2x4; it has 2x2x1, 2x2x2, 2x2x4"],
        ),
        (
            ["--preset", "base-fast", "--profile", "tpu-v6e-16", "--batch.packed", "true"],
            ["packed rows do not run on TPU: set --batch.packed false"],
        ),
        (["--seed", "many"], ["--seed", "valid integer"]),
        (["--name", "../../elsewhere"], ["--name"]),
        (["--storage", "file:///proc/runs"], ["file:///proc/runs", "choose another --storage"]),
        (
            ["--phases", '[{"sequence_length": 256, "steps": 5}]'],
            ["256 tokens", "raise --model.max_position_embeddings from 128"],
        ),
        (
            ["--cluster.num_workers", "3", "--batch.global_batch_size", "2"],
            ["3 workers cannot share 2 rows", "lower --cluster.num_workers"],
        ),
        (
            ["--profile", "gpu", "--batch.packed", "true"]
            + ["--model.attention_probs_dropout_prob", "0.1"],
            ["no attention dropout on GPU", "--model.attention_probs_dropout_prob 0"],
        ),
        (
            ["--batch.packed", "true", "--cluster.use_gpu", "true"]
            + ["--model.attention_probs_dropout_prob", "0"],
            ["16 bits", "--precision bfloat16"],
        ),
    ],
)
def test_a_wrong_setting_gets_one_line(tmp_path, capsys, corpus, arguments, parts):
    line = refused(capsys, tmp_path / "storage", "--shards", corpus, *arguments)
    for part in parts:
        assert part in line


def test_wrong_shards_get_one_line(tmp_path, capsys, corpus):
    storage = tmp_path / "storage"
    line = refused(capsys, storage, "--shards", tmp_path / "nowhere")
    assert "no token shards here" in line and "workflows/prepare.py" in line

    broken = Path(shutil.copytree(corpus, tmp_path / "broken"))
    (broken / "index.json").write_text('{"version": 1, "spl')
    assert "damaged index" in refused(capsys, storage, "--shards", broken)
    shutil.copy(corpus / "index.json", broken)
    with (broken / "train-00001.tokens.npy").open("rb+") as file:
        file.truncate(1000)
    line = refused(capsys, storage, "--shards", broken)
    assert "train-00001.tokens.npy" in line and "1000 bytes" in line

    other = Path(shutil.copytree(corpus, tmp_path / "other"))
    tokenizer = train_wordpiece(["another language altogether"] * 9, 60, lowercase=True)
    save_tokenizer(tokenizer, other / "tokenizer.json")
    line = refused(capsys, storage, "--shards", other)
    assert "tokenizer is not the one" in line and "other/tokenizer.json" in line

    one = write_corpus(tmp_path / "one", num_documents=3)  # one of them held out, after all
    line = refused(capsys, storage, "--shards", one)
    assert "documents in the heldout split" in line and "four documents or more" in line


def test_storage_that_cannot_be_written_gets_one_line(tmp_path, capsys, corpus):
    (tmp_path / "file").write_text("not a folder")
    line = refused(capsys, tmp_path / "file", "--shards", corpus)
    assert "cannot write to the storage" in line and "another --storage" in line


def test_another_recipe_or_a_second_process_gets_one_line(tmp_path, capsys, corpus):
    run = Run(tmp_path, "taken", corpus, steps=5)
    settings = parse_command_line(PretrainSettings, run.arguments())
    recipe = settings.recipe() | {"data": open_shards(corpus).data_hash}
    with open_run(tmp_path, "taken", recipe, fresh=False):
        line = refused(capsys, tmp_path, *run.arguments())
        assert "another process is training this run: taken" in line
    run.settings = {"seed": 5, "optimizer.peak_learning_rate": 0.5}
    line = refused(capsys, tmp_path, *run.arguments())
    assert "optimizer.peak_learning_rate: 0.002 -> 0.5; seed: 0 -> 5" in line
    assert "--fresh" in line


def test_a_packed_run_does_not_go_on_padded_on_tpu(tmp_path, capsys, corpus):
    run = Run(tmp_path, "moved", corpus, steps=5)
    run.settings = {"preset": "base-fast", "model.attention_probs_dropout_prob": 0.0}
    settings = parse_command_line(PretrainSettings, [*run.arguments(), "--profile", "gpu"])
    recipe = settings.recipe() | {"data": open_shards(corpus).data_hash}
    with open_run(tmp_path, "moved", recipe, fresh=False):
        pass
    line = refused(capsys, tmp_path, *run.arguments(), "--profile", "tpu-v6e-16")
    assert "run moved was made with other settings or data: batch.bins: " in line
    assert "; batch.packed: True -> False (give another --name, or --fresh" in line


def test_a_mistake_leaves_the_program_with_code_2(tmp_path, corpus):
    run = Run(tmp_path, "mistaken", tmp_path / "nowhere", steps=5)
    driver = run.start()
    assert driver.wait() == 2
    *_, line = driver.output().splitlines()
    assert line.startswith("error: no token shards here")
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_sigterm_after_the_last_step_ends_the_tracker_too(tmp_path, corpus, store_uri, capsys):
    """The export and registration of a run that has been trained: no Ray is needed for it."""
    run = Run(tmp_path, "trained", corpus, steps=5, settings={"tracking.uri": store_uri})
    train_here(run)
    driver = run.start()

    def trackers():
        for child in psutil.Process(driver.process.pid).children():
            with suppress(psutil.Error):  # some live for moments only, such as git
                if "workflows.runs.sender" in child.cmdline():
                    yield child

    driver.until(lambda: next(trackers(), None))
    tracker = next(trackers())
    driver.process.send_signal(signal.SIGTERM)
    assert driver.wait() == 130, driver.output()
    *_, line = driver.output().splitlines()
    assert line == "stopped; the same command goes on" and "Traceback" not in driver.output()
    assert not tracker.is_running()
    assert not (run.folder / "summary.txt").exists()
    assert main(run.arguments()) == 0
    assert "finished     5 steps" in capsys.readouterr().out
