"""Tasks without a download, built from docstrings of installed packages.

- `docs_library`, classification: which library does a passage document? The library's own name is
  replaced in its passages, because it would give the answer away.
- `docs_parameters`, tagging: the parameters in a passage, labelled by the signature.
- `docs_answers`, question answering: what does a parameter do, and of what type is it?
"""

import ast
import builtins
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.docstrings import (
    HEADERS,
    Definition,
    Entry,
    Module,
    divide_by_split,
    evenly_spaced,
    examples_of,
    modules_of,
    packages_of,
    parameter_entries,
    passages,
    without_markup,
)
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Answer, Question
from bert_core.tasks.tables import TaskDataError
from bert_core.tasks.tag_schemes import OUTSIDE
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.tagging import Tagging
from bert_core.text.encoding import split_sentences

OTHER_NAMES = {
    "matplotlib": ("pyplot", "plt", "mpl"),
    "networkx": ("nx",),
    "numpy": ("np",),
    "pandas": ("pd",),
    "sklearn": ("scikit-learn", "scikit"),
    "tkinter": ("tk", "tcl"),
    "torch": ("pytorch",),
}
"""What libraries are called in text besides the name that is imported."""

INSTEAD = "library"
"""Replaces the name of the library in its passages."""

_PASSAGES_PER_MODULE = 40
_FEWEST = {"train": 60, "dev": 8, "test": 0}
"""A library with fewer passages than this is left out."""

_PROSE = re.compile(rf"(?:[A-Z]|{INSTEAD} )[^=|{{}}<>]*[.!?]")
_FEWEST_WORDS_OF_PROSE = 8


class LibraryOfPassage(Classification):
    """Classifies passages by the library they document."""

    unused: ClassVar[tuple[str, ...]] = (
        *("kind", "text_column", "second_column", "label_column"),
        *("header", "skip_ragged", "max_skipped"),
    )

    max_examples: int = Field(
        default=4000, ge=120, description="training passages, for all libraries together"
    )

    def examples(self, data: str | Path, split: str) -> list[Text]:
        """Passages of the documentation of the packages of `docs://…`.

        Raises `TaskDataError` where fewer than two libraries have passages enough.
        """
        splits = _passages_by_split(packages_of(data), self.max_examples)
        if len({each.answer for each in splits["train"]}) < 2:
            raise TaskDataError(
                "fewer than two libraries have enough documentation",
                str(data),
                "name more packages, or raise max_examples",
            )
        return examples_of(splits, split, data)


@lru_cache(maxsize=2)
def _passages_by_split(packages: tuple[str, ...], max_examples: int) -> dict[str, list[Text]]:
    modules: dict[str, list[Module]] = defaultdict(list)
    for module in modules_of(packages):
        modules[_library(module)].append(module)
    candidates = [name for name, some in modules.items() if _may_be_split(some)]
    candidates.sort(key=lambda name: (len(modules[name]), name))
    candidates = candidates[-(max_examples // _FEWEST["train"]) :]  # fewer, rather than all too few
    owners: dict[str, str] = {}
    splits: dict[str, list[Text]] = {split: [] for split in _FEWEST}
    for number, library in enumerate(candidates):  # what small ones leave, larger ones take
        room = (max_examples - len(splits["train"])) // (len(candidates) - number)
        found = divide_by_split(_labelled(library, modules[library]), room, owners)
        if all(len(found[split]) >= fewest for split, fewest in _FEWEST.items()):
            for split, texts in found.items():
                splits[split] += texts
    return splits


def _library(module: Module) -> str:
    """The label: the package, or of the standard library the package within it."""
    return module.name.partition(".")[0] if module.package == "stdlib" else module.package


def _may_be_split(modules: Iterable[Module]) -> bool:
    return {"train", "dev"} <= {module.split for module in modules}


def _labelled(library: str, modules: Iterable[Module]) -> Iterator[tuple[Module, str, Text]]:
    name = _name_pattern(library)
    for module in modules:
        found = {
            masked.lower(): Text(masked, None, library, definition.where, {"module": module.name})
            for definition in module.definitions()
            for passage in passages(definition.docstring)
            if _is_prose(masked := name.sub(INSTEAD, passage))
        }
        for text, example in evenly_spaced([*found.items()], _PASSAGES_PER_MODULE):
            yield module, text, example


def _name_pattern(library: str) -> re.Pattern[str]:
    """Matches the names of a library, alone, in the plural, or as a part of an identifier."""
    names = sorted((library, *OTHER_NAMES.get(library, ())), key=len, reverse=True)
    return re.compile(rf"(?<![A-Za-z])(?i:{'|'.join(map(re.escape, names))})(?:s\b|(?![a-z]))")


def _is_prose(passage: str) -> bool:
    """Whether a passage is made of sentences rather than of code, tables or lists."""
    return _PROSE.fullmatch(passage) is not None and len(passage.split()) >= _FEWEST_WORDS_OF_PROSE


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text))


BUILTIN_TYPES = _words("bool bytearray bytes dict float frozenset int list ndarray str tuple")
"""Without those that are mostly other words of English in a sentence: set, object, type …"""

EXCEPTIONS = frozenset(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
)

NOT_TYPES = _words("Annotated Any ClassVar Final Literal None Optional Self Type TypeVar Union")
"""Names in annotations that are no types, or words of English in a docstring."""

AMBIGUOUS = _words(
    """Exception Warning a all an and any are as at be but by can code copy each end first for from
    get given has if in is it its last left like may more new no not object of off old on one only
    or order other out over per range right same self set size so start step stop than that the then
    this time to type up use used value version was what when where which while will with"""
)
"""Words of English that are arguments, too: what they are shows only where they are marked."""

_RAISES = re.compile(rb"\bRaises?\b|:raises? ")
"""What is read of the modules: those that document exceptions, the rarest kind."""

_WORD = re.compile(r"\w+|[^\w\s]")
_QUOTES = frozenset("`*'\"")
_AFTER_A_HEAD = frozenset(":(,")
_BEFORE_A_PARAMETER = _words("If if When when argument arguments parameter parameters")
_AFTER_A_PARAMETER = _words("arg argument kwarg parameter") | {":", "="}
_LOOSE_TYPES = _words("bytes float list")
_BEFORE_A_TYPE = _words("a an as dict list of or tuple") | frozenset(":([,")
_AFTER_A_TYPE = _words("object objects of or") | frozenset("[")
_NUM_WORDS = range(4, 81)
_LEAST_ALPHABETIC = 0.6
_TAGGED_PER_MODULE = {"EXC": 12, "PARAM": 20, "TYPE": 8, "": 4}
"""Passages of a module at most, by the rarest kind in them, of which exceptions are the first."""


class ParametersInDocstring(Tagging):
    """Finds parameters (PARAM), types (TYPE) and exceptions (EXC) in passages of docstrings."""

    unused: ClassVar[tuple[str, ...]] = (
        *("word_column", "tag_column", "columns", "document_column", "comment", "tag_names"),
        *("scheme", "invalid_tags", "document_context"),
    )

    max_examples: int = Field(default=4000, ge=100, description="training passages")

    def examples(self, data: str | Path, split: str) -> list[TaggedSentence]:
        """Passages of the documentation of the packages of `docs://…`."""
        return examples_of(_tagged_by_split(packages_of(data), self.max_examples), split, data)


@dataclass(frozen=True)
class Names:
    """Holds the names of each kind in the syntax tree of a definition."""

    parameters: frozenset[str]
    types: frozenset[str]
    exceptions: frozenset[str]

    @classmethod
    def of(cls, definition: Definition) -> "Names":
        """Collects arguments, types in annotations and the module, and raised exceptions."""
        function = definition.function
        parameters = frozenset(argument.arg for argument in definition.arguments)
        classes = frozenset(name for name in definition.classes if not name.islower())
        errors = frozenset(name for name in classes if _names_an_exception(name))
        if function is None:
            return cls(parameters, (BUILTIN_TYPES | classes) - errors, EXCEPTIONS | errors)
        annotations = [argument.annotation for argument in definition.arguments] + [
            function.returns
        ]
        annotated = {
            name for annotation in annotations if annotation for name in _names_in(annotation)
        }
        raised = {
            name
            for node in ast.walk(function)
            if isinstance(node, ast.Raise) and node.exc is not None
            for name in _raised(node.exc)
        }
        exceptions = EXCEPTIONS | errors | raised
        types = (BUILTIN_TYPES | classes | annotated) - exceptions - NOT_TYPES
        return cls(parameters, types, exceptions)

    def kind(self, word: str) -> str | None:
        """PARAM, TYPE or EXC; None for other words."""
        if word in self.parameters:
            return "PARAM"
        if word in self.types:
            return "TYPE"
        return "EXC" if word in self.exceptions or _names_an_exception(word) else None


def tag_words(passage: str, names: Names) -> tuple[list[str], list[str]] | None:
    """Returns words and IOB2 tags; None where the meaning of a word is ambiguous.

    A dotted name is one entity: of `np.ndarray` all three words.
    """
    found = list(_WORD.finditer(passage))
    words = [each.group() for each in found]
    tags = [OUTSIDE] * len(words)
    dots = [
        word == "." and 0 < index < len(words) - 1
        and found[index - 1].end() == each.start()
        and found[index + 1].start() == each.end()
        and words[index - 1].isidentifier() and words[index + 1].isidentifier()
        for index, (word, each) in enumerate(zip(words, found, strict=True))
    ] + [False]  # fmt: skip
    for index, word in enumerate(words):
        kind = names.kind(word)
        if kind is None:
            continue
        if dots[index - 1 if kind == "PARAM" else index + 1]:
            continue  # an attribute of something, or of a type
        begin = index
        while kind != "PARAM" and dots[begin - 1]:
            begin -= 2
        meant = begin < index or _is_meant(words, index, kind)
        if meant is None:
            return None
        if meant:
            tags[begin : index + 1] = [f"B-{kind}"] + [f"I-{kind}"] * (index - begin)
    return words, tags


def _is_meant(words: list[str], index: int, kind: str) -> bool | None:
    """Whether a word refers to the entity of this name; None where that is ambiguous.

    A plain word of English, such as `data`, is meant only where the text sets it apart.
    """
    word = words[index]
    before = words[index - 1] if index else ""
    after = words[index + 1] if index + 1 < len(words) else ""
    starts = before in ("", ".", "!", "?", ":")
    if before in _QUOTES or after in _QUOTES:
        return True
    if kind == "PARAM":
        if (starts and after in _AFTER_A_HEAD) or after in _AFTER_A_PARAMETER:
            return True
        if word in AMBIGUOUS:
            return None
        is_plain = word.isalpha() and word.islower() and len(word) > 1
        return not is_plain or before in _BEFORE_A_PARAMETER
    if word in AMBIGUOUS or (starts and after not in _AFTER_A_HEAD and word.istitle()):
        return None
    return word not in _LOOSE_TYPES or before in _BEFORE_A_TYPE or after in _AFTER_A_TYPE


@lru_cache(maxsize=2)
def _tagged_by_split(
    packages: tuple[str, ...], max_examples: int
) -> dict[str, list[TaggedSentence]]:
    return divide_by_split(_tagged(packages), max_examples)


def _tagged(packages: tuple[str, ...]) -> Iterator[tuple[Module, str, TaggedSentence]]:
    for module in modules_of(packages):
        by_kind: dict[str, dict[str, TaggedSentence]] = {kind: {} for kind in _TAGGED_PER_MODULE}
        for definition in module.definitions(_RAISES):
            if isinstance(definition.node, ast.Module):
                continue
            names = Names.of(definition)
            for passage in passages(definition.docstring):
                tagged = tag_words(passage, names)
                if tagged is not None and _is_text(*tagged):
                    kinds = {tag[2:] for tag in tagged[1]}
                    kind = next(each for each in _TAGGED_PER_MODULE if each in kinds)
                    columns = {"module": module.name}
                    sentence = TaggedSentence(*tagged, file=definition.where, columns=columns)
                    by_kind[kind].setdefault(" ".join(sentence.words).lower(), sentence)
        for kind, found in by_kind.items():
            for text, sentence in evenly_spaced([*found.items()], _TAGGED_PER_MODULE[kind]):
                yield module, text, sentence


def _is_text(words: list[str], tags: list[str]) -> bool:
    """Whether a passage is neither code nor the middle of a sentence nor very long."""
    begins = words[:1] and (words[0][0].isupper() or words[0] == "`" or tags[0] != OUTSIDE)
    alphabetic = sum(word.isalpha() for word in words) >= _LEAST_ALPHABETIC * len(words)
    return bool(begins) and alphabetic and len(words) in _NUM_WORDS


def _names_in(annotation: ast.AST) -> Iterator[str]:
    """The names in an annotation, of dotted ones the last, those in quoted parts too."""
    if isinstance(annotation, ast.Name):
        yield annotation.id
    elif isinstance(annotation, ast.Attribute):
        yield annotation.attr
    elif isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        yield from re.findall(r"[A-Z]\w+", annotation.value)
    else:
        for part in ast.iter_child_nodes(annotation):
            yield from _names_in(part)


def _raised(expression: ast.expr) -> Iterator[str]:
    called = expression.func if isinstance(expression, ast.Call) else expression
    name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
    if name[:1].isupper():
        yield name


def _names_an_exception(name: str) -> bool:
    return re.fullmatch(r"_*[A-Z]\w+(Error|Exception|Warning)", name) is not None


WHAT_IT_DOES = "What does the parameter {parameter} of {function} do?"
OF_WHAT_TYPE = "Of what type is the parameter {parameter} of {function}?"

_LONGEST_CONTEXT = 350
_LONGEST_SUMMARY = 150
_MOST_WORDS = {WHAT_IT_DOES: 30, OF_WHAT_TYPE: 10}
_FEWEST_WORDS = {WHAT_IT_DOES: 3, OF_WHAT_TYPE: 1}
_QUESTIONS_PER_MODULE = 24


class AnswersInDocstring(QuestionAnswering):
    """Answers questions about parameters with the words of the docstring."""

    unused: ClassVar[tuple[str, ...]] = ("labels", "no_answer", "null_threshold")

    max_length: int = Field(default=128, ge=8, description="longest row")
    max_examples: int = Field(default=4000, ge=100, description="training questions")

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
        for each in evenly_spaced(questions, _QUESTIONS_PER_MODULE):
            yield module, each.context.lower(), each


def questions_about(definition: Definition) -> Iterator[Question]:
    """Questions about the documented parameters that are arguments of the function."""
    arguments = {argument.arg for argument in definition.arguments}
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
    """The span of a description's first sentence, without its full stop."""
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
