"""Model folders become versions in MLflow's registry, once, with all that is known of them."""

import shutil
import sqlite3
from pathlib import Path

import pytest
import torch

from bert_core.config import ModelConfig
from bert_core.errors import UserError
from bert_core.model.bert import Bert
from bert_core.model_folder import save_model_folder
from bert_core.tokenizer_training import train_wordpiece
from serving.registry import sqlite_path, sqlite_uri
from workflows.runs.mlflow_run import open_client
from workflows.versions.model_card import model_card
from workflows.versions.registration import CONTENT_TAG, refuse_unregistrable, register_model_folder

PROJECT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def run_id(store_uri):
    client = open_client(store_uri)
    location = (Path(store_uri.removeprefix("sqlite:///")).parent / "artifacts").as_uri()
    return client.create_run(client.create_experiment("pretraining", location)).info.run_id


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home") / "model"
    return save_model(folder, seed=0)


def save_model(folder, seed):
    torch.manual_seed(seed)
    tokenizer = train_wordpiece(["the cat sat on the mat with a dog"] * 9, 60, lowercase=True)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = ModelConfig(vocab_size=tokenizer.get_vocab_size(), intermediate_size=64, **sizes)
    save_model_folder(folder, Bert.for_pretraining(config), tokenizer, "# A model")
    return folder


def register(folder, store_uri, run_id, **changes):
    given = {
        "name": "encoder",
        "run_id": run_id,
        "tracking_uri": store_uri,
        "card": f"# Encoder\n\nfrom {Path.home()}/data/wiki and {folder}",
        "tags": {"data.sha256": "ab" * 32, "folder": str(folder)},
        "metrics": {"heldout/masked_token_loss": 5.25},
        "aliases": ["champion"],
    }
    return register_model_folder(folder, **(given | changes))


@pytest.fixture(scope="module")
def version(model_folder, store_uri, run_id):
    return register(model_folder, store_uri, run_id)


def test_a_version_carries_card_lineage_and_figures(version, store_uri, run_id):
    described = open_client(store_uri).get_model_version_by_alias("encoder", "champion")
    assert int(described.version) == version
    assert described.run_id == run_id
    assert described.description.startswith("# Encoder")
    assert described.tags["data.sha256"] == "ab" * 32
    assert described.tags["metric.heldout/masked_token_loss"] == "5.25"


def test_the_same_model_of_the_same_run_is_registered_once(
    version, model_folder, store_uri, run_id, tmp_path
):
    assert register(model_folder, store_uri, run_id) == version
    client = open_client(store_uri)
    assert len(client.search_model_versions("name = 'encoder'")) == 1
    experiment_id = client.get_run(run_id).info.experiment_id
    assert len(client.search_logged_models([experiment_id])) == 1
    other = save_model(tmp_path / "model", seed=1)
    assert register(other, store_uri, run_id, aliases=[]) == version + 1


def test_a_logged_model_without_its_version_is_used_again(store_uri, run_id, tmp_path):
    """What a kill between the two calls leaves behind."""
    folder = save_model(tmp_path / "model", seed=2)
    first = register(folder, store_uri, run_id, name="halfway", aliases=[])
    client = open_client(store_uri)
    before = client.get_model_version("halfway", str(first))
    client.delete_model_version("halfway", str(first))
    second = register(folder, store_uri, run_id, name="halfway", aliases=[])
    assert client.get_model_version("halfway", str(second)).source == before.source


def test_artifacts_elsewhere_are_not_sent_with_the_token(store_uri, tmp_path, monkeypatch):
    client = open_client(store_uri)
    location = "http://127.0.0.1:9/api/2.0/mlflow-artifacts/artifacts/x"
    run_id = client.create_run(client.create_experiment("elsewhere", location)).info.run_id
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    with pytest.raises(UserError, match="not at the tracking server"):
        register(save_model(tmp_path / "model", seed=2), store_uri, run_id, name="elsewhere")


def test_a_folder_that_is_no_model_is_named(store_uri, run_id, tmp_path):
    with pytest.raises(UserError, match=r"not a model folder.*config\.json"):
        register(tmp_path, store_uri, run_id)


def test_whether_a_version_can_be_registered_is_asked_first(store_uri, open_folder, nobody):
    refuse_unregistrable("asked's", "run", store_uri)
    refuse_unregistrable("asked's", "another run", store_uri)
    asked = open_client(store_uri).get_registered_model("asked's")
    assert asked.tags == {"bertline.run": "another run"} and not asked.latest_versions
    unwritable = Path(shutil.copy(sqlite_path(store_uri), open_folder / "mlflow.db"))
    with sqlite3.connect(unwritable) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    unwritable.chmod(0o644)
    with (
        nobody(),
        pytest.raises(UserError, match=r"no version of cats can be registered.*readonly"),
    ):
        refuse_unregistrable("cats", "run", sqlite_uri(unwritable))


def test_nothing_logged_holds_a_path_of_this_machine(version, store_uri, model_folder):
    database = Path(store_uri.removeprefix("sqlite:///"))
    forbidden = [str(database.parent), str(model_folder.parent), str(PROJECT), f"{Path.home()}/"]
    connection = sqlite3.connect(database)
    logged = [
        connection.execute(f"SELECT * FROM {table}").fetchall()
        for table in (
            "params",
            "tags",
            "datasets",
            "model_version_tags",
            "logged_model_tags",
            "logged_model_params",
            "registered_models",
        )
    ]
    logged.append(connection.execute("SELECT description FROM model_versions").fetchall())
    files = [path for path in (database.parent / "artifacts").rglob("*") if path.is_file()]
    assert any(path.name == "MLmodel" for path in files)
    assert not any(path.suffix in (".pkl", ".pickle", ".pyc") for path in files)
    contents = [repr(logged).encode(), *(path.read_bytes() for path in files)]
    for path in (*forbidden, "/tmp/tmp"):
        assert not any(path.encode() in content for content in contents), path
    assert CONTENT_TAG in repr(logged)


def test_a_card_tells_data_recipe_and_figures_beside_the_baseline():
    card = model_card(
        name="quickstart",
        summary="A small encoder.",
        data={"Tokens": 1_234_567, "Source": "/data/wiki/a.txt"},
        recipe={"Peak learning rate": 5e-4, "Whole words": True},
        figures={"Masked-token loss (nats)": 5.25, "Masked-token accuracy": 0.2},
        baseline={"Masked-token loss (nats)": 6.94},
        lineage={"Git commit": "abc"},
    )
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: fill-mask\n")
    assert "| Tokens | 1,234,567 |" in card
    assert "| Source | …/a.txt |" in card
    assert "| Whole words | yes |" in card
    assert "| Masked-token loss (nats) | 5.25 | 6.94 |" in card
    assert "| Masked-token accuracy | 0.2 |  |" in card
    assert "load_model_folder(" in card and 'pipeline("fill-mask"' in card
