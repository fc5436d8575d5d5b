"""What does a parameter do, and of what type is it? Question answering without a download.

The answers are stretches of docstrings, from the lists of parameters in them.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from bert_core.tasks.documentation.definitions import (
    Definition,
    Module,
    divide_by_split,
    examples_of,
    modules_of,
    packages_of,
    some_of,
)
from bert_core.tasks.documentation.passages import passages, without_markup
from bert_core.tasks.documentation.sections import HEADERS, Entry, parameter_entries
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Answer, Question
from bert_core.text.encoding import split_sentences

WHAT_IT_DOES = "What does the parameter {parameter} of {function} do?"
OF_WHAT_TYPE = "Of what type is the parameter {parameter} of {function}?"

_LONGEST_CONTEXT = 350
_LONGEST_SUMMARY = 150
_MOST_WORDS = {WHAT_IT_DOES: 30, OF_WHAT_TYPE: 10}
_FEWEST_WORDS = {WHAT_IT_DOES: 3, OF_WHAT_TYPE: 1}
_PER_MODULE = 24


class AnswersInDocstring(QuestionAnswering):
    """Answers questions about parameters with the words of the docstring."""

    unused: ClassVar[tuple[str, ...]] = ("labels", "no_answer", "null_threshold")

    max_length: int = Field(default=128, ge=8, description="longest row, in tokens")
    max_examples: int = Field(default=4000, ge=100, description="questions to train with")

    def examples(self, data: str | Path, split: str) -> list[Question]:
        """Questions about the documentation of the packages of `docs://…`."""
        return examples_of(_questions_by_split(packages_of(data), self.max_examples), split, data)


@lru_cache(maxsize=2)
def _questions_by_split(packages: tuple[str, ...], max_examples: int) -> dict[str, list[Question]]:
    return divide_by_split(_questions(packages), max_examples)


def _questions(packages: tuple[str, ...]) -> Iterator[tuple[Module, str, Question]]:
    for module in modules_of(packages):
        questions = [
            question
            for definition in module.definitions(HEADERS)
            for question in questions_about(definition)
        ]
        for each in some_of(questions, _PER_MODULE):
            yield module, each.context.lower(), each


def questions_about(definition: Definition) -> Iterator[Question]:
    """Questions about the documented parameters that are arguments of the function."""
    arguments = {each.arg for each in definition.arguments}
    docstring = without_markup(definition.docstring)
    entries = [each for each in parameter_entries(docstring) if each.name in arguments]
    summary = next(passages(docstring), "")
    if summary.startswith(":") or len(summary) > _LONGEST_SUMMARY:
        summary = ""
    for context, placed in _contexts(summary, entries):
        for entry, start in placed:
            for question, span in (
                (WHAT_IT_DOES, _first_sentence(entry)),
                (OF_WHAT_TYPE, entry.type),
            ):
                text = entry.text[slice(*span)] if span else ""
                if span and _FEWEST_WORDS[question] <= len(text.split()) <= _MOST_WORDS[question]:
                    yield _question(
                        question, definition, entry, context, Answer(text, start + span[0])
                    )


def _contexts(summary: str, entries: list[Entry]) -> Iterator[tuple[str, list[tuple[Entry, int]]]]:
    """As many entries as a context takes, after the summary; with each its first character."""
    context, placed = summary, []
    for entry in entries:
        if placed and len(context) + len(entry.text) > _LONGEST_CONTEXT:
            yield context, placed
            context, placed = summary, []
        placed.append((entry, len(context) + 1))
        context = f"{context}\n{entry.text}"
    if placed:
        yield context, placed


def _first_sentence(entry: Entry) -> tuple[int, int] | None:
    """Where the first sentence of a description stands, without its full stop."""
    if entry.description is None:
        return None
    start, end = entry.description
    stop = start
    for sentence in split_sentences(entry.text[start:end]):
        stop = entry.text.index(sentence, stop) + len(sentence)
        if entry.text[stop : stop + 1] in ("", " "):
            break  # else the full stop is one within a name
    return start, start + len(entry.text[start:stop].rstrip(". "))


def _question(
    question: str, definition: Definition, entry: Entry, context: str, answer: Answer
) -> Question:
    kind = "what" if question == WHAT_IT_DOES else "type"
    return Question(
        id=f"{definition.where}:{entry.name}:{kind}",
        question=question.format(parameter=entry.name, function=definition.name),
        context=context,
        answers=(answer,),
        title=definition.module.name,
        where=definition.where,
    )
