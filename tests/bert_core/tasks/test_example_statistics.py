"""What examples of each task are like."""

import pytest

from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.conll import TaggedSentence
from bert_core.tasks.example_statistics import label_names, statistics_of_examples
from bert_core.tasks.multiple_choice import Choices, MultipleChoice
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Answer, Question
from bert_core.tasks.tagging import Tagging
from bert_core.tokenizer import train_wordpiece


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
    questions = [Question("", "on a mat", "the cat", each) for each in answers]
    shares = statistics(QuestionAnswering(no_answer=True), questions).label_shares
    assert shares == {"answer": 1 / 3, "no_answer": 2 / 3}
    assert statistics(QuestionAnswering(), questions[:1]).label_shares is None


def test_choices_have_no_labels(statistics):
    found = statistics(MultipleChoice(), [Choices("the", ("cat", "sat"), 1)])
    assert found.label_shares is None and found.lengths.mean == 10
    assert label_names(None) == ()
