"""What those who run the server are told."""


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
