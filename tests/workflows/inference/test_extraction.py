"""Settings of an extraction, and one part of it in this process; test_extract.py runs it on Ray."""

import gzip
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from finetuning_runs import write_encoder

from bert_core.errors import UserError
from bert_core.features.extractor import FeatureChoice
from bert_core.features.sentence_pooling import SentencePooling, sentence_modules
from bert_core.model.strategies import STRATEGIES
from bert_core.model_folder import load_model_folder
from bert_core.predictor import load_predictor
from bert_core.text.sources import find_parts
from bert_core.text.texts import divide
from workflows.inference.extraction import FEATURES, Extraction, ExtractSettings, part_path
from workflows.inference.text_parts import write_part


def settings(**changed):
    return ExtractSettings(model="m", input=["a.txt"], output="out", **changed)


def test_layers_by_number_are_a_strategy_of_their_own():
    strategy = settings(layers=[0, -1]).chosen_strategy()
    assert strategy.layers_of(12) == (0, 12)
    assert strategy.feature_size(12, 10) == 20
    with pytest.raises(UserError, match="a strategy and layers"):
        settings(layers=[1], strategy="last")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "float32"),
        ({"strategy": "concat_last_four"}, "float16"),
        ({"strategy": "weighted_sum_all"}, "float32"),
        ({"layers": [0, 1, 2]}, "float16"),
        ({"layers": [3]}, "float32"),
        ({"layers": [0, 1], "dtype": "float32"}, "float32"),
        ({"dtype": "float16"}, "float16"),
    ],
)
def test_several_layers_take_half_the_room(changed, expected):
    assert settings(**changed).numbers(12) == expected


def test_every_strategy_can_be_asked_for():
    for name, strategy in STRATEGIES.items():
        assert settings(strategy=name).chosen_strategy() is strategy
    with pytest.raises(UserError, match="did you mean embeddings"):
        settings(strategy="embedding")


SAID = SentencePooling("cls", max_length=32, prompts={"document": "keli monu "})


@pytest.fixture
def said(tmp_path):
    """The folder and the shape of a model of embeddings with a prompt, that reads [CLS]."""
    folder = tmp_path / "said"
    config = load_model_folder(write_encoder(folder))[0]
    for name, content in sentence_modules(SAID, config.hidden_size).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder, config


@pytest.mark.parametrize(
    ("changed", "pooling", "prompt"),
    [
        ({}, "cls", ""),
        ({"pooling": "mean"}, "mean", ""),
        ({"prompt_name": "document"}, "cls", "keli monu "),
        ({"prompt_name": "document", "pooling": "max"}, "max", "keli monu "),
        ({"unit": "word"}, None, ""),
    ],
)
def test_a_text_is_pooled_as_the_folder_says(said, changed, pooling, prompt):
    choice = settings(**changed).choice(*said)
    assert (choice.pooling, choice.prompt) == (pooling, prompt)


def test_the_default_prompt_is_that_of_the_folder(said):
    folder, config = said
    by_default = replace(SAID, default_prompt="document")
    for name, content in sentence_modules(by_default, config.hidden_size).items():
        (folder / name).write_text(json.dumps(content))
    assert settings().choice(folder, config).prompt == "keli monu "
    assert settings(pooling="mean").choice(folder, config).prompt == ""


def test_a_prompt_that_is_none_is_refused(said):
    with pytest.raises(UserError, match="no such prompt: query .there are document"):
        settings(prompt_name="query").choice(*said)
    with pytest.raises(UserError, match="a prompt before a token: --prompt_name"):
        settings(prompt_name="document", unit="token").choice(*said)


def test_vectors_with_a_prompt_are_those_of_the_model(tmp_path, plan_of, said):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "ba"}\n{"text": "rume to"}\n')
    choice = settings(prompt_name="document").choice(*said)
    write_part(replace(plan_of(path), model=said[0], choice=choice), 0)
    found = np.stack(pq.read_table(part_path(tmp_path, "part-00000"))["features"].to_numpy())
    expected = load_predictor(said[0]).embed(["ba", "rume to"], prompt_name="document")
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.abs(found - load_predictor(said[0]).embed(["ba", "rume to"])).max() > 1e-3


def test_words_and_a_prompt_are_refused(tmp_path, plan_of, said):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": ["ba", "to"]}\n')
    choice = settings(prompt_name="document").choice(*said)
    record = write_part(replace(plan_of(path), model=said[0], choice=choice), 0)
    assert record["error"][0] == "words, and a prompt before a text"


@pytest.fixture
def plan_of(tmp_path):
    def make(*paths, skip_bad=False):
        found = list(find_parts(map(str, paths), "text", Counter()))
        write_encoder(tmp_path / "encoder")
        (tmp_path / FEATURES).mkdir()
        return Extraction(
            work=tmp_path,
            parts=list(divide(found)),
            model=tmp_path / "encoder",
            choice=FeatureChoice(),
            text_column="text",
            id_column=None,
            output_format="parquet",
            dtype="float32",
            skip_bad=skip_bad,
            bfloat16=False,
            max_tokens=64,
            num_workers=None,
            use_gpu=None,
            threads_per_worker=1,
        )

    return make


def test_a_part_is_a_file_and_then_its_record(tmp_path, plan_of):
    path = tmp_path / "a.txt"
    path.write_text("ba\n\nkeli monu\n")
    plan = plan_of(path)
    record = write_part(plan, 0)
    assert Counter(record["counts"]) == Counter(texts=2, tokens=3, units=2, rows=2)
    assert record["dropped"] == {"empty_lines": 1}
    assert json.loads((tmp_path / "part-00000.json").read_text()) == record
    assert pq.read_table(part_path(tmp_path, "part-00000")).num_rows == 2


@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_part_that_cannot_be_read_is_tried_again_unless_left_out(tmp_path, plan_of, skip_bad):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"ba keli\n" * 9000)[:-20])
    plan = plan_of(path, skip_bad=skip_bad)
    record = write_part(plan, 0)
    assert record["error"][0].startswith("cannot read to the end (")
    assert record["error"][1] == str(path)
    assert ("--skip_bad" in record["error"][2]) is not skip_bad
    assert record["left_out"] is skip_bad
    assert not any((tmp_path / FEATURES).iterdir()), "nothing half-written"
    assert (tmp_path / "part-00000.json").exists() is skip_bad
    assert not part_path(tmp_path, "part-00000").exists()
