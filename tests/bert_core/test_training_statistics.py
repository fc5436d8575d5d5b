"""What is written of training texts, and how far others are from them."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from bert_core.model_folder import ModelFolderError, load_model_folder, save_model_folder
from bert_core.special_tokens import special_token_ids
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.multiple_choice import Choices, MultipleChoice
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Answer, Question
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.tagging import Tagging
from bert_core.tokenizer_training import train_wordpiece
from bert_core.training_statistics import (
    Lengths,
    TrainingStatistics,
    count_tokens,
    label_names,
    population_stability_index,
    read_training_statistics,
    statistics_of_documents,
    statistics_of_examples,
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
    special = special_token_ids(tokenizer)
    task = Classification(labels=("a", "b"), max_length=8, overflow="window")
    single = task.encode([Text("the cat 中", None, None), Text("", None, None)], tokenizer)
    assert count_tokens(single, special) == (1, 2)
    pair = task.encode([Text("the", "中 sat", None)], tokenizer)
    assert count_tokens(pair, special) == (1, 2)
    windows = task.encode([Text("the " * 10, None, None)], tokenizer)
    assert len(windows.lengths) > 1
    assert count_tokens(windows, special) == (0, windows.lengths.sum() - 2 * len(windows.lengths))
    bare = replace(single, input_ids=np.array([single.input_ids[1], special.unk]))
    assert count_tokens(bare, special) == (1, 1)


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


@pytest.fixture(scope="module")
def statistics():
    tokenizer = train_wordpiece(["the cat sat on a mat"] * 3, 80, lowercase=True)

    def of(task, examples):
        return statistics_of_examples(task, examples, task.encode(examples, tokenizer), tokenizer)

    return of


def test_texts_and_their_labels(statistics):
    answers = ["up", "up", "down", None]
    texts = [Text("the cat 中 中", None, answer) for answer in answers]
    found = statistics(Classification(labels=("down", "up", "never")), texts)
    assert found.num_examples == 4 and found.unknown_token_share == 0.5
    assert found.lengths.mean == 6 and found.lengths.counts[:2] == (0, 4)
    assert found.label_shares == {"down": 1 / 3, "up": 2 / 3, "never": 0}


def test_lengths_are_those_before_any_cut(statistics):
    texts = [Text("cat " * 100, None, "a")]
    cut = statistics(Classification(labels=("a", "b"), max_length=8), texts)
    assert cut.lengths.mean == 102


def test_several_labels_and_numbers(statistics):
    several = [Text("the", None, each) for each in (("a", "b"), ("a",), ())]
    found = statistics(Classification(kind="multiple", labels=("a", "b")), several)
    assert found.label_shares == {"a": 2 / 3, "b": 1 / 3}
    numbers = statistics(Classification(kind="regression"), [Text("the", None, 2.5)])
    assert numbers.label_shares is None and numbers.lengths.mean == 3


def test_words_by_the_type_of_their_entity(statistics):
    sentences = [
        TaggedSentence(["the", "cat", "sat", "on"], ["O", "B-PER", "I-PER", "B-LOC"]),
        TaggedSentence(["a"], None),
    ]
    task = Tagging(labels=("O", "B-PER", "I-PER", "B-LOC", "I-LOC"))
    assert label_names(task) == ("O", "PER", "LOC")
    assert statistics(task, sentences).label_shares == {"O": 0.25, "PER": 0.5, "LOC": 0.25}
    plain = [TaggedSentence(["the", "cat"], ["DT", "NN"], scheme=None)]
    shares = statistics(Tagging(labels=("DT", "NN"), scheme="none"), plain).label_shares
    assert shares == {"O": 0, "DT": 0.5, "NN": 0.5}


def test_questions_without_an_answer_where_there_may_be_some(statistics):
    answers = [(Answer("cat", 4),), (), (), None]
    questions = [Question("", "on a mat", "the cat", answer) for answer in answers]
    shares = statistics(QuestionAnswering(no_answer=True), questions).label_shares
    assert shares == {"answer": 1 / 3, "no_answer": 2 / 3}
    assert statistics(QuestionAnswering(), questions[:1]).label_shares is None


def test_choices_have_no_labels(statistics):
    found = statistics(MultipleChoice(), [Choices("the", ("cat", "sat"), 1)])
    assert found.label_shares is None and found.lengths.mean == 10
    assert label_names(None) == ()
