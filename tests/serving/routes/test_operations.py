"""What those who run the server are told."""

from serving.engine import Engine
from serving.models import close_models, load_models


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
    shas = {each["sha256"] for each in info["models"].values()}
    assert len(shas) == len(info["models"]) and None not in shas


def test_the_only_model_has_the_fields_of_tei(start_server, small_models):
    models = load_models({"encoder": small_models["encoder"]})
    server = start_server(Engine(models), small_models)
    _, info = server.ask("/info")
    assert info["model_id"] == "encoder" and info["max_input_length"] == 384
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert info["model_sha"] == info["models"]["encoder"]["sha256"]
    close_models(list(models.values()))
