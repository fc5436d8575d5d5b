"""Addresses of the registry, and the files that say what they stand for."""

import json
import shutil

import pytest

from bert_core.errors import UserError
from bert_core.lineage import Lineage
from serving.pointers import (
    Address,
    Pointer,
    pointer_path,
    read_pointer,
    switch_pointer,
    without_password,
)

STORE = "http://user:secret@mlflow.example:5000/at"


@pytest.fixture
def pointer(tmp_path):
    folder = tmp_path / "models" / "m-1"
    folder.mkdir(parents=True)
    return Pointer(
        address="models:/cats@champion",
        name="cats",
        version=3,
        alias="champion",
        folder=folder,
        tracking_uri=without_password(STORE),
        lineage=Lineage(run_id="1", metrics={"dev/f1": 0.5}),
    )


@pytest.mark.parametrize("text", ["models:/cats@champion", "models:/big cats/12"])
def test_an_address_is_read_and_written(text):
    assert str(Address.of(text)) == text


@pytest.mark.parametrize(
    "text",
    ["models:/cats", "models:/cats@", "models:/cats/x", "models:/a/b@c", "cats@champion"]
    + ["models:/cats/" + "9" * 5000],
)
def test_anything_else_is_no_address(text):
    with pytest.raises(UserError, match="write models:/name@alias or models:/name/1"):
        Address.of(text)


def test_a_pointer_comes_back_and_moves_with_its_cache(pointer, tmp_path):
    path = pointer_path(tmp_path / "models", Address.of(pointer.address), STORE)
    switch_pointer(path, pointer)
    assert read_pointer(path) == pointer
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert path.name.startswith("cats@champion-") and "secret" not in path.read_text()
    assert json.loads(path.read_text())["folder"] == "m-1"

    switch_pointer(path, pointer.model_copy(update={"version": 4}))
    assert read_pointer(path).version == 4

    moved = tmp_path / "elsewhere"
    (tmp_path / "models").rename(moved)
    assert read_pointer(path) is None
    path = moved / "pointers" / path.name
    assert read_pointer(path).folder == moved / "m-1"
    shutil.rmtree(moved / "m-1")
    assert read_pointer(path) is None, "a pointer to nothing"
    path.write_text(path.read_text()[:-20])
    assert read_pointer(path) is None


def test_each_store_has_its_own(tmp_path):
    address = Address.of("models:/a b@c")
    paths = {pointer_path(tmp_path, address, uri) for uri in (STORE, "http://other:5000")}
    paths.add(pointer_path(tmp_path, Address.of("models:/a-b@c"), STORE))
    assert len(paths) == 3
    assert pointer_path(tmp_path, address, without_password(STORE)) in paths


def test_passwords_are_left_out():
    assert without_password(STORE) == "http://mlflow.example:5000/at"
    assert without_password(f"at {STORE}: no") == "at http://mlflow.example:5000/at: no"
    for uri in ("http://mlflow:5000", "sqlite:////a/b@c/mlflow.db", "databricks"):
        assert without_password(uri) == uri
