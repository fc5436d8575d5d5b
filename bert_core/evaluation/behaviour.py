"""Makes the cases of behavioural checks, predicts them and counts the failures of a classifier."""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bert_core.errors import UserError, nearest
from bert_core.evaluation.behaviour_suite import (
    SLOT,
    AnyCheck,
    Change,
    Direction,
    Invariance,
    MinimumFunctionality,
    PairTemplate,
    Suite,
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
    """A text, and the text before a change; None without a change."""

    before: Text | None
    after: Text


def make_cases(check: AnyCheck, words: Words, examples: Sequence[Text], seed: int) -> list[Case]:
    """Makes the cases of a check; they depend on the seed and the check's name only.

    Texts that the change leaves as they are do not count; other examples of the data replace them.
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
    """Returns the text or pair with the change applied, or as it is if nothing matches."""
    # Both texts of a pair have the same words swapped.
    turn = int(random.integers(1, len(words[change.swap]))) if change.swap is not None else 0
    first, second = text.first, text.second
    if change.side != "second":
        first = _changed(first, change, words, random, turn)
    if change.side != "first" and second is not None:
        second = _changed(second, change, words, random, turn)
    return replace(text, first=first, second=second)


def with_typos(text: str, num: int, random: np.random.Generator) -> str:
    """Swaps two different neighbouring letters `num` times."""
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
    """Puts `not` after the first auxiliary verb, or removes it from there."""
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


Prediction = Mapping[str, Any]
Predict = Callable[[list[Text]], Sequence[Prediction]]
"""Predictions of a classification task, one for each text."""

NUM_SHOWN = 5


@dataclass(frozen=True)
class Failure:
    """A failed case, the expected and the actual prediction."""

    case: Case
    expected: str
    found: str


@dataclass(frozen=True)
class CheckResult:
    """The result of a check; `failures` are the worst of `num_failures`."""

    name: str
    kind: str
    num_cases: int
    num_failures: int
    failures: Sequence[Failure]

    @property
    def failure_rate(self) -> float:
        """The share of cases that failed."""
        return self.num_failures / self.num_cases


def run_suite(
    suite: Suite,
    predict: Predict,
    examples: Sequence[Text],
    *,
    labels: Sequence[str],
    seed: int = 0,
) -> list[CheckResult]:
    """Runs all checks; `predict` is called once, with all texts.

    `labels` are those the model knows, empty for a number. Raises `UserError`, with file and line,
    for a check that does not suit the model or of which no case comes.
    """
    cases = []
    for check, place in zip(suite.checks, suite.places, strict=True):
        _require_fit(check, labels, place)
        made = make_cases(check, suite.words, examples, seed)
        if not made:
            raise UserError("no case comes of this check", place, "its change changes no text")
        cases.append(made)
    predictions = _predict_once(predict, [case for made in cases for case in made])
    results = []
    for check, made in zip(suite.checks, cases, strict=True):
        failed: list[tuple[float, Failure]] = []
        for case in made:
            after = predictions[_key(case.after)]
            before = after if case.before is None else predictions[_key(case.before)]
            judged = _judge(check, before, after)
            if judged is not None:
                severity, expected, found = judged
                failed.append((severity, Failure(case, expected, found)))
        failed.sort(key=lambda pair: -pair[0])
        worst = [failure for _, failure in failed[:NUM_SHOWN]]
        results.append(CheckResult(check.name, check.kind, len(made), len(failed), worst))
    return results


def shown_text(text: Text) -> str:
    """A text, or a pair of texts, in quotes."""
    return f"“{text.first}”" + ("" if text.second is None else f" / “{text.second}”")


def _predict_once(
    predict: Predict, cases: Sequence[Case]
) -> dict[tuple[str, str | None], Prediction]:
    texts = {_key(text): text for case in cases for text in (case.before, case.after) if text}
    return dict(zip(texts, predict(list(texts.values())), strict=True))


def _key(text: Text) -> tuple[str, str | None]:
    return text.first, text.second


def _judge(check: AnyCheck, before: Prediction, after: Prediction) -> tuple[float, str, str] | None:
    """Severity, expected and actual prediction of a failure; None for a success."""
    if isinstance(check, MinimumFunctionality):
        return _judge_minimum(check, after)
    found = f"{_shown_prediction(before)} → {_shown_prediction(after)}"
    if isinstance(check, Invariance):
        moved = _largest_move(before, after)
        same = _answer(before) == _answer(after) or "value" in after
        if same and (check.tolerance is None or moved <= check.tolerance):
            return None
        within = "" if check.tolerance is None else f" within {check.tolerance:g}"
        return moved, f"no change{within}", found
    old, new = _score(before, check.label), _score(after, check.label)
    gained = new - old if check.moves == "up" else old - new
    if gained >= check.by:
        return None
    what = "number" if check.label is None else f"score of {check.label}"
    found = f"{old:.3f} → {new:.3f}"
    return check.by - gained, f"{what} {check.moves} by {check.by:g} or more", found


def _judge_minimum(check: MinimumFunctionality, after: Prediction) -> tuple[float, str, str] | None:
    if check.between is not None:
        low, high = check.between
        outside = max(low - after["value"], after["value"] - high)
        return (outside, f"{low:g} to {high:g}", _shown_prediction(after)) if outside > 0 else None
    assert check.label is not None
    if check.label in _answer(after):
        return None
    return 1 - _score(after, check.label), check.label, _shown_prediction(after)


def _require_fit(check: AnyCheck, labels: Sequence[str], place: str) -> None:
    label = None if isinstance(check, Invariance) else check.label
    if label is not None and label not in labels:
        known = f"the model knows {', '.join(labels)}" if labels else "the model gives a number"
        raise UserError(f"unknown label {label!r}{nearest(label, labels)}", place, known)
    if labels and isinstance(check, Direction) and label is None:
        raise UserError("whose score should move?", place, "give label")
    if labels and isinstance(check, MinimumFunctionality) and check.between is not None:
        raise UserError("the model gives labels, not numbers", place, "give label, not between")
    if not labels and isinstance(check, Invariance) and check.tolerance is None:
        raise UserError("a number never stays quite the same", place, "give tolerance")


def _answer(prediction: Prediction) -> set[str]:
    if "label" in prediction:
        return {prediction["label"]}
    return set(prediction.get("labels", ()))


def _score(prediction: Prediction, label: str | None) -> float:
    return prediction["value"] if label is None else prediction["scores"][label]


def _largest_move(before: Prediction, after: Prediction) -> float:
    if "value" in after:
        return abs(after["value"] - before["value"])
    return max(abs(after["scores"][name] - before["scores"][name]) for name in after["scores"])


def _shown_prediction(prediction: Prediction) -> str:
    if "value" in prediction:
        return f"{prediction['value']:.3f}"
    names = sorted(_answer(prediction))
    return ", ".join(f"{name} ({prediction['scores'][name]:.3f})" for name in names) or "no label"
