"""A model's example in its folder, and what counts as another answer."""

import json

import pytest
from transformers import BertForPreTraining

from bert_core.errors import UserError
from bert_core.example import ModelExample, check_example, read_example
from bert_core.model_folder import ModelFolderError, load_model_folder, save_model_folder
from bert_core.tokenizer import train_wordpiece

SCORES = [{"label": "up", "score": 0.7}, {"label": "down", "score": 0.3}]
ENTITY = {"type": "PER", "text": "Ada", "start": 4, "end": 7, "score": 0.9}


def example(answer, kind="classify", precision="float32", tolerance=1e-3):
    return ModelExample(
        kind=kind, inputs="a text", answer=answer, precision=precision, tolerance=tolerance
    )


@pytest.fixture
def folder(tmp_path, small_model):
    tokenizer = train_wordpiece(["the cat sat"] * 3, 60, lowercase=True)
    mine = example({"label": "up", "scores": SCORES})
    save_model_folder(tmp_path / "model", small_model, tokenizer, "# A card\n", example=mine)
    return tmp_path / "model"


def test_it_comes_back_and_transformers_does_not_mind(folder):
    assert read_example(folder) == example({"label": "up", "scores": SCORES})
    _, report = BertForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report


def test_a_folder_without_one_says_nothing(tmp_path):
    assert read_example(tmp_path) is None


def test_damage_is_noticed_with_checksums_and_without(folder):
    path = folder / "example.json"
    path.write_text(path.read_text().replace("up", "down"))
    with pytest.raises(ModelFolderError, match=r"damaged.*example\.json"):
        load_model_folder(folder)
    for content in ("{", json.dumps({"kind": "sing", "inputs": ""}), "[]"):
        path.write_text(content)
        with pytest.raises(UserError, match=r"damaged example.*example\.json"):
            read_example(folder)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        # What comes besides, as over HTTP; equal scores that changed places; rounding.
        ({"label": "up"}, {"label": "up", "n_tokens": 7}),
        ({"scores": SCORES}, {"scores": [*reversed(SCORES)]}),
        ({"value": 3.0}, {"value": 3.002}),
        ({"vector": [0.5, -0.5]}, {"vector": [0.5005, -0.5, 9.0]}),
        ({"entities": []}, {"entities": []}),
        # The last of the best tokens was as likely as another one.
        (
            {"candidates": [{"token": "a", "score": 0.5}, {"token": "b", "score": 0.1}]},
            {"candidates": [{"token": "a", "score": 0.5}, {"token": "c", "score": 0.1004}]},
        ),
    ],
)
def test_the_same_answer(answer, found):
    assert check_example(example(answer), found) is None


@pytest.mark.parametrize(
    ("answer", "found", "difference"),
    [
        ({"label": "up"}, {"label": "down"}, "label is 'down', was 'up'"),
        ({"label": "up"}, {"entities": []}, "label is missing"),
        (
            {"scores": SCORES},
            {"scores": [{"label": "up", "score": 0.702}, SCORES[1]]},
            "scores.up.score is 0.702, was 0.7, and may be off by 0.001",
        ),
        ({"scores": SCORES}, {"scores": SCORES[:1]}, "scores has 1, had 2"),
        ({"value": 3.0}, {"value": float("nan")}, "value is nan, was 3"),
        ({"vector": [0.5, 0.5]}, {"vector": [0.5, 0.6]}, "vector[1] is 0.6, was 0.5"),
        ({"vector": [0.5, 0.5]}, {"vector": [0.5]}, "vector has 1, had 2: [0.5]"),
        ({"entities": []}, {"entities": [ENTITY]}, "entities has 1, had 0"),
        (
            {"entities": [ENTITY]},
            {"entities": [ENTITY | {"end": 8}]},
            "entities[0].end is 8, was 7",
        ),
        (
            {"candidates": [{"token": "a", "score": 0.5}]},
            {"candidates": [{"token": "b", "score": 0.4}]},
            "candidates.a is None",
        ),
    ],
)
def test_another_answer_is_told_in_a_line(answer, found, difference):
    told = check_example(example(answer), found)
    assert told.startswith(difference) and "\n" not in told


def test_fewer_bits_on_either_side_may_be_further_off():
    answer, found = {"value": 0.5}, {"value": 0.54}
    assert check_example(example(answer), found) is not None
    assert check_example(example(answer), found, "bfloat16") is None
    assert check_example(example(answer, precision="int8", tolerance=0.1), found) is None
