"""What is written of training texts, and how far others are from them."""

import json
import math

import numpy as np
import pytest

from bert_core.model_folder import ModelFolderError, load_model_folder, save_model_folder
from bert_core.tasks.classification import Classification, Text
from bert_core.tokenizer import special_token_ids, train_wordpiece
from bert_core.training_statistics import (
    Lengths,
    TrainingStatistics,
    count_tokens,
    population_stability_index,
    read_training_statistics,
    statistics_of_documents,
)

WHOLE = TrainingStatistics(
    num_examples=3,
    unknown_token_share=0.25,
    lengths=Lengths.of(np.array([4, 5, 2000])),
    label_shares={"down": 1 / 3, "up": 2 / 3},
)


@pytest.fixture
def tokenizer():
    return train_wordpiece(["the cat sat"] * 3, 60, lowercase=True)


def test_it_comes_back_and_is_under_the_checksums(tmp_path, small_model, tokenizer):
    folder = tmp_path / "model"
    save_model_folder(folder, small_model, tokenizer, "# A card\n", statistics=WHOLE)
    assert read_training_statistics(folder) == WHOLE
    path = folder / "training_statistics.json"
    assert json.loads(path.read_text())["lengths"]["counts"] == [1, 1, 0, 0, 0, 0, 0, 0, 0, 1]
    path.write_text(path.read_text().replace("0.25", "0.5"))
    with pytest.raises(ModelFolderError, match=r"damaged.*training_statistics\.json"):
        load_model_folder(folder)


@pytest.mark.parametrize(
    "content", [None, "no JSON", "[]", '{"num_examples": 3}', "fewer counts than ranges"]
)
def test_a_folder_that_says_nothing_known(tmp_path, content):
    if content == "fewer counts than ranges":
        values = WHOLE.model_dump(mode="json")
        values["lengths"]["counts"].pop()
        content = json.dumps(values)
    if content is not None:
        (tmp_path / "training_statistics.json").write_text(content)
    assert read_training_statistics(tmp_path) is None


def test_lengths_are_counted_up_to_each_edge():
    lengths = Lengths.of(np.arange(1, 101))
    assert lengths.mean == 50.5 and lengths.quantiles["0.5"] == 50.5
    assert lengths.counts == (4, 4, 8, 16, 32, 36, 0, 0, 0, 0)
    assert lengths.shares[:2] == [0.04, 0.04] and math.isclose(sum(lengths.shares), 1)


def test_special_tokens_are_not_among_the_tokens(tokenizer):
    unknown = special_token_ids(tokenizer).unk
    task = Classification(labels=("a", "b"), max_length=8, overflow="window")
    single = task.encode([Text("the cat 中", None, None), Text("", None, None)], tokenizer)
    assert count_tokens(single, unknown) == (1, 2)
    pair = task.encode([Text("the", "中 sat", None)], tokenizer)
    assert count_tokens(pair, unknown) == (1, 2)
    windows = task.encode([Text("the " * 10, None, None)], tokenizer)
    assert len(windows.lengths) > 1
    assert count_tokens(windows, unknown) == (0, windows.lengths.sum() - 2 * len(windows.lengths))


def test_documents_are_told_by_their_token_counts():
    found = statistics_of_documents(7, np.array([0, 5, 0, 0, 0, 15]), unknown_id=1)
    assert found == TrainingStatistics(num_examples=7, unknown_token_share=0.25)
    assert statistics_of_documents(0, np.zeros(6, int), unknown_id=1).unknown_token_share == 0


def test_the_index_is_that_of_the_formula():
    # (0.5 - 0.25) ln(0.5 / 0.25) + (0.5 - 0.75) ln(0.5 / 0.75)
    expected = 0.25 * math.log(2) - 0.25 * math.log(2 / 3)
    assert population_stability_index([1, 3], [20, 20]) == pytest.approx(expected)
    assert population_stability_index([0.2, 0.8, 0.0], [2, 8, 0]) == 0
    gone = population_stability_index([0.5, 0.5], [7, 0])
    assert gone == population_stability_index([7, 0], [0.5, 0.5]) and 4 < gone < 5
