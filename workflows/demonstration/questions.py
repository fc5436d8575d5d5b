"""What the demo asks the models that it trained: dev examples go in; a file of questions comes out.

No fine-tuning has learned from them. They are chosen by how well they fit on a line, never by what
is answered.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from bert_core.disk import write_atomically
from bert_core.errors import UserError

if TYPE_CHECKING:
    from bert_core.tasks.classification import Text
    from bert_core.tasks.squad import Question
    from bert_core.tasks.tagged_sentences import TaggedSentence
    from workflows.finetuning.job import FinetuningJob

FILE = "questions.json"
MASK = "[MASK]"

_LINE = 44
"""Characters of a text that fits on a line, with a few words before it."""
_PLAIN_WORD = re.compile(r"[a-z]{3,}")
_PROSE = re.compile(r"[\w ,'-]+[.]?")


class DemoQuestions(BaseModel):
    """The runs whose models are asked, by their names, and what is asked about, with what is true.

    `sentence` follows `before`, and `elsewhere` does not; `beside` is of the same library as
    `passage`, `elsewhere` of `other_library`. `missing` is what `masked` has a [MASK] for.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    runs: dict[str, str]
    passage: str
    library: str
    beside: str
    elsewhere: str
    other_library: str
    before: str
    sentence: str
    masked: str
    missing: str
    described: str
    entities: list[tuple[str, str]]
    question: str
    context: str
    answer: str


def questions_about(jobs: Mapping[str, "FinetuningJob"]) -> DemoQuestions:
    """Chooses what to ask from the dev examples of the runs of docs_library and the others."""
    library, parameters, answers = (jobs[name] for name in ("library", "parameters", "answers"))
    tagged = described_parameters(parameters.data.dev.examples)
    asked = question_of_a_line(answers.data.dev.examples)
    masked, missing = with_a_mask(
        best_passage(library.data.dev.examples).first, library.encoder.tokenizer.get_vocab()
    )
    return DemoQuestions(
        runs={name: job.folder.name for name, job in jobs.items()},
        **passages_of_libraries(library.data.dev.examples),
        masked=masked,
        missing=missing,
        described=original_text(tagged, parameters.settings.data),
        entities=entities_of(tagged),
        question=asked.question,
        context=asked.context,
        answer=asked.answers[0].text if asked.answers else "",
    )


def write_questions(questions: DemoQuestions, folder: Path) -> None:
    """Writes them beside the demo's table."""
    write_atomically(folder / FILE, questions.model_dump_json(indent=1))


def read_questions(folder: Path) -> DemoQuestions:
    """What `write_questions` wrote; raises `UserError` where it is damaged."""
    path = folder / FILE
    try:
        return DemoQuestions.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            "cannot read what the demo asks", str(path), "remove the file: it is made again"
        ) from error


def unfitness(*texts: str) -> tuple[int, int]:
    """How hard it is to read texts on a line each: how many have signs in them, what is too much.

    Or too little. Of examples that are alike in this the first is chosen.
    """
    unreadable = sum(_PROSE.fullmatch(text) is None for text in texts)
    return unreadable, sum(abs(len(text) - _LINE) for text in texts)


def best_passage(examples: Sequence["Text"]) -> "Text":
    """The passage that fits on a line best."""
    return min(examples, key=lambda each: unfitness(each.first))


def passages_of_libraries(examples: Sequence["Text"]) -> dict[str, str]:
    """Two passages of a library, one of another, and two sentences that follow each other."""
    first = best_passage(examples)
    same = [
        example for example in examples if example.answer == first.answer and example is not first
    ]
    others = [example for example in examples if example.answer != first.answer]
    elsewhere = best_passage(others or examples)
    before, sentence = two_sentences(examples)
    return {
        "passage": first.first,
        "library": str(first.answer),
        "beside": best_passage(same or [first]).first,
        "elsewhere": elsewhere.first,
        "other_library": str(elsewhere.answer),
        "before": before,
        "sentence": sentence,
    }


def two_sentences(examples: Sequence["Text"]) -> tuple[str, str]:
    """Sentences that follow each other; two halves of one where no passage has two."""
    from bert_core.text.encoding import split_sentences

    divided = (split_sentences(example.first) for example in examples)
    pairs = [(each[0], each[1]) for each in divided if len(each) == 2]
    if pairs:
        return min(pairs, key=lambda pair: unfitness(*pair))
    words = best_passage(examples).first.split()
    return " ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])


def with_a_mask(text: str, vocabulary: Collection[str]) -> tuple[str, str]:
    """The text with [MASK] for a word in the middle, and the word: one that is a single token."""
    words = [*re.finditer(r"\w+", text)]
    plain = [word for word in words if _PLAIN_WORD.fullmatch(word.group())]
    known = [each for each in plain if each.group() in vocabulary] or plain or words
    chosen = known[len(known) // 2]
    return text[: chosen.start()] + MASK + text[chosen.end() :], chosen.group()


def described_parameters(examples: Sequence["TaggedSentence"]) -> "TaggedSentence":
    """Of the passages with two kinds of entities the one that fits on a line best."""

    def order(each: "TaggedSentence") -> tuple[int, int]:
        kinds = {kind for kind, _ in entities_of(each)}
        return -min(len(kinds), 2), unfitness(" ".join(each.words))[1]

    return min(examples, key=order)


def entities_of(example: "TaggedSentence") -> list[tuple[str, str]]:
    """Kind and text of each entity; of a dotted name without spaces, as it is written."""
    found: list[tuple[str, str]] = []
    for word, tag in zip(example.words, example.tags or (), strict=True):
        kind = tag[2:]
        if tag.startswith("I-") and found:
            found[-1] = (kind, found[-1][1] + word)
        elif kind:
            found.append((kind, word))
    return found


def original_text(example: "TaggedSentence", data: str) -> str:
    """The passage that an example's words are of, read again where it stands.

    Its words where it stands there no more.
    """
    from bert_core.tasks.docstrings import modules_of, packages_of, passages

    wanted = "".join(example.words)
    found = (
        passage
        for module in modules_of(packages_of(data))
        if module.name == example.columns["module"]
        for definition in module.definitions()
        if definition.where == example.file
        for passage in passages(definition.docstring)
        if "".join(passage.split()) == wanted
    )
    return next(found, " ".join(example.words))


def question_of_a_line(examples: Sequence["Question"]) -> "Question":
    """The question that fits on a line best, as does its answer."""

    def order(each: "Question") -> tuple[int, int]:
        answer = each.answers[0].text if each.answers else ""
        unreadable, _ = unfitness(answer)
        return unreadable, unfitness(each.question, answer)[1]

    return min(examples, key=order)
