"""Each task against the class of `transformers` that loads its folders."""

import numpy as np
import pytest
import torch
import transformers
from parity import check_gradients, their_outputs, theirs_of

from bert_core.model_folder import save_model_folder
from bert_core.predictor import load_predictor
from bert_core.tasks.catalog import task_config
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.encoded_rows import TaskBatchSource
from bert_core.tasks.multiple_choice import Choices, MultipleChoice
from bert_core.tasks.outputs import compute_all_outputs
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Answer, Question
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import SUM_NAMES, compute_outputs, task_loss

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dogs", "run", "far", "Anna's", "away-from", "Bob"]
TAGS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
TAGGING = {"labels": TAGS, "max_length": 60}
SHORT = QuestionAnswering(max_length=24, stride=7, no_answer=True)
CASES = {
    "single": (
        Classification(labels=("no", "yes", "maybe"), max_length=60),
        ["no", "yes", "maybe", "yes", "no"],
    ),
    "multiple": (
        Classification(kind="multiple", labels=("red", "green", "blue"), max_length=60),
        [("red",), (), ("green", "blue"), ("red", "blue"), ("blue",)],
    ),
    "regression": (Classification(kind="regression", max_length=60), [0.5, 4.75, 3.0, 1.25, 2.0]),
    "sentences": (Tagging(**TAGGING), [9, 3, 14, 1, 6, 12, 20]),
    "documents": (Tagging(**TAGGING, document_context=True), [9, 3, 14, 1, 6, 12, 20]),
    "questions": (SHORT, range(6)),
    "questions in full windows": (SHORT, range(6)),
    "choices": (MultipleChoice(max_length=32), [0, 1, 2, None, 1, 2, 0]),
}
NAMES = {Classification: "classification", Tagging: "tagging", QuestionAnswering: "squad_v2"}


def words_of(random, count):
    return random.choice(WORDS, size=count).tolist()


def a_question(random, number):
    """A question about a context of any length; every third has no answer, one is not labelled."""
    words = words_of(random, random.integers(4, 40))
    begin = int(random.integers(len(words) - 2))
    answer = Answer(" ".join(words[begin : begin + 2]), len(" ".join([*words[:begin], ""])))
    text = " ".join(words_of(random, random.integers(2, 9))) + "?"
    answers = None if number % 6 == 4 else () if number % 3 == 2 else (answer,)
    return Question(str(number), text, " ".join(words), answers)


def example(random, task, answer):
    def text(longest=20):
        return " ".join(words_of(random, random.integers(1, longest)))

    match task:
        case Classification():
            return Text(text(), text(), answer)
        case Tagging():
            tags = random.choice(TAGS, size=answer).tolist()
            return TaggedSentence(words_of(random, answer), tags, document="d")
        case QuestionAnswering():
            return a_question(random, answer)
    return Choices(text(6), (text(6), text(6), text(6)), answer)


@pytest.fixture
def encoded(tokenizer):
    """The task of a case, its examples and their rows."""

    def encode(name, times=1):
        task, answers = CASES[name]
        random = np.random.default_rng(3)
        examples = [example(random, task, answer) for answer in [*answers] * times]
        return task, examples, task.encode(examples, tokenizer)

    return encode


@pytest.mark.parametrize("layout", ["packed", "padded"])
@pytest.mark.parametrize("name", CASES)
def test_outputs_loss_and_gradients_are_theirs(model, encoded, name, layout):
    task, _, rows = encoded(name)
    items = np.random.default_rng(0).permutation(rows.num_items)
    if name == "questions in full windows":
        items = np.flatnonzero((rows.lengths == task.max_length) & (rows.labels >= 0).all(1))
        assert len(items) >= 5
    ours = model(task, torch.float64)
    theirs = theirs_of(ours, task)
    expected, expected_loss = their_outputs(theirs, rows, items)
    expected_loss.backward()

    batch = rows.batch(items, layout)
    outputs = compute_outputs(ours, batch)
    assert (outputs - expected).norm() < 1e-9 * expected.norm()
    num_labels = int(rows.label_counts[items].sum())
    loss, sums = task_loss(task, ours, batch, num_labels=num_labels)
    assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-7)  # numbers are float32
    assert sums[SUM_NAMES.index("count")] == num_labels > 0
    if batch.labels.ndim == 1:
        guesses = expected.view(len(batch.labels), -1).argmax(1)
        assert sums[SUM_NAMES.index("correct")] == (guesses == batch.labels).sum()
    loss.backward()
    check_gradients(ours, theirs)


@pytest.mark.parametrize("name", ["sentences", "choices"])
def test_twenty_steps_are_those_of_transformers(model, encoded, name):
    task, _, rows = encoded(name, times=5)
    ours = model(task, torch.float32)
    theirs = theirs_of(ours, task)
    source = TaskBatchSource(rows, batch_size=8, max_tokens=90, seed=5, layout="packed")
    optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-3) for each in (ours, theirs)]
    for number in range(20):
        step = source.step(number)
        losses = [task_loss(task, ours, batch, **step.counts)[0] for batch in step.micro_batches]
        assert number or len(losses) > 1, "micro-batches are part of what is tested"
        loss = torch.stack(losses).sum()
        _, expected = their_outputs(theirs, rows, source.items(number))
        assert loss.item() == pytest.approx(expected.item(), abs=1e-4)
        for each, optimizer in zip((loss, expected), optimizers, strict=True):
            optimizer.zero_grad()
            each.backward()
            optimizer.step()


@pytest.mark.parametrize("name", CASES)
def test_an_exported_folder_predicts_the_same_in_both_libraries(
    model, encoded, tokenizer, name, tmp_path
):
    task, examples, _ = encoded(name)
    task_name = NAMES.get(type(task), "multiple_choice")
    config = task_config(task_name, task)
    save_model_folder(tmp_path, model(task, torch.float32), tokenizer, "", extra_config=config)
    predictor = load_predictor(tmp_path)
    assert (predictor.task_name, predictor.task) == (task_name, task)
    predictions, rows = predictor.predict_examples(examples, max_tokens=50)
    device = torch.device("cpu")
    outputs, _ = compute_all_outputs(task, predictor.model, rows, device=device)
    auto = getattr(transformers, task.architecture.replace("Bert", "AutoModel"))
    theirs, info = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert type(theirs).__name__ == task.architecture and not any(info.values()), info
    assert theirs.config.problem_type == task.problem_type
    with torch.no_grad():
        expected = their_outputs(theirs, rows, np.arange(rows.num_items))[0].numpy()
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    labels = theirs.config.id2label
    if name == "single":
        found = [labels[index] for index in expected.argmax(1)]
        assert found == [prediction["label"] for prediction in predictions]
    elif name == "choices":
        chosen = expected.reshape(len(examples), -1).argmax(1).tolist()
        assert [prediction["choice"] for prediction in predictions] == chosen
    elif isinstance(task, Tagging):  # ours begin each entity with B-; the types are theirs
        types = [labels[index][2:] for index in expected[np.argsort(rows.notes["words"])].argmax(1)]
        assert [tag[2:] for prediction in predictions for tag in prediction["tags"]] == types
