"""What follows --model, for servers."""

import logging
from pathlib import Path

import pytest

from bert_core.errors import UserError
from serving.model_sources import fetched, named_models
from serving.pointers import Address

CHAMPION = Address("people", "champion", None)


def test_folders_and_addresses_have_names():
    found = named_models(
        ["a/b", "ner=c/d", "models:/people@champion", "old=models:/people/1", "models:/a=b/2"]
    )
    assert found == {
        "b": Path("a/b"),
        "ner": Path("c/d"),
        "people": CHAMPION,
        "old": Address("people", None, 1),
        "a=b": Address("a=b", None, 2),
    }


@pytest.mark.parametrize("given", [["a/b", "c/b"], ["models:/b@one", "models:/b@two"]])
def test_two_of_one_name_are_refused(given):
    with pytest.raises(UserError, match="two models of one name"):
        named_models(given)


@pytest.mark.parametrize(
    "given", ["models:/people", "models:people@x", "key=models:/people@", "models:/a/b/c"]
)
def test_what_begins_as_an_address_has_to_be_one(given):
    with pytest.raises(UserError, match="write models:/name@alias"):
        named_models([given])


def test_folders_are_left_as_they_are():
    models = {"b": Path("a/b")}
    assert fetched(models, tracking_uri="http://127.0.0.1:9", cache=None) == models


def test_an_address_becomes_a_pointer(copied_registry, small_models, tmp_path, caplog):
    models = {"mine": small_models["entities"], "one": CHAMPION, "two": Address("people", None, 1)}
    asked = {"tracking_uri": copied_registry.uri, "cache": tmp_path / "models"}
    found = fetched(models, **asked)
    assert found["mine"] == models["mine"]
    assert found["one"].folder == found["two"].folder
    assert found["one"].folder.parent == tmp_path / "models"

    with pytest.raises(UserError, match="the MLflow UI lists") as told:
        fetched({"one": CHAMPION, "two": Address("people", "nobody", None)}, **asked)
    assert told.value.what == "no model models:/people@nobody"

    copied_registry.database.unlink()
    with caplog.at_level(logging.WARNING):
        assert fetched({"one": CHAMPION}, **asked) == {"one": found["one"]}
    (warning,) = caplog.messages
    assert warning.startswith("warning: models:/people@champion is version 1, as fetched before")


def test_a_process_that_breaks_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError) as told:
        fetched({"a": CHAMPION}, tracking_uri="what://is/this", cache=tmp_path / "file")
    assert "\n" not in str(told.value) and "models:/people@champion" in str(told.value)
