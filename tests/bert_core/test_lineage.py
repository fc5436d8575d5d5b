"""Where a model comes from, in its folder."""

import json

import pytest
from transformers import BertForPreTraining

from bert_core.lineage import Lineage, read_lineage
from bert_core.model_folder import ModelFolderError, load_model_folder, save_model_folder
from bert_core.tokenizer import train_wordpiece

WHOLE = Lineage(
    run="mini-1a2b3c4d",
    run_id="0f" * 16,
    data_sha256="ab" * 32,
    git_commit="c0" * 20,
    git_dirty=False,
    metrics={"dev/f1": 0.1 + 0.2},
)


@pytest.fixture
def folder(tmp_path, small_model):
    tokenizer = train_wordpiece(["the cat sat"] * 3, 60, lowercase=True)
    save_model_folder(tmp_path / "model", small_model, tokenizer, "# A card\n", lineage=WHOLE)
    return tmp_path / "model"


def test_it_comes_back_and_transformers_does_not_mind(folder):
    load_model_folder(folder)
    assert read_lineage(folder) == WHOLE
    assert json.loads((folder / "lineage.json").read_text())["run"] == "mini-1a2b3c4d"
    _, report = BertForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report


def test_a_changed_one_is_damage(folder):
    path = folder / "lineage.json"
    path.write_text(path.read_text().replace("abab", "cdcd"))
    with pytest.raises(ModelFolderError, match=r"damaged.*lineage\.json"):
        load_model_folder(folder)


@pytest.mark.parametrize("content", [None, "no JSON", '["another", "program"]', '{"run": 3}'])
def test_a_folder_that_says_nothing_known(tmp_path, content):
    if content is not None:
        (tmp_path / "lineage.json").write_text(content)
    assert read_lineage(tmp_path) is None


def test_what_only_another_says_is_added():
    folder = Lineage(run="mini", data_sha256="ab", metrics={"dev/f1": 0.25})
    registry = Lineage(run_id="1", data_sha256="cd", git_dirty=False, metrics={"dev/f1": 0.3})
    assert folder.completed(registry) == Lineage(
        run="mini", run_id="1", data_sha256="ab", git_dirty=False, metrics={"dev/f1": 0.25}
    )
