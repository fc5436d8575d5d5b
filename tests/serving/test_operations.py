"""What those who run the server are told."""

import json

import pytest
from registered_versions import other_weights

from bert_core.lineage import Lineage
from bert_core.model_folder import load_model_folder, save_model_folder
from serving.models import close_models, load_models
from serving.rollout.aliases import Pointer
from serving.rollout.traffic import Variant


def test_the_server_is_well(server):
    assert server.ask("/health") == (200, {"status": "alive"})
    assert server.ask("/ready") == (200, {"status": "ready"})


def test_models_and_limits_are_shown(server):
    _, info = server.ask("/info")
    assert set(info["models"]) == set(server.folders)
    entities = info["models"]["entities"]
    assert entities["task"] == "ner" and "B-PER" in entities["labels"]
    assert entities["max_input_length"] == 32
    assert info["models"]["encoder"]["task"] is None
    assert info["limits"]["max_items"] == 256
    assert info["model_id"] is None and info["auto_truncate"] is False
    assert info["max_client_batch_size"] == 256
    shas = {model["sha256"] for model in info["models"].values()}
    assert len(shas) == len(info["models"]) and None not in shas


def test_the_only_model_has_the_fields_of_tei(start_server, small_models):
    _, info = start_server({"encoder": small_models["encoder"]}).ask("/info")
    assert info["model_id"] == "encoder" and info["max_input_length"] == 384
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert info["model_sha"] == info["models"]["encoder"]["sha256"]


def test_where_a_model_comes_from_is_shown(server, start_server, small_models, tmp_path):
    _, info = server.ask("/info")
    assert all(each["lineage"] is each["registered"] is None for each in info["models"].values())

    config = json.loads((small_models["sentiment"] / "config.json").read_text())
    _, model, tokenizer = load_model_folder(small_models["sentiment"])
    known = Lineage(run="mini-1a2b", data_sha256="ab" * 32, metrics={"dev/accuracy": 0.75})
    save_model_folder(tmp_path / "mine", model, tokenizer, "", extra_config=config, lineage=known)
    pointer = Pointer(
        address="models:/mood/3",
        name="mood",
        version=3,
        alias=None,
        folder=tmp_path / "mine",
        tracking_uri="http://mlflow:5000",
        lineage=Lineage(run_id="1", git_commit="c0" * 20, metrics={"dev/accuracy": 0.7}),
    )
    running = start_server({"mine": tmp_path / "mine", "same": pointer})
    _, info = running.ask("/info")
    of_folder, of_registry = info["models"]["mine"], info["models"]["same"]
    assert of_folder["lineage"] == known.model_dump() and of_folder["registered"] is None
    assert of_registry["registered"] == {"name": "mood", "version": 3, "alias": None}
    assert of_registry["lineage"] == known.model_dump() | {"run_id": "1", "git_commit": "c0" * 20}
    assert str(tmp_path) not in json.dumps(info)
    _, document = running.ask("/openapi.json")
    assert "run_id" in document["components"]["schemas"]["Lineage"]["properties"]


def test_what_a_model_can_be_asked_and_who_stands_beside_it(
    server, start_server, small_models, tmp_path
):
    _, info = server.ask("/info")
    sentiment, entities = info["models"]["sentiment"], info["models"]["entities"]
    assert "/v1/classify" in sentiment["routes"] and "/v1/ner" not in sentiment["routes"]
    assert sentiment["reads_pairs"] is False and entities["reads_pairs"] is None
    assert sentiment["canary"] is sentiment["shadow"] is None

    pointer = Pointer(
        address="models:/mood@next",
        name="mood",
        version=2,
        alias="next",
        folder=small_models["sentiment"],
        tracking_uri="http://mlflow:5000",
        lineage=Lineage(),
    )
    folder = other_weights(small_models["sentiment"], tmp_path / "other", 2.0)
    running = start_server({"mood": small_models["sentiment"]})
    canary, shadow = (load_models({"mood": source})["mood"] for source in (pointer, folder))
    running.engine.set_variant("mood", "canary", Variant(canary, 0.1))
    running.engine.set_variant("mood", "shadow", Variant(shadow, 1.0))
    _, info = running.ask("/info")
    mood = info["models"]["mood"]
    assert mood["canary"] == {"model": "models:/mood@next", "version": "2", "share": 0.1}
    assert mood["shadow"]["model"] == "other" and mood["shadow"]["share"] == 1.0
    assert mood["shadow"]["version"] == shadow.version != mood["version"]
    assert str(tmp_path) not in json.dumps(info)
    close_models([canary, shadow])


@pytest.mark.parametrize(
    "path", ["/health", "/ready", "/info", "/metrics", "/v1/models", "/docs", "/openapi.json", "/"]
)
def test_probes_may_ask_by_head(server, path):
    status, body, headers = server.ask_whole(path, method="HEAD")
    assert status == 200 and body == b""
    assert headers["Content-Type"] == server.ask_whole(path)[2]["Content-Type"]
    assert server.ask("/nothing", method="HEAD")[0] == 404
    assert "head" not in server.ask("/openapi.json")[1]["paths"].get(path, {})
