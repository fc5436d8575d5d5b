import pytest
import yaml
from pretraining_runs import write_corpus

from bert_core.errors import UserError
from bert_core.text.rows.settings import RowSettings
from bert_core.text.shards import open_shards
from workflows.pretrain_settings import PretrainSettings
from workflows.pretraining_setup import (
    announce,
    flattened,
    portable,
    refuse_a_full_disk,
    refuse_unfit_shards,
    tracked_run,
    write_settings,
)
from workflows.run_folder import RunFolder
from workflows.settings import parse_command_line
from workflows.tracker import without_machine_paths


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "corpus", num_documents=40)


def parse(*arguments):
    return parse_command_line(PretrainSettings, arguments)


def test_the_written_settings_repeat_the_run(tmp_path):
    settings = parse("--preset", "mini", "--seed", "7", "--cluster.num_workers", "[1,2]")
    folder = RunFolder(tmp_path)
    write_settings(settings, folder, tmp_path / "artifacts")
    again = parse("--preset", str(folder.settings))
    assert again.recipe() == settings.recipe()
    assert again.cluster == settings.cluster and again.checkpoint == settings.checkpoint
    assert (tmp_path / "artifacts" / "settings.yaml").read_text() == folder.settings.read_text()
    written = yaml.safe_load(folder.settings.read_text())
    assert not {"storage", "shards", "name", "fresh", "preset", "profile"} & written.keys()


def test_mlflow_is_told_everything_but_where_this_machine_keeps_it(tmp_path, corpus):
    settings = parse("--shards", str(corpus), "--tracking.experiment", "tests")
    shards, folder = open_shards(corpus), RunFolder(tmp_path)
    run = tracked_run(settings, tmp_path, folder, shards)
    assert run.tracking_uri == f"sqlite:///{tmp_path}/mlflow/mlflow.db"
    assert (run.experiment, run.params["preset"]) == ("tests", "quickstart")
    assert run.params["optimizer.peak_learning_rate"] == "0.002"
    assert run.dataset.sha256 == shards.data_hash == run.tags["data.sha256"]
    everything = [*run.params.values(), *run.tags.values(), run.dataset.source]
    assert not any(str(tmp_path) in text for text in everything)
    assert [without_machine_paths(text) for text in everything] == everything
    again = tracked_run(settings, tmp_path, folder, shards)
    assert again.run_key == run.run_key, "a restart is the same run to MLflow"


def test_a_disk_without_room_for_the_checkpoints_is_refused(tmp_path):
    small = parse("--model.size", "tiny")
    refuse_a_full_disk(small, RunFolder(tmp_path), 1000)
    large = parse("--preset", "large", "--checkpoint.keep", "100000")
    with pytest.raises(UserError, match=r"100002 checkpoints need [\d.]+ GiB.*--checkpoint.keep"):
        refuse_a_full_disk(large, RunFolder(tmp_path), 30_522)


def test_shards_that_cannot_train_are_refused(tmp_path, corpus):
    shards = open_shards(corpus)
    refuse_unfit_shards(shards, RowSettings())
    one = open_shards(write_corpus(tmp_path / "one", num_documents=5))
    with pytest.raises(UserError, match="1 documents in the heldout split, 2 are needed.*mlm"):
        refuse_unfit_shards(one, RowSettings())
    refuse_unfit_shards(one, RowSettings(objective="mlm"))
    tokenizer = corpus / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"lowercase": true', '"lowercase": false'))
    with pytest.raises(UserError, match="the tokenizer is not the one"):
        refuse_unfit_shards(shards, RowSettings())


def test_what_is_about_to_happen_is_said(tmp_path, corpus, capsys):
    announce(parse("--preset", "base"), RunFolder(tmp_path / "a"), open_shards(corpus))
    printed = capsys.readouterr().out
    assert "900,000 at 128, 100,000 at 512, 256 rows each" in printed
    assert "run      a" in printed and str(tmp_path) in printed and "35 documents" in printed


def test_settings_become_dotted_names():
    values = flattened({"a": 1, "b": {"c": None, "d": {"e": [1, 2]}}})
    assert values == {"a": "1", "b.c": "None", "b.d.e": "[1, 2]"}
    assert "tracking.uri" not in flattened(portable(PretrainSettings()))
