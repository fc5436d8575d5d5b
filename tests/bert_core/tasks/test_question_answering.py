"""Question answering: parity with transformers, and answers as they stand in the context."""

import json

import numpy as np
import pytest
import torch
from parity import random_model

from bert_core.tasks.catalog import TASKS
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Answer, Question, read_squad
from bert_core.tasks.tables import TaskDataError
from bert_core.tasks.task import task_loss
from bert_core.tokenizer_training import train_wordpiece

WORDS = ["the", "cat", "sat", "on", "a", "mat", "dogs", "run", "far", "away", "slowly"]
SHORT = QuestionAnswering(max_length=24, stride=7, no_answer=True)


@pytest.fixture(scope="module")
def tokenizer():
    return train_wordpiece([" ".join(WORDS)] * 3, 120, lowercase=True)


def some_questions(count=6):
    """Questions about contexts of many lengths; every third has no answer, one is not labelled."""
    choose = np.random.default_rng(3)
    questions = []
    for number in range(count):
        words = choose.choice(WORDS, size=choose.integers(4, 40))
        context = " ".join(words)
        begin = int(choose.integers(len(words) - 2))
        answer = Answer(" ".join(words[begin : begin + 2]), len(" ".join([*words[:begin], ""])))
        text = " ".join(choose.choice(WORDS, size=choose.integers(2, 9))) + "?"
        answers = None if number == 4 else () if number % 3 == 2 else (answer,)
        questions.append(Question(str(number), text, context, answers))
    return questions


def test_right_is_a_window_with_start_and_end_right(tokenizer):
    rows = SHORT.encode(some_questions(), tokenizer)
    items = np.arange(rows.num_items)
    batch = rows.batch(items, "packed")
    outputs = torch.zeros(len(rows.places), 2)
    begins = np.cumsum(rows.place_counts) - rows.place_counts
    known = np.flatnonzero(rows.label_counts)
    for item in known:
        for part in (0, 1):
            outputs[begins[item] + rows.labels[item, part], part] = 9.0
    _, correct = SHORT.loss(outputs, batch)
    assert correct == len(known) < len(items)
    wrong = begins[known[0]] + rows.labels[known[0], 1]
    outputs[wrong, 1] = -9.0
    assert SHORT.loss(outputs, batch)[1] == len(known) - 1


def test_windows_without_labels_cost_nothing(small_config, tokenizer):
    rows = SHORT.encode(some_questions(), tokenizer)
    items = np.flatnonzero(rows.label_counts == 0)
    assert len(items)
    ours = random_model(small_config, SHORT, vocab_size=120, max_position_embeddings=64)
    loss, sums = task_loss(SHORT, ours, rows.batch(items, "packed"), num_labels=3)
    loss.backward()
    assert loss.item() == 0 and sums.tolist() == [0, 0, 0]
    assert all(parameter.grad.isfinite().all() for parameter in ours.parameters())


CONTEXT = "Ada Lovelace wrote in 1843 notes; Babbage wrote none. Ada died in 1852, Babbage in 1871."


def outputs_for(rows, scores):
    """Outputs that are -5 but at the characters of given (start, end): score, in every window.

    A key of None is [CLS].
    """
    outputs = np.full((len(rows.places), 2), -5.0, dtype=np.float32)
    place = 0
    for row, length in enumerate(rows.lengths):
        first = rows.notes["first_token"][row]
        offsets = rows.notes["offsets"][first : first + length - rows.first_lengths[row] - 1]
        begin = place + rows.first_lengths[row]
        for span, score in scores.items():
            if span is None:
                outputs[place] = score / 2
                continue
            outputs[begin + np.flatnonzero(offsets[:, 0] == span[0]), 0] = score / 2
            outputs[begin + np.flatnonzero(offsets[:, 1] == span[1]), 1] = score / 2
        place += length
    return outputs


def characters(text, context=CONTEXT):
    return context.index(text), context.index(text) + len(text)


def decoded(task, tokenizer, scores, context=CONTEXT):
    question = [Question("q", "When were notes written?", context, None)]
    rows = task.encode(question, tokenizer)
    (prediction,) = task.decode(outputs_for(rows, scores), rows, question)
    return prediction


@pytest.mark.parametrize("max_length", [384, 24])
def test_the_best_span_is_the_answer(uncased, max_length):
    task = QuestionAnswering(max_length=max_length, stride=5, n_best=4)
    scores = {None: 5.0, characters("in 1843"): 8.0, characters("1852"): 2.0}
    found = decoded(task, uncased, scores)
    start, end = characters("in 1843")
    assert (found["text"], found["start"], found["end"]) == ("in 1843", start, end)
    assert (found["score"], found["null_score"]) == (8.0, -3.0)
    assert [each["text"] for each in found["n_best"][:1]] == ["in 1843"]
    assert len(found["n_best"]) == 4
    assert sum(each["probability"] for each in found["n_best"]) == pytest.approx(1)
    scores_found = [each["score"] for each in found["n_best"]]
    assert scores_found == sorted(scores_found, reverse=True)
    json.dumps(found, allow_nan=False)


def test_neither_the_question_nor_too_long_a_span_is_an_answer(uncased):
    scores = {(0, CONTEXT.index(" died")): 20.0, characters("1852"): 6.0, characters("1871"): 4.0}
    task = QuestionAnswering(max_answer_length=5)
    question = [Question("q", "When were notes written?", CONTEXT, None)]
    rows = task.encode(question, uncased)
    outputs = outputs_for(rows, scores)
    outputs[1 : rows.first_lengths[0]] = 50.0
    outputs[-1] = 50.0
    (found,) = task.decode(outputs, rows, question)
    assert found["text"] == "1852"
    for each in found["n_best"]:
        assert CONTEXT[each["start"] : each["end"]] == each["text"] != ""
        assert len(uncased.encode(each["text"], add_special_tokens=False)) <= 5


def test_no_answer_is_a_matter_of_the_threshold(uncased):
    scores = {None: 9.0, characters("1852"): 8.0}
    task = QuestionAnswering(no_answer=True, n_best=3)
    found = decoded(task, uncased, scores)
    assert (found["text"], found["start"], found["end"]) == ("", 0, 0)
    assert (found["score"], found["null_score"]) == (9.0, 1.0)
    assert [each["text"] for each in found["n_best"][:2]] == ["", "1852"]
    assert found["probability"] == found["n_best"][0]["probability"]
    lenient = task.model_copy(update={"null_threshold": 1.0})
    assert decoded(lenient, uncased, scores)["text"] == "1852"
    certain = QuestionAnswering(n_best=3)
    assert decoded(certain, uncased, scores)["text"] == "1852"
    assert "" not in [each["text"] for each in decoded(certain, uncased, scores)["n_best"]]


def test_null_is_the_least_of_the_windows(uncased):
    task = QuestionAnswering(no_answer=True, max_length=24, stride=5)
    question = [Question("q", "When were notes written?", CONTEXT, None)]
    rows = task.encode(question, uncased)
    outputs = outputs_for(rows, {characters("1852"): 8.0})
    begins = np.cumsum(rows.place_counts) - rows.place_counts
    outputs[begins] = np.linspace(9, 2, len(begins))[:, None]
    (found,) = task.decode(outputs, rows, question)
    assert found["null_score"] == pytest.approx(4 - 8)


def test_an_answer_starts_in_the_window_that_sees_it_best(uncased):
    task = QuestionAnswering(max_length=24, stride=5, n_best=2)
    question = [Question("q", "When were notes written?", CONTEXT, None)]
    rows = task.encode(question, uncased)
    outputs = outputs_for(rows, {characters("1871"): 6.0})
    first = rows.first_lengths[0]
    last_of_window = rows.place_counts[0] - 2  # the second window sees it with more on its right
    outputs[last_of_window, 0] = 50.0
    (found,) = task.decode(outputs, rows, question)
    assert found["text"] == "1871"
    outputs[first] = 50.0  # the context's first token, which no other window sees
    (found,) = task.decode(outputs, rows, question)
    assert (found["text"], found["score"]) == ("Ada", 100.0)


def test_windows_overlap_by_default_whatever_their_length(uncased):
    question = [Question("q", "When were notes written?", CONTEXT * 4, None)]
    for task in (
        QuestionAnswering(max_length=32),
        TASKS["squad"].model_copy(update={"max_length": 32}),
        QuestionAnswering.model_validate(QuestionAnswering(max_length=32).written()),
        QuestionAnswering.model_validate({"max_length": 32, "overflow": "window"}),
    ):
        rows = task.encode(question, uncased)
        starts, lengths = rows.notes["window_start"], rows.lengths - rows.first_lengths - 1
        assert len(starts) > 2 and (starts[1:] < starts[:-1] + lengths[:-1] - 8).all()
    assert TASKS["squad"].written()["stride"] == 128, "the paper's"
    cut = QuestionAnswering.model_validate({"max_length": 32, "overflow": "right"})
    assert not QuestionAnswering.model_validate(cut.written()).ignored_options()


def test_a_space_alone_is_no_answer_and_ends_none(uncased):
    question = [Question("q", "When were notes written?", CONTEXT, None)]
    task = QuestionAnswering(n_best=3)
    rows = task.encode(question, uncased)
    outputs = outputs_for(rows, {characters("1843"): 4.0, characters("1843 notes"): 20.0})
    offsets = rows.notes["offsets"]
    of_notes = np.flatnonzero(offsets[:, 1] == characters("1843 notes")[1])[0]
    offsets[of_notes, 0] = offsets[of_notes, 1]  # as SentencePiece has it where a space is a token
    (found,) = task.decode(outputs, rows, question)
    assert found["text"].startswith("1843") and not found["text"].endswith((" ", "notes"))
    assert all(each["text"].strip() == each["text"] != "" for each in found["n_best"])


@pytest.mark.parametrize("no_answer", [True, False])
def test_nothing_to_choose_from(uncased, no_answer):
    task = QuestionAnswering(no_answer=no_answer)
    found = decoded(task, uncased, {None: 3.0}, context=" \u0000 ")
    assert (found["text"], found["start"], found["end"], found["null_score"]) == ("", 0, 0, 0.0)
    json.dumps(found, allow_nan=False)


def test_metrics_and_the_threshold_that_they_advise(uncased):
    task = QuestionAnswering(no_answer=True)
    questions = [
        Question("a", "When?", CONTEXT, (Answer("1852", characters("1852")[0]),)),
        Question("b", "When?", CONTEXT, ()),
    ]
    rows = task.encode(questions, uncased)
    alone = [task.encode([question], uncased) for question in questions]
    outputs = np.concatenate(
        [
            outputs_for(alone[0], {None: 7.0, characters("1852"): 5.0}),
            outputs_for(alone[1], {None: 9.0, characters("1871"): 5.0}),
        ]
    )
    predictions = task.decode(outputs, rows, questions)
    metrics = task.metrics(predictions, questions)
    assert (metrics["f1"], metrics["has_answer_f1"], metrics["no_answer_f1"]) == (0.5, 0.0, 1.0)
    assert (metrics["best_f1"], metrics["best_f1_threshold"]) == (1.0, 2.0)
    assert task.criterion in metrics
    tuned = task.tuned(predictions, questions)
    assert tuned.null_threshold == 2.0
    assert tuned.metrics(tuned.decode(outputs, rows, questions), questions)["f1"] == 1.0
    old = QuestionAnswering()
    assert old.tuned(predictions, questions) is old


@pytest.mark.parametrize(
    ("gold", "texts", "best"), [("", ["", ""], 1.0), ("1852", ["1852", "1852"], 1.0)]
)
@pytest.mark.parametrize("null", [-20.0, 0.0, 20.0])
def test_the_tuned_task_answers_never_or_always_where_that_is_best(
    uncased, gold, texts, best, null
):
    task = QuestionAnswering(no_answer=True)
    answers = (Answer(gold, characters(gold)[0]),) if gold else ()
    questions = [Question(name, "When?", CONTEXT, answers) for name in "ab"]
    rows = task.encode(questions, uncased)
    alone = [task.encode([question], uncased) for question in questions]
    scores = [{None: 5.0 + null + more, characters("1852"): 5.0} for more in (0.0, 0.5)]
    outputs = np.concatenate(list(map(outputs_for, alone, scores)))
    predictions = task.decode(outputs, rows, questions)
    tuned = task.tuned(predictions, questions)
    found = tuned.decode(outputs, rows, questions)
    metrics = tuned.metrics(found, questions)
    assert [each["text"] for each in found] == texts
    assert metrics["f1"] == metrics["best_f1"] == best
    # Outputs of another machine differ a little, and the answers should not.
    if not gold:
        assert [each["text"] for each in tuned.decode(outputs - 1e-3, rows, questions)] == texts


def test_a_task_without_null_answers_has_the_metrics_of_v1(uncased):
    old = QuestionAnswering()
    questions = [Question("a", "When?", CONTEXT, (Answer("1852", characters("1852")[0]),))]
    rows = old.encode(questions, uncased)
    outputs = outputs_for(rows, {None: 7.0, characters("1852"): 5.0})
    predictions = old.decode(outputs, rows, questions)
    assert old.criterion in old.metrics(predictions[:1], questions[:1])


def test_reads_files_of_either_version(tmp_path):
    record = {"id": "q7", "question": "Who?", "answers": []}
    data = {"data": [{"title": "t", "paragraphs": [{"context": "Ada.", "qas": [record]}]}]}
    (tmp_path / "dev-v2.0.json").write_text(json.dumps(data))
    assert TASKS["squad_v2"].examples(tmp_path, "dev")[0].answers == ()
    with pytest.raises(TaskDataError, match="no file of the dev split"):
        TASKS["squad"].examples(tmp_path, "dev")
    with pytest.raises(TaskDataError, match="without an answer: .*question q7.*squad_v2"):
        TASKS["squad"].examples(tmp_path / "dev-v2.0.json", "dev")


def test_the_gold_answers_of_a_dev_set_come_back(shared_data, uncased):
    """Questions of SQuAD 1.1: logits at the gold tokens, decoded, are the gold text.

    All but those that begin or end inside of a token ("8" in "18") or have over 30 tokens.
    """
    task = QuestionAnswering(n_best=1)
    questions = read_squad(shared_data / "squad" / "dev-v1.1.json")[::4]
    rows = task.encode(questions, uncased)
    assert not rows.lost
    outputs = np.zeros((len(rows.places), 2), dtype=np.float32)
    begins = np.cumsum(rows.place_counts) - rows.place_counts
    holds = rows.labels[:, 0] > 0
    assert set(rows.example[holds]) == set(range(len(questions))), "some window has each answer"
    for part in (0, 1):
        outputs[begins[holds] + rows.labels[holds, part], part] = 9.0
    predictions = task.decode(outputs, rows, questions)
    longest = np.zeros(len(questions), dtype=np.int64)
    np.maximum.at(longest, rows.example, np.diff(rows.labels, axis=1)[:, 0] + 1)
    not_same, too_long = 0, 0
    for question, found, length in zip(questions, predictions, longest, strict=True):
        gold = question.answers[0]
        if found["text"] == gold.text:
            assert found["score"] == 18.0
        elif length > task.max_answer_length:
            too_long += 1
        else:
            not_same += 1
            whole = range(found["start"], found["end"] + 1)
            assert gold.start in whole and gold.start + len(gold.text) in whole
            before = question.context[found["start"] : gold.start]
            after = question.context[gold.start + len(gold.text) : found["end"]]
            assert " " not in before + after, "no more than the rest of a token"
    assert (not_same, too_long) == (6, 3)


def test_reads_squads_columns_from_the_hub_and_from_tables(hub_copy):
    from datasets import List, Value

    features = {name: Value("string") for name in ("id", "title", "context", "question")}
    features["answers"] = {"text": List(Value("string")), "answer_start": List(Value("int32"))}
    columns = {
        "id": ["1", "2"],
        "title": ["Ada"] * 2,
        "context": ["Ada wrote."] * 2,
        "question": ["Who?", "When?"],
        "answers": [{"text": ["Ada"], "answer_start": [0]}, {"text": [], "answer_start": []}],
    }
    typed = hub_copy(features, validation=columns)
    folder = typed.removeprefix("hf://").removesuffix(":small")
    for data in (typed, folder):
        first, second = TASKS["squad_v2"].examples(data, "dev")
        assert first.answers == (Answer("Ada", 0),) and second.answers == ()
        assert first.context is second.context
        with pytest.raises(TaskDataError, match="a question without an answer: .*row 1 .*squad_v2"):
            TASKS["squad"].examples(data, "dev")
