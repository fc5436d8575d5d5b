"""A behavioural check -> its cases: templates are filled, texts are changed, by a seed."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bert_core.evaluation.behaviour_suite import (
    SLOT,
    AnyCheck,
    Change,
    MinimumFunctionality,
    PairTemplate,
    slot_list,
)
from bert_core.tasks.classification import Text

Words = Mapping[str, Sequence[str]]

_MOST_COMBINATIONS = 20_000  # more are drawn instead of listed

_VERBS = (
    "am|is|are|was|were|has|have|had|can|could|will|would|shall|should|may|might|must|do|does|did"
)
_AUXILIARY = re.compile(rf"\b({_VERBS})\b", re.IGNORECASE)
_NEGATED = re.compile(rf"\b({_VERBS})( not|n['’]t)\b", re.IGNORECASE)
_SHORTENED = {
    re.compile(r"\b(c)an(not|['’]t)\b", re.I): r"\1an not",
    re.compile(r"\b(w)on['’]t\b", re.I): r"\1ill not",
}


@dataclass(frozen=True)
class Case:
    """A text, and what it was before it was changed, None where it is a case by itself."""

    before: Text | None
    after: Text


def make_cases(check: AnyCheck, words: Words, examples: Sequence[Text], seed: int) -> list[Case]:
    """The cases of a check, the same for the same seed whatever other checks there are.

    Texts on which the change has nothing to change are left out; of the data's examples others are
    taken instead.
    """
    random = np.random.default_rng([seed, *check.name.encode()])
    if check.examples is None:
        texts: Iterator[Text] = iter(_fill_templates(check, words, random))
        at_most = check.cases
    else:
        texts = (examples[index] for index in random.permutation(len(examples)).tolist())
        at_most = check.examples
    if isinstance(check, MinimumFunctionality):
        return [Case(None, text) for text in itertools.islice(texts, at_most)]
    changed = (Case(text, change_text(text, check.change, words, random)) for text in texts)
    different = (case for case in changed if case.before != case.after)
    return list(itertools.islice(different, at_most))


def change_text(text: Text, change: Change, words: Words, random: np.random.Generator) -> Text:
    """The text or pair with the change made, as it was where there is nothing to change."""
    # Both texts of a pair have the same words swapped.
    turn = int(random.integers(1, len(words[change.swap]))) if change.swap is not None else 0
    first, second = text.first, text.second
    if change.side != "second":
        first = _changed(first, change, words, random, turn)
    if change.side != "first" and second is not None:
        second = _changed(second, change, words, random, turn)
    return replace(text, first=first, second=second)


def with_typos(text: str, num: int, random: np.random.Generator) -> str:
    """Exchanges `num` times two neighbouring letters that differ."""
    letters = list(text)
    for _ in range(num):
        places = [
            index
            for index, (one, other) in enumerate(itertools.pairwise(letters))
            if one.isalpha() and other.isalpha() and one != other
        ]
        if places:
            place = places[int(random.integers(len(places)))]
            letters[place : place + 2] = letters[place + 1], letters[place]
    return "".join(letters)


def negated(text: str) -> str:
    """Puts `not` after the first auxiliary verb, or takes it away where it stands there."""
    for pattern, whole in _SHORTENED.items():
        text = pattern.sub(whole, text)
    found = _NEGATED.search(text)
    if found:
        return text[: found.start(2)] + text[found.end(2) :]
    return _AUXILIARY.sub(r"\1 not", text, count=1)


def _changed(
    text: str, change: Change, words: Words, random: np.random.Generator, turn: int
) -> str:
    if change.typos is not None:
        return with_typos(text, change.typos, random)
    if change.swap is not None:
        listed = words[change.swap]
        turned = [*listed[turn:], *listed[:turn]]
        return _with_words(text, dict(zip(listed, turned, strict=True)))
    if change.replace is not None:
        return _with_words(text, change.replace)
    if change.append is not None:
        return f"{text} {change.append}"
    if change.prepend is not None:
        return f"{change.prepend} {text}"
    if change.negate is not None:
        return negated(text)
    return text.lower() if change.case == "lower" else text.upper()


def _with_words(text: str, replacements: Mapping[str, str]) -> str:
    """Replaces whole words, the longest first, each once."""
    longest_first = sorted(replacements, key=len, reverse=True)
    pattern = "|".join(re.escape(word) for word in longest_first)
    return re.sub(rf"(?<!\w)({pattern})(?!\w)", lambda found: replacements[found[1]], text)


def _fill_templates(check: AnyCheck, words: Words, random: np.random.Generator) -> list[Text]:
    templates = check.all_templates
    each = math.ceil(check.cases / len(templates))
    return [text for template in templates for text in _fill(template, words, each, random)]


def _fill(
    template: str | PairTemplate, words: Words, at_most: int, random: np.random.Generator
) -> list[Text]:
    """Texts of a template; the same slot is the same word, numbered ones of a list differ."""
    parts = [template] if isinstance(template, str) else [template.first, template.second]
    slots = list(dict.fromkeys(slot for part in parts for slot in SLOT.findall(part)))
    lists = [slot_list(slot, words) for slot in slots]
    texts = []
    for values in _combinations(lists, words, at_most, random):
        filled = dict(zip(slots, values, strict=True))
        done = [SLOT.sub(lambda found, filled=filled: filled[found[1]], part) for part in parts]
        texts.append(Text(done[0], done[1] if len(done) > 1 else None, None))
    return texts


def _combinations(
    lists: Sequence[str], words: Words, at_most: int, random: np.random.Generator
) -> list[tuple[str, ...]]:
    """Different choices of a word from each list, in order; no word twice from the same one."""
    if math.prod(len(words[name]) for name in lists) <= _MOST_COMBINATIONS:
        every = [
            chosen
            for chosen in itertools.product(*(words[name] for name in lists))
            if _differ(lists, chosen)
        ]
        if len(every) <= at_most:
            return every
        kept = np.sort(random.permutation(len(every))[:at_most])
        return [every[index] for index in kept.tolist()]
    drawn: dict[tuple[str, ...], None] = {}
    for _ in range(20 * at_most):
        chosen = tuple(words[name][int(random.integers(len(words[name])))] for name in lists)
        if _differ(lists, chosen):
            drawn[chosen] = None
        if len(drawn) == at_most:
            break
    return list(drawn)


def _differ(lists: Sequence[str], chosen: Sequence[str]) -> bool:
    return len(set(zip(lists, chosen, strict=True))) == len(lists)
