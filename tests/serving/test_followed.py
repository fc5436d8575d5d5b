from pathlib import Path

from serving.followed import source_of, title_of
from serving.models import close_models, load_models
from serving.pointers import Address, Pointer


def test_a_place_is_named_by_its_model_and_role():
    assert title_of((None, "mood")) == "mood"
    assert title_of(("canary", "mood")) == "mood (canary)"


def test_a_model_has_been_opened_by_its_folder_or_its_address(small_models):
    folder = small_models["sentiment"]
    pointer = Pointer(
        address="models:/mood@champion",
        name="mood",
        version=3,
        alias="champion",
        folder=folder,
        tracking_uri="http://mlflow:5000",
        lineage={},
    )
    models = load_models({"of_folder": Path(folder), "of_registry": pointer})
    assert source_of(models["of_folder"]) == folder
    assert source_of(models["of_registry"]) == Address("mood", "champion", None)
    close_models(list(models.values()))
