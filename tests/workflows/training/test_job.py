import pytest
import yaml
from pretraining_runs import write_corpus

from bert_core.errors import UserError
from bert_core.text.shards import open_shards
from workflows.pretraining.job import PretrainingJob
from workflows.pretraining.settings import PretrainSettings
from workflows.runs.folder import RunFolder
from workflows.runs.storage import open_storage
from workflows.runs.tracker import without_machine_paths
from workflows.settings import parse_command_line
from workflows.training.job import flattened, refuse_a_full_disk, tracked_run, write_settings


@pytest.fixture
def job(tmp_path):
    """Makes a run of settings, with a corpus to read."""
    shards = open_shards(write_corpus(tmp_path / "corpus", num_documents=40))

    def make(*arguments):
        settings = parse_command_line(PretrainSettings, arguments)
        return PretrainingJob(settings, open_storage(str(tmp_path)), RunFolder(tmp_path), shards)

    return make


def test_the_written_settings_repeat_the_run(tmp_path):
    def parse(*arguments):
        return parse_command_line(PretrainSettings, arguments)

    settings = parse("--preset", "mini", "--seed", "7", "--cluster.num_workers", "[1,2]")
    folder = RunFolder(tmp_path)
    write_settings(settings, folder, PretrainingJob.settings_comment)
    again = parse("--preset", str(folder.settings))
    assert again.recipe() == settings.recipe()
    assert again.cluster == settings.cluster and again.checkpoint == settings.checkpoint
    assert (tmp_path / "artifacts" / "settings.yaml").read_text() == folder.settings.read_text()
    written = yaml.safe_load(folder.settings.read_text())
    assert not {"storage", "shards", "name", "fresh", "preset", "profile"} & written.keys()


def test_what_a_profile_has_said_over_a_preset_is_written_and_tracked(tmp_path, job):
    pretraining = job("--preset", "base-fast", "--profile", "tpu-v6e-16")
    settings = pretraining.settings
    write_settings(settings, pretraining.folder, PretrainingJob.settings_comment)
    written = yaml.safe_load(pretraining.folder.settings.read_text())
    assert written["batch"]["packed"] is False and written["cluster"]["tpu"] == "v6e"
    again = parse_command_line(PretrainSettings, ["--preset", str(pretraining.folder.settings)])
    assert again.recipe() == settings.recipe()
    assert again.cluster.tpu_slice == settings.cluster.tpu_slice
    params = tracked_run(pretraining).params
    assert params["batch.packed"] == "False"
    assert (params["preset"], params["profile"]) == ("base-fast", "tpu-v6e-16")


def test_mlflow_is_told_everything_but_where_this_machine_keeps_it(tmp_path, job):
    pretraining = job("--shards", str(tmp_path / "corpus"), "--tracking.experiment", "tests")
    run = tracked_run(pretraining)
    assert run.tracking_uri == f"sqlite:///{tmp_path}/mlflow/mlflow.db"
    assert (run.experiment, run.params["preset"]) == ("tests", "quickstart")
    assert run.params["optimizer.peak_learning_rate"] == "0.002"
    assert run.dataset.sha256 == pretraining.shards.data_hash == run.tags["data.sha256"]
    everything = [*run.params.values(), *run.tags.values(), run.dataset.source]
    assert not any(str(tmp_path) in text for text in everything)
    assert [without_machine_paths(text) for text in everything] == everything
    assert tracked_run(pretraining).run_key == run.run_key, "a restart is the same run to MLflow"


def test_a_disk_without_room_for_the_checkpoints_is_refused(job):
    tiny = job("--model.size", "tiny")
    refuse_a_full_disk([tiny])
    large = job("--preset", "large", "--checkpoint.keep", "100000")
    with pytest.raises(UserError, match=r"100002 checkpoints need [\d.]+ GiB.*--checkpoint.keep"):
        refuse_a_full_disk([large])
    with pytest.raises(UserError, match="100007 checkpoints"):
        refuse_a_full_disk([tiny, large])


def test_settings_become_dotted_names():
    values = flattened({"a": 1, "b": {"c": None, "d": {"e": [1, 2]}}})
    assert values == {"a": "1", "b.c": "None", "b.d.e": "[1, 2]"}
    assert "tracking.uri" not in flattened(PretrainSettings().portable())
