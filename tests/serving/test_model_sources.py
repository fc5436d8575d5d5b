"""What follows --model, for servers."""

import shutil
from pathlib import Path

import pytest

from bert_core.errors import UserError
from serving.model_sources import SharedSource, fetched, named_models, versions_beside
from serving.pointers import Address, pointer_path
from serving.watch import bring_up_to_date

CHAMPION = Address("people", "champion", None)


def test_folders_and_addresses_have_names():
    found = named_models(
        [
            "a/b",
            "ner=c/d",
            "models:/people@champion",
            "old=models:/people/1",
            "models:/a=b/2",
            "/x=y/e",
        ]
    )
    assert found == {
        "b": Path("a/b"),
        "ner": Path("c/d"),
        "people": CHAMPION,
        "old": Address("people", None, 1),
        "a=b": Address("a=b", None, 2),
        "e": Path("/x=y/e"),
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


def test_an_address_becomes_what_its_pointer_says(registry, small_models, tmp_path):
    assert fetched(small_models["entities"], {}) == small_models["entities"]
    bring_up_to_date(CHAMPION, registry.uri, tmp_path)
    pointers = {CHAMPION: pointer_path(tmp_path, CHAMPION, registry.uri)}
    found = fetched(CHAMPION, pointers)
    assert found.version == 1 and found.folder.parent == tmp_path
    shutil.rmtree(found.folder)
    with pytest.raises(UserError, match="start again"):
        fetched(CHAMPION, pointers)


def test_versions_beside_have_a_model_and_a_share():
    models = {"mood": Path("a/mood"), "people": CHAMPION}
    given = {"canary": ["mood=models:/mood@next,0.1"], "shadow": ["people=a,b/c,1"]}
    assert versions_beside(models, given) == {
        "canary": {"mood": SharedSource(Address("mood", "next", None), 0.1)},
        "shadow": {"people": SharedSource(Path("a,b/c"), 1.0)},
    }
    for wrong in ("mood=a", "a,0.1", "mood=a,0", "mood=a,1.5", "mood=a,inf", "mood=a,0,1%"):
        with pytest.raises(UserError, match="write NAME=MODEL,SHARE"):
            versions_beside(models, {"canary": [wrong]})
    with pytest.raises(UserError, match="no model 'moood', did you mean mood"):
        versions_beside(models, {"canary": ["moood=a,0.1"]})
    with pytest.raises(UserError, match="two for mood"):
        versions_beside(models, {"shadow": ["mood=a,0.1", "mood=b,0.1"]})
