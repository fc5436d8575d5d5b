import pytest
from finetuning_runs import write_encoder

from bert_core.errors import UserError
from workflows.model_location import locate_model, located_model
from workflows.runs.mlflow_run import create_store, open_client
from workflows.versions.registration import register_model_folder


def test_a_model_is_a_folder_the_name_of_a_run_or_a_version(tmp_path):
    folder = write_encoder(tmp_path / "runs" / "mine" / "model")
    store = f"sqlite:///{tmp_path}/mlflow.db"
    assert locate_model(str(folder), tmp_path, store) == folder
    assert locate_model("mine", tmp_path, store) == folder
    assert located_model("mine", tmp_path, store).version is None
    for wrong in ("mime", "runs/mime", "/nowhere"):
        with pytest.raises(UserError, match=f"no such model: {wrong} .*models:/NAME@ALIAS"):
            locate_model(wrong, tmp_path, store)
    create_store(store)
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
