"""Made-up predictions of every kind of task, some right and some wrong."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.multiple_choice import Choices, MultipleChoice
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Answer, Question
from bert_core.tasks.tag_schemes import Tags
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Task


@dataclass
class Evaluated:
    """A task with examples and a model's predictions for them."""

    task: Task
    predictions: list[dict[str, Any]]
    examples: list[Any]

    @property
    def of(self):
        return self.task, self.predictions, self.examples


LABELS = ("no", "yes")
KINDS = ["two labels", "five labels", "sets", "numbers", "tags", "choices", "squad", "squad v2"]


def distribution(random, names, chosen):
    """Scores that add up to 1, of which the chosen one's is the highest."""
    scores = random.dirichlet(np.ones(len(names)))
    best = int(scores.argmax())
    index = names.index(chosen)
    scores[[best, index]] = scores[[index, best]]
    return dict(zip(names, scores.tolist(), strict=True))


def labelled(random, num, names, accuracy=0.8):
    examples, predictions = [], []
    for number in range(num):
        gold = names[int(random.integers(len(names)))]
        right = random.random() < accuracy
        found = gold if right else names[int(random.integers(len(names)))]
        words = " ".join(["word"] * int(random.integers(1, 30)))
        columns = {"source": f"s{number % 3}", "size": str(number)}
        examples.append(Text(words, None, gold, f"file:{number}", columns))
        predictions.append({"label": found, "scores": distribution(random, names, found)})
    return Evaluated(Classification(labels=tuple(names)), predictions, examples)


def label_sets(random, num):
    names = ("a", "b", "c", "d")
    examples, predictions = [], []
    for _ in range(num):
        gold = tuple(name for name in names if random.random() < 0.3)
        scores = {
            name: float(random.beta(4, 2) if name in gold else random.beta(2, 4)) for name in names
        }
        found = [name for name in names if scores[name] > 0.5]
        examples.append(Text("some words", None, gold))
        predictions.append({"labels": found, "scores": scores})
    return Evaluated(Classification(kind="multiple", labels=names), predictions, examples)


def numbers(random, num):
    gold = np.round(random.uniform(0, 5, num), 1)  # with ties
    found = np.round(gold + random.normal(0, 1, num), 1)
    examples = [Text("one", "other", float(value)) for value in gold]
    predictions = [{"value": float(value)} for value in found]
    return Evaluated(Classification(kind="regression"), predictions, examples)


def tags(random, num):
    names = ["O", "O", "O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    drawn = [
        [names[index] for index in random.integers(len(names), size=random.integers(1, 12))]
        for _ in range(num)
    ]
    changed = [
        [tag if random.random() < 0.8 else names[int(random.integers(len(names)))] for tag in each]
        for each in drawn
    ]
    examples, predictions = [], []
    for gold, found in zip(drawn, changed, strict=True):
        gold, found = (Tags.of([each]) for each in (gold, found))
        words = [f"w{index}" for index in range(len(gold.types))]
        examples.append(TaggedSentence(words, gold.strings("iob2"), scheme="bioes"))
        begins, ends, types = (entity.tolist() for entity in found.entities)
        entities = [
            {"type": found.type_names[kind], "start": begin, "end": end, "score": random.random()}
            for begin, end, kind in zip(begins, ends, types, strict=True)
        ]
        # Written in the scheme of the data, as the task does.
        predictions.append({"tags": found.strings("bioes"), "entities": entities})
    labels = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    return Evaluated(Tagging(labels=labels), predictions, examples)


def choices(random, num):
    examples, predictions = [], []
    for _ in range(num):
        scores = random.dirichlet(np.ones(4))
        found = int(scores.argmax())
        gold = found if random.random() < 0.7 else int(random.integers(4))
        examples.append(Choices("a context", ("one", "two", "three", "four"), gold))
        predictions.append({"choice": found, "scores": scores.tolist()})
    return Evaluated(MultipleChoice(), predictions, examples)


def questions(random, num, *, no_answer):
    words = ["the", "old", "river", "of", "gold", "seen", "in", "1900", "by", "Anna"]
    examples, predictions = [], []

    def phrase():
        begin = int(random.integers(8))
        return " ".join(words[begin : begin + int(random.integers(1, 4))])

    for number in range(num):
        context = f"{' '.join(words)} {number // 5}"  # five questions each
        golds = [] if no_answer and random.random() < 0.4 else [phrase(), phrase()]
        best = golds[0] if golds and random.random() < 0.5 else phrase()
        null_score = float(np.round(random.normal(-1 if golds else 1), 1))  # with ties
        text = "" if no_answer and null_score > 0 else best
        answers = tuple(Answer(gold, context.index(gold)) for gold in golds)
        question = ["When was it?", "In what year?", "How many were there?"][number % 3]
        examples.append(Question(str(number), question, context, answers, where=f"file:{number}"))
        if number % 4 == 0:
            text, best, null_score = "", "", -9.0  # there was nothing to choose from
        n_best = [{"text": best, "start": 0, "end": 0, "score": 1.0, "probability": 0.6}]
        predictions.append(
            {
                "text": text,
                "start": 0,
                "end": len(text),
                "score": 1.0,
                "probability": float(random.uniform()),
                "null_score": null_score,
                "n_best": n_best,
            }
        )
    return Evaluated(QuestionAnswering(no_answer=no_answer), predictions, examples)


MAKERS = {
    "two labels": lambda random, num: labelled(random, num, list(LABELS)),
    "five labels": lambda random, num: labelled(random, num, list("abcde")),
    "sets": label_sets,
    "numbers": numbers,
    "tags": tags,
    "choices": choices,
    "squad": lambda random, num: questions(random, num, no_answer=False),
    "squad v2": lambda random, num: questions(random, num, no_answer=True),
}
