"""Addresses, pointers, and the models and variants of a command line."""

import json
import shutil
from pathlib import Path

import pytest

from bert_core.errors import UserError
from bert_core.lineage import Lineage
from serving.rollout.aliases import (
    Address,
    Pointer,
    VariantSource,
    fetched,
    named_models,
    parse_variants,
    pointer_path,
    read_pointer,
    switch_pointer,
    without_password,
)
from serving.watch import bring_up_to_date

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


def test_an_address_is_read_and_written():
    for text in ("models:/cats@champion", "models:/big cats/12"):
        assert str(Address.of(text)) == text
    wrong = ["models:/cats", "models:/cats@", "models:/cats/x", "models:/a/b@c", "cats@champion"]
    for text in (*wrong, "models:/cats/" + "9" * 5000):
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


CHAMPION = Address("people", "champion", None)


def test_folders_and_addresses_have_names():
    given = ["a/b", "ner=c/d", "models:/people@champion", "old=models:/people/1"]
    assert named_models([*given, "models:/a=b/2", "/x=y/e"]) == {
        "b": Path("a/b"),
        "ner": Path("c/d"),
        "people": CHAMPION,
        "old": Address("people", None, 1),
        "a=b": Address("a=b", None, 2),
        "e": Path("/x=y/e"),
    }
    for twice in (["a/b", "c/b"], ["models:/b@one", "models:/b@two"]):
        with pytest.raises(UserError, match="two models of one name"):
            named_models(twice)
    for wrong in ("models:/people", "models:people@x", "key=models:/people@", "models:/a/b/c"):
        with pytest.raises(UserError, match="write models:/name@alias"):
            named_models([wrong])


def test_a_folder_may_lie_in_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/srv/somebody")
    assert named_models(["a=~/m", "~/n"]) == {
        "a": Path("/srv/somebody/m"),
        "n": Path("/srv/somebody/n"),
    }


def test_an_address_becomes_what_its_pointer_says(registry, small_models, tmp_path):
    assert fetched(small_models["entities"], {}) == small_models["entities"]
    bring_up_to_date(CHAMPION, registry.uri, tmp_path)
    pointers = {CHAMPION: pointer_path(tmp_path, CHAMPION, registry.uri)}
    found = fetched(CHAMPION, pointers)
    assert found.version == 1 and found.folder.parent == tmp_path
    shutil.rmtree(found.folder)
    with pytest.raises(UserError, match="start again"):
        fetched(CHAMPION, pointers)


def test_canaries_and_shadows_have_a_model_and_a_share():
    models = {"mood": Path("a/mood"), "people": CHAMPION}
    given = ["mood=models:/mood@next,0.1"], ["people=a,b/c,1"]
    assert parse_variants(models, *given) == {
        ("canary", "mood"): VariantSource(Address("mood", "next", None), 0.1),
        ("shadow", "people"): VariantSource(Path("a,b/c"), 1.0),
    }
    for wrong in ("mood=a", "a,0.1", "mood=a,0", "mood=a,1.5", "mood=a,inf", "mood=a,0,1%"):
        with pytest.raises(UserError, match="write NAME=MODEL,SHARE"):
            parse_variants(models, [wrong], [])
    with pytest.raises(UserError, match="no model 'moood', did you mean mood"):
        parse_variants(models, ["moood=a,0.1"], [])
    with pytest.raises(UserError, match="two for mood"):
        parse_variants(models, [], ["mood=a,0.1", "mood=b,0.1"])
