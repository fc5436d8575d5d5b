"""A finished run is made again by the command and compared."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from finetuning_runs import (
    arguments,
    finetune_here,
    write_encoder,
    write_tagged,
    write_task,
)
from pretraining_runs import Run, train_here, write_corpus
from recorded_runs import finish_finetuning, finish_pretraining
from registered_models import copy_store

from bert_core.errors import UserError
from workflows.finetune import parse
from workflows.pretraining.settings import PretrainSettings
from workflows.reproduce import ReproduceSettings, main, settings_again
from workflows.reproduction.recorded_run import RecordedRun
from workflows.reproduction.run_origin import CODE, CodeState, read_code
from workflows.runs.mlflow_run import open_client
from workflows.runs.tracker import STATE_NAME, Tracker, read_json, summarize_tracking
from workflows.settings import parse_command_line


@pytest.fixture(scope="module")
def storage(tmp_path_factory, store_template):
    """A fine-tuning run that has finished, under the name cats."""
    storage = tmp_path_factory.mktemp("storage")
    copy_store(store_template, storage)
    write_task(storage / "data")
    write_encoder(storage / "encoder")
    finish_finetuning(storage, name="cats")
    return storage


@pytest.fixture
def reproduce(storage, capsys):
    """Calls the command in this process: exit code, output, errors."""

    def call(run, *options, code=0):
        given = [run, "--storage", str(storage), *map(str, options)]
        assert main(given) == code
        captured = capsys.readouterr()
        return captured.out if code in (0, 3) else (captured.out, captured.err)

    return call


def finished(tracker, *_):
    return replace(summarize_tracking(tracker._run_folder), unsent_records=0)


@pytest.fixture
def unsent(monkeypatch):
    """Runs are described in their folders; no process is started that sends them to MLflow."""
    monkeypatch.setattr(Tracker, "revive", lambda _: None)
    monkeypatch.setattr(Tracker, "finish", finished)


def refused(reproduce, *given):
    """The one line with which the command refuses."""
    _, error = reproduce(*given, code=2)
    (line,) = error.splitlines()
    return line


def test_a_fine_tuning_run_comes_out_again_to_the_bit(storage, reproduce):
    finetune_here(storage, name="cats-again")
    printed = reproduce("cats")
    for part in ("data     the same", "encoder  the same", "code     the same in all"):
        assert part in printed
    assert "the same to the bit: 162 figures; the weights too" in printed
    assert any(line.split()[0] == "dev/loss" and line.split()[-1] == "0" for line in lines(printed))
    assert any(line.startswith("weights") and line.endswith("the same") for line in lines(printed))
    again = reproduce("cats")  # finished: it only compares
    assert lines(again)[-1] == lines(printed)[-1]
    store = open_client(f"sqlite:///{storage}/mlflow/mlflow.db")
    experiment = store.get_experiment_by_name("fine-tuning").experiment_id
    names = [run.info.run_name for run in store.search_runs([experiment])]
    assert sorted(names) == ["cats", "cats-again"] and not store.search_registered_models()


def lines(printed):
    return [line for line in printed.splitlines() if line]


@pytest.mark.slow
def test_other_figures_are_told_with_the_first_step_and_the_largest_difference(
    storage, reproduce, unsent
):
    finetune_here(storage, name="other", optimizer__peak_learning_rate=3.0001e-3)
    printed = reproduce("cats", "--name", "other", code=3)
    verdict = lines(printed)[-1]
    assert "of 162 figures differ, the first in step 1 (train/learning_rate), most " in verdict
    assert any(line.startswith("weights") and line.endswith("another") for line in lines(printed))
    assert "within the tolerance of 1" in reproduce("cats", "--name", "other", "--tolerance", 1)


@pytest.mark.slow
def test_a_run_that_mlflow_alone_knows(storage, reproduce, unsent):
    run_id = read_json(storage / "runs" / "cats" / STATE_NAME)["run_id"]
    finetune_here(storage, name="known")
    folder = storage / "runs" / "cats"
    assert "the same to the bit" in reproduce(run_id, "--name", "known")  # its folder is here
    hidden = folder.rename(storage / "hidden")
    try:
        assert "cannot locate the data data: cats (pass --data)" in refused(reproduce, run_id)
        given = (run_id, "--name", "known", "--data", storage / "data")
        assert "cannot locate the encoder encoder" in refused(reproduce, *given)
        printed = reproduce(*given, "--model", storage / "encoder")
        assert "the same to the bit: 162 figures; the weights too" in printed
        unknown = refused(reproduce, "0" * 32)
    finally:
        hidden.rename(folder)
    assert "no such run at MLflow" in unknown


@pytest.mark.slow
def test_other_data_and_another_encoder_are_refused_with_the_difference(
    storage, reproduce, tmp_path
):
    data = write_task(tmp_path / "data", train=89)
    line = refused(reproduce, "cats", "--data", data)
    assert "error: data differ" in line and "splits.train.examples: 90 -> 89" in line
    encoder = write_encoder(tmp_path / "encoder", layers=2)
    line = refused(reproduce, "cats", "--model", encoder)
    assert "error: encoder differs" in line and "it was encoder" in line


@pytest.mark.slow
def test_other_code_is_refused_with_its_files_unless_that_is_said(storage, reproduce, unsent):
    folder = shutil.copytree(storage / "runs" / "cats", storage / "runs" / "older")
    states = json.loads((folder / "artifacts" / CODE).read_text())
    states[0]["files"]["bert_core/training/loop.py"] = "0" * 64
    states[0]["files"]["workflows/demo.py"] = "0" * 64  # which training does not read
    (folder / "artifacts" / CODE).write_text(json.dumps(states))
    line = refused(reproduce, "older")
    assert "error: code differs in 1 of the " in line and "bert_core/training/loop.py;" in line
    assert "--despite code" in line and not (storage / "runs" / "older-again").exists()
    finetune_here(storage, name="older-again")
    printed = reproduce("older", "--despite", "code")
    assert "continuing despite that" in printed and "the same to the bit" in printed


def test_what_is_no_finished_run_is_refused(storage, reproduce):
    assert "no such run, did you mean cats: cat (" in refused(reproduce, "cat")
    assert "this name is the recorded run's: --name cats" in refused(
        reproduce, "cats", "--name", "cats"
    )
    folder = shutil.copytree(storage / "runs" / "cats", storage / "runs" / "young")
    shutil.rmtree(folder / "checkpoints")
    assert "run young has not finished" in refused(reproduce, "young")
    shutil.rmtree(folder)  # another folder of the same run at MLflow


@pytest.mark.slow
def test_a_tagger_over_features(storage, reproduce, unsent):
    write_tagged(storage / "tagged")
    write_encoder(storage / "deep", layers=4)
    settings = {
        "task": "ner",
        "approach": "features",
        "data": storage / "tagged",
        "model": storage / "deep",
        "tagger.lstm_size": 8,
        "epochs": 1,
    }
    finish_finetuning(storage, name="tags", **settings)
    finetune_here(storage, name="tags-again", **settings)
    printed = reproduce("tags")
    assert "the same to the bit" in printed


@pytest.mark.slow
def test_pre_training_comes_out_again_to_the_bit(storage, reproduce, unsent):
    shards = write_corpus(storage / "corpus", num_documents=80)
    run = Run(storage, "encoder-run", shards, 4)
    finish_pretraining(run)
    train_here(Run(storage, "encoder-run-again", shards, 4))
    printed = reproduce("encoder-run")
    assert "data     the same" in printed and "code     the same" in printed
    assert "heldout/masked_token_loss" in printed and "the same to the bit" in printed
    moved = shards.rename(storage / "moved")
    assert "cannot locate the token shards: encoder-run (pass --shards)" in refused(
        reproduce, "encoder-run"
    )
    assert "the same to the bit" in reproduce("encoder-run", "--shards", moved)
    other = write_corpus(storage / "others", num_documents=80, seed=8)
    line = refused(reproduce, "encoder-run", "--shards", other)
    assert "error: data differ" in line and "splits.train.tokens: " in line


@pytest.mark.slow
@pytest.mark.ray
def test_by_real_workers_and_after_a_stop(storage, reproduce, unsent, ray_cluster, monkeypatch):
    finetune_here(storage, stop_after=9, name="stopped")
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster)
    printed = reproduce("cats", "--name", "stopped")
    assert "resuming from step 9" in printed and "the same to the bit: 162 figures" in printed
    (code,) = read_code(storage / "runs" / "stopped" / "artifacts" / CODE)
    assert code == CodeState.now(), "noted by the driver, as the run was begun here"


OUTCOME = {"device": "cpu", "num_threads": 3, "world_size": 2}


def recorded(settings, **changes):
    places = settings.model_dump(mode="json")
    run = RecordedRun("run", settings.portable(), places, {}, {}, [], OUTCOME, {})
    return replace(run, **changes)


def wanted(*options):
    return parse_command_line(ReproduceSettings, ["run", *options])


@pytest.fixture
def finetuning(tmp_path):
    write_task(tmp_path / "data")
    write_encoder(tmp_path / "encoder")
    return parse([*arguments(tmp_path), "--register", "cats"])


@pytest.fixture
def pretraining(tmp_path):
    (tmp_path / "shards").mkdir()
    return PretrainSettings(shards=tmp_path / "shards", name="run")


def test_the_settings_are_those_of_the_run(finetuning, pretraining, tmp_path):
    for settings in (finetuning, pretraining):
        again = settings_again(recorded(settings), wanted("--storage", str(tmp_path)))
        assert type(again) is type(settings) and again.recipe() == settings.recipe()
        assert again.name == "run-again" and again.storage == str(tmp_path) and not again.fresh
        assert again.tracking.register_as is None, "nothing is registered"
        assert again.tracking.experiment == settings.tracking.experiment
        assert (again.cluster.num_workers, again.cluster.threads_per_worker) == (2, 3)
        assert not again.cluster.use_gpu
    assert settings_again(recorded(pretraining), wanted()).shards == tmp_path / "shards"
    # As once was possible; the text was not read.
    both = pretraining.model_copy(update={"text": ["docs://numpy"]})
    assert settings_again(recorded(both), wanted()).text == ["docs://"]


def test_what_is_given_comes_first(finetuning, pretraining, tmp_path):
    run = replace(recorded(finetuning), outcome=OUTCOME | {"device": "cuda"})
    assert settings_again(run, wanted()).cluster.use_gpu
    options = ["--name", "b", "--data", "docs://", "--model", "models:/a/1", "--fresh"]
    options += ["--num_workers", "1", "--threads_per_worker", "4", "--no-use_gpu"]
    again = settings_again(run, wanted(*options))
    assert (again.name, again.data, again.model, again.fresh) == ("b", "docs://", "models:/a/1", 1)
    assert (again.cluster.num_workers, again.cluster.threads_per_worker) == (1, 4)
    assert not again.cluster.use_gpu
    again = settings_again(recorded(pretraining), wanted("--shards", str(tmp_path)))
    assert again.shards == tmp_path


def test_files_of_single_splits_are_read_again(finetuning, tmp_path):
    files = {name: str(tmp_path / f"{name}.csv") for name in ("train", "dev", "exclude")}
    for file in files.values():
        Path(file).touch()
    run = recorded(finetuning.model_copy(update=files | {"data": ""}))
    again = settings_again(run, wanted())
    assert {name: getattr(again, name) for name in files} == files and not again.data
    elsewhere = settings_again(run, wanted("--data", "docs://"))
    assert (elsewhere.data, elsewhere.train, elsewhere.dev) == ("docs://", None, None)
    assert elsewhere.exclude == files["exclude"]
    beside = recorded(finetuning.model_copy(update={"dev": "hf://a/b"}))
    assert settings_again(beside, wanted()).dev == "hf://a/b"
    assert settings_again(beside, wanted()).data == finetuning.data
    Path(files["exclude"]).unlink()
    with pytest.raises(UserError, match="cannot locate what --exclude named"):
        settings_again(run, wanted("--data", "docs://"))


def test_an_alias_may_have_moved_so_the_version_counts(finetuning):
    run = recorded(finetuning)
    by_alias = replace(run, places=run.places | {"model": "models:/bert@champion"})
    assert settings_again(by_alias, wanted()).model == "models:/bert@champion"
    versioned = replace(by_alias, tags={"encoder.version": "models:/bert/3"})
    assert settings_again(versioned, wanted()).model == "models:/bert/3"
    by_name = replace(run, places=run.places | {"model": "mini-1a2b"})
    assert settings_again(by_name, wanted()).model == "mini-1a2b"
    gone = replace(versioned, places=run.places | {"model": "/nowhere/encoder"})
    assert settings_again(gone, wanted()).model == "models:/bert/3"


def test_a_place_that_is_not_known_is_asked_for_in_one_line(finetuning, pretraining):
    run = recorded(finetuning, data={"source": "MRPC"}, tags={"encoder.name": "minilm"})
    with pytest.raises(UserError, match=r"cannot locate the data MRPC: run \(pass --data\)"):
        settings_again(replace(run, places={}), wanted())
    with pytest.raises(UserError, match=r"cannot locate the encoder minilm: run \(pass --model\)"):
        settings_again(replace(run, places={}), wanted("--data", "docs://"))
    gone = replace(run, places=run.places | {"data": "/nowhere"})
    with pytest.raises(UserError, match="pass --data"):
        settings_again(gone, wanted())
    with pytest.raises(UserError, match=r"cannot locate the token shards: run \(pass --shards\)"):
        settings_again(replace(recorded(pretraining), places={}), wanted())


def test_text_is_prepared_where_it_was(pretraining):
    run = recorded(pretraining.model_copy(update={"shards": None, "text": ["docs://numpy"]}))
    assert settings_again(run, wanted()).shards is None
    at_mlflow = replace(run, places={}, data={"prepared_with": {"text": ["docs://numpy"]}})
    assert settings_again(at_mlflow, wanted()).shards is None
    other = replace(run, places={}, data={"prepared_with": {"text": ["…/wiki"]}})
    with pytest.raises(UserError, match="pass --shards"):
        settings_again(other, wanted())


def test_the_run_itself_is_no_second_one(finetuning):
    with pytest.raises(UserError, match="this name is the recorded run's: --name run"):
        settings_again(recorded(finetuning), wanted("--name", "run"))
