"""Reference statistics of training examples for drift detection: tokens, lengths and labels."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from tokenizers import Tokenizer

from bert_core.tasks.classification import Classification
from bert_core.tasks.encoded_rows import EncodedRows
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.tag_schemes import OUTSIDE, split_tag
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Task
from bert_core.tokenizer import special_token_ids
from bert_core.training_statistics import Lengths, TrainingStatistics, count_tokens

ANSWER, NO_ANSWER = "answer", "no_answer"
"""The labels of questions that may have no answer."""


def statistics_of_examples(
    task: Task, examples: Sequence[Any], rows: EncodedRows, tokenizer: Tokenizer
) -> TrainingStatistics:
    """The statistics of examples, one at least, and of the rows made of them."""
    unknown, known = count_tokens(rows, special_token_ids(tokenizer).unk)
    return TrainingStatistics(
        num_examples=len(examples),
        unknown_token_share=unknown / max(unknown + known, 1),
        lengths=Lengths.of(rows.num_tokens),
        label_shares=_label_shares(task, examples),
    )


def label_names(task: Task | None) -> tuple[str, ...]:
    """Returns the labels whose shares are recorded; none for a task without labels.

    Of words they are the types of entities and O, or plain tags; of questions, where there may be
    no answer, whether there is one.
    """
    if isinstance(task, Classification):
        return () if task.kind == "regression" else task.labels
    if isinstance(task, Tagging):
        return tuple(dict.fromkeys((OUTSIDE, *map(_type_of, task.labels))))
    if isinstance(task, QuestionAnswering) and task.no_answer:
        return (ANSWER, NO_ANSWER)
    return ()


def _label_shares(task: Task, examples: Sequence[Any]) -> dict[str, float] | None:
    names = label_names(task)
    counts = Counter(_labels_of(task, examples)) if names else Counter[str]()
    total = sum(counts[name] for name in names)
    return {name: counts[name] / total for name in names} if total else None


def _labels_of(task: Task, examples: Sequence[Any]) -> Iterable[str]:
    if isinstance(task, Tagging):
        return map(_type_of, chain.from_iterable(example.tags or () for example in examples))
    if isinstance(task, QuestionAnswering):
        return (
            ANSWER if example.answers else NO_ANSWER
            for example in examples
            if example.answers is not None
        )
    answers = (example.answer for example in examples if example.answer is not None)
    return chain.from_iterable(
        answer if isinstance(answer, tuple) else (answer,) for answer in answers
    )


def _type_of(tag: str) -> str:
    return split_tag(tag)[1] or OUTSIDE
