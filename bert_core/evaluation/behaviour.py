"""Behavioural checks of a classifier: does it do what nobody needs a labelled data set to know?

A suite of checks and a function that predicts go in; for each check what failed comes out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bert_core.errors import UserError, nearest
from bert_core.evaluation.behaviour_cases import Case, make_cases
from bert_core.evaluation.behaviour_suite import (
    AnyCheck,
    Direction,
    Invariance,
    MinimumFunctionality,
    Suite,
)
from bert_core.evaluation.table_text import markdown_text
from bert_core.tasks.classification import Text

Prediction = Mapping[str, Any]
Predict = Callable[[list[Text]], Sequence[Prediction]]
"""Predictions of a classification task, one for each text."""

NUM_SHOWN = 5


@dataclass(frozen=True)
class Failure:
    """A case that went wrong, what should have come and what came."""

    case: Case
    expected: str
    found: str


@dataclass(frozen=True)
class CheckResult:
    """What came of a check; `failures` are the worst of those counted by `num_failures`."""

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
    num_shown: int = NUM_SHOWN,
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
        worst = [failure for _, failure in failed[:num_shown]]
        results.append(CheckResult(check.name, check.kind, len(made), len(failed), worst))
    return results


def markdown_results(results: Sequence[CheckResult]) -> str:
    """A table of all checks, and below it the worst cases of those that failed."""
    lines = ["| check | kind | cases | failed |", "|---|---|--:|--:|"]
    for each in results:
        name = markdown_text(each.name)
        share = f"{each.num_failures} ({each.failure_rate:.1%})"
        lines.append(f"| {name} | {each.kind} | {each.num_cases} | {share} |")
    for each in results:
        if each.failures:
            lines += ["", f"**{markdown_text(each.name)}**", ""]
            for failure in each.failures:
                shown = _shown(failure.case.after)
                if failure.case.before is not None:
                    shown = f"{_shown(failure.case.before)} → {shown}"
                told = f"{shown}: expected {failure.expected}, found {failure.found}"
                lines.append(f"- {markdown_text(told)}")
    return "\n".join(lines) + "\n"


def _predict_once(
    predict: Predict, cases: Sequence[Case]
) -> dict[tuple[str, str | None], Prediction]:
    """The predictions of all texts of the cases, each of them predicted once."""
    texts = {_key(text): text for case in cases for text in (case.before, case.after) if text}
    return dict(zip(texts, predict(list(texts.values())), strict=True))


def _key(text: Text) -> tuple[str, str | None]:
    return text.first, text.second


def _judge(check: AnyCheck, before: Prediction, after: Prediction) -> tuple[float, str, str] | None:
    """How bad it is, what was expected and what was found; None where all is well."""
    if isinstance(check, MinimumFunctionality):
        return _judge_minimum(check, after)
    found = f"{_said(before)} → {_said(after)}"
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
        return (outside, f"{low:g} to {high:g}", _said(after)) if outside > 0 else None
    assert check.label is not None
    if check.label in _answer(after):
        return None
    return 1 - _score(after, check.label), check.label, _said(after)


def _require_fit(check: AnyCheck, labels: Sequence[str], place: str) -> None:
    """Raises `UserError` for a check that cannot be asked of a model with these labels."""
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
    """The labels that were found."""
    if "label" in prediction:
        return {prediction["label"]}
    return set(prediction.get("labels", ()))


def _score(prediction: Prediction, label: str | None) -> float:
    return prediction["value"] if label is None else prediction["scores"][label]


def _largest_move(before: Prediction, after: Prediction) -> float:
    if "value" in after:
        return abs(after["value"] - before["value"])
    return max(abs(after["scores"][name] - before["scores"][name]) for name in after["scores"])


def _said(prediction: Prediction) -> str:
    if "value" in prediction:
        return f"{prediction['value']:.3f}"
    names = sorted(_answer(prediction))
    return ", ".join(f"{name} ({prediction['scores'][name]:.3f})" for name in names) or "no label"


def _shown(text: Text) -> str:
    return f"“{text.first}”" + ("" if text.second is None else f" / “{text.second}”")
