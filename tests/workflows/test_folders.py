"""Folders that commands are given: where a model lies, and where output may be written."""

import json

import pytest
from finetuning_runs import write_encoder

from bert_core.errors import UserError
from workflows.model_location import locate_model, located_model
from workflows.output_folder import WorkKeptError, check_disk, is_finished, work_folder
from workflows.runs.mlflow_run import open_client
from workflows.versions.registration import register_model_folder


def test_a_model_is_a_folder_the_name_of_a_run_or_a_version(tmp_path, store_uri):
    folder, store = write_encoder(tmp_path / "runs" / "mine" / "model"), store_uri
    assert locate_model(str(folder), tmp_path, store) == folder
    assert locate_model("mine", tmp_path, store) == folder
    assert located_model("mine", tmp_path, store).version is None
    for wrong in ("mime", "runs/mime", "/nowhere"):
        with pytest.raises(UserError, match=f"no such model: {wrong} .*models:/NAME@ALIAS"):
            locate_model(wrong, tmp_path, store)
    run = open_client(store).create_run("0")
    version = register_model_folder(
        folder,
        name="cats",
        run_id=run.info.run_id,
        tracking_uri=store,
        card="",
        tags={},
        metrics={},
    )
    for uri in ("models:/cats@latest-trained", f"models:/cats/{version}"):
        found = locate_model(uri, tmp_path, store)
        saved, original = (each / "model.safetensors" for each in (found, folder))
        assert located_model(uri, tmp_path, store).version == f"models:/cats/{version}"
        assert found != folder and saved.read_bytes() == original.read_bytes()


PLAN = {"settings": {"size": 1}, "files_sha256": "0"}


def test_a_folder_is_new_then_finished(tmp_path):
    output = tmp_path / "a" / "out"
    assert not is_finished(output, PLAN, fresh=False)
    with work_folder(output, PLAN) as work:
        assert json.loads((work / "plan.json").read_bytes()) == PLAN
        assert not is_finished(output, PLAN, fresh=False)
        (output / "index.json").write_text("{}")
    assert is_finished(output, PLAN, fresh=False) and not work.exists()
    with pytest.raises(UserError, match=r"size: 1 -> 2.*--fresh"):
        is_finished(output, {"settings": {"size": 2}, "files_sha256": "0"}, fresh=False)
    with pytest.raises(UserError, match="files it is made of have changed"):
        is_finished(output, PLAN | {"files_sha256": "1"}, fresh=False)
    for number in (1, 2):
        assert not is_finished(output, PLAN, fresh=True)
        assert (tmp_path / "a" / f"out.old-{number}" / "index.json").is_file()
        with work_folder(output, PLAN):
            (output / "index.json").write_text("{}")


def test_what_stays_after_an_error(tmp_path):
    output = tmp_path / "out"
    for error, stays in [
        (UserError("a", "b", "c"), False),
        (WorkKeptError("a", "b", "c"), True),
        (KeyboardInterrupt(), True),
    ]:
        with pytest.raises(type(error)), work_folder(output, PLAN) as work:
            (work / "half").write_text("x")
            raise error
        assert output.exists() == stays == (work / "half").exists()


def test_a_folder_that_was_there_stays(tmp_path):
    with pytest.raises(UserError), work_folder(tmp_path, PLAN):
        raise UserError("a", "b", "c")
    assert list(tmp_path.iterdir()) == []


def test_one_process_at_a_time(tmp_path):
    with (
        work_folder(tmp_path / "out", PLAN) as work,
        pytest.raises(UserError, match="another process"),
        work_folder(tmp_path / "out", PLAN),
    ):
        raise AssertionError("never here")
    assert not work.exists()


def test_other_things_are_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(UserError, match="other files"):
        is_finished(tmp_path, PLAN, fresh=True)
    with pytest.raises(UserError, match="is a file"):
        is_finished(tmp_path / "mine.txt", PLAN, fresh=False)
    with pytest.raises(UserError, match="not a folder"):
        check_disk(tmp_path / "mine.txt" / "out", 1)


def test_free_disk_is_checked(tmp_path):
    check_disk(tmp_path / "deep" / "out", 1000)
    with pytest.raises(UserError, match="GB of free disk, about 1,000,000"):
        check_disk(tmp_path / "deep" / "out", 1e15)
