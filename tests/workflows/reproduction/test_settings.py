from dataclasses import replace

import pytest
from finetuning_runs import arguments, write_encoder, write_task

from bert_core.errors import UserError
from workflows.finetune import parse
from workflows.pretraining.settings import PretrainSettings
from workflows.reproduction.recorded_run import RecordedRun
from workflows.reproduction.settings import ReproduceSettings, settings_again
from workflows.settings import parse_command_line

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
    with pytest.raises(UserError, match=r"where the data MRPC lie: run \(give --data\)"):
        settings_again(replace(run, places={}), wanted())
    with pytest.raises(UserError, match=r"where the encoder minilm lie: run \(give --model\)"):
        settings_again(replace(run, places={}), wanted("--data", "docs://"))
    gone = replace(run, places=run.places | {"data": "/nowhere"})
    with pytest.raises(UserError, match="give --data"):
        settings_again(gone, wanted())
    with pytest.raises(UserError, match=r"where the token shards lie: run \(give --shards\)"):
        settings_again(replace(recorded(pretraining), places={}), wanted())


def test_text_is_prepared_where_it_was(pretraining):
    run = recorded(pretraining.model_copy(update={"shards": None, "text": ["docs://numpy"]}))
    assert settings_again(run, wanted()).shards is None
    at_mlflow = replace(run, places={}, data={"prepared_with": {"text": ["docs://numpy"]}})
    assert settings_again(at_mlflow, wanted()).shards is None
    other = replace(run, places={}, data={"prepared_with": {"text": ["…/wiki"]}})
    with pytest.raises(UserError, match="give --shards"):
        settings_again(other, wanted())


def test_the_run_itself_is_no_second_one(finetuning):
    with pytest.raises(UserError, match="that is the run itself: --name run"):
        settings_again(recorded(finetuning), wanted("--name", "run"))
