"""Measures a version and the champion, and judges each requirement of a gate."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bert_core.errors import UserError, nearest
from bert_core.evaluation.behaviour import run_suite
from bert_core.evaluation.behaviour_suite import Suite, read_suite
from bert_core.evaluation.intervals import Interval, compare
from bert_core.evaluation.outcomes import resampling_units
from bert_core.model_folder import CONFIG, load_model_folder
from bert_core.predictor import Predictor, load_predictor
from bert_core.strict_files import read_json_object
from bert_core.tasks.catalog import task_of
from bert_core.tasks.classification import Classification
from bert_core.tasks.encoded_rows import tally_text
from workflows.evaluation.settings import with_options
from workflows.finetuning.data import answered_examples
from workflows.messages import RunProgress
from workflows.progress import LiveLine
from workflows.promotion.champion import Version
from workflows.promotion.gate import (
    CRITERION,
    MEGABYTE,
    CheckFile,
    Gate,
    GateLine,
    at_most,
    drop,
    least,
    no_champion,
)
from workflows.promotion.gate_measurements import measure_footprint

ENCODER_CRITERION = "masked_token_loss"
_PROBES = 16
_AT_ONCE = 1024  # examples between two lines of progress


@dataclass(frozen=True)
class Sampling:
    """How a gate measures; see `PromoteSettings`."""

    num_resamples: int = 1000
    seed: int = 0
    max_tokens: int = 4096


@dataclass(frozen=True)
class Contender:
    """A version with its model folder."""

    version: Version
    folder: Path

    @cached_property
    def kind(self) -> str:
        """The name of its task, or the `transformers` class if the folder names no task."""
        config = read_json_object(self.folder / CONFIG)
        found = task_of(config)
        return found[0] if found else str(next(iter(config.get("architectures") or ()), "encoder"))

    @cached_property
    def predictor(self) -> Predictor:
        """The loaded model; raises `UserError` for a model without a task."""
        return load_predictor(self.folder)

    @property
    def criterion(self) -> str:
        """The deciding metric: the task's criterion, or the masked-token loss of an encoder."""
        if ENCODER_CRITERION in self.version.metrics:
            return ENCODER_CRITERION
        return self.predictor.task.criterion


def judge(
    gate: Gate, contender: Contender, champion: Contender | None, sampling: Sampling
) -> list[GateLine]:
    """Judges every requirement of the gate, even after one has failed.

    Raises `UserError` for what cannot be judged: a champion of another task, unknown metrics,
    recorded metrics of different data, checks that do not suit the model.
    """
    if champion is not None and champion.kind != contender.kind:
        raise UserError(
            f"version {contender.version.number} has another task, {contender.kind}",
            f"champion {champion.version.number} has {champion.kind}",
            "register it under another name",
        )
    suites = [(check, read_suite(check.file)) for check in gate.checks]
    if gate.data is None:
        load_model_folder(contender.folder)  # a folder that does not open cannot become champion
        lines = _recorded_lines(gate, contender, champion)
        examples: Sequence[Any] = []
    else:
        examples = _labelled_examples(gate, contender)
        lines = _metric_lines(gate, contender, champion, examples, sampling)
    for check, suite in suites:
        lines += _check_lines(check, suite, contender, examples, sampling)
    if gate.p95_latency_ms is not None or gate.memory_mb is not None:
        lines += _footprint_lines(gate, contender, examples)
    if gate.folder_mb is not None:
        size = sum(path.stat().st_size for path in contender.folder.rglob("*") if path.is_file())
        lines.append(at_most("folder", "folder_mb", size / MEGABYTE, gate.folder_mb, "MB"))
    return lines


def _recorded_lines(gate: Gate, contender: Contender, champion: Contender | None) -> list[GateLine]:
    """Judges the metrics recorded in training; they have no interval, so the values decide."""
    version = contender.version
    wanted = _named(gate.metrics, contender, version.metrics)
    lines = [least(name, version.metrics[name], value) for name, value in wanted.items()]
    if champion is None:
        named = {name: most for name, most in gate.largest_drop.items() if name != CRITERION}
        _named(named, contender, version.metrics)
        return lines + [no_champion(name) for name in gate.largest_drop]
    if not gate.largest_drop:
        return lines
    numbers = f"versions {version.number} and {champion.version.number}"
    if version.data_sha256 is None or version.data_sha256 != champion.version.data_sha256:
        raise UserError(
            f"{numbers} were not measured on the same data",
            "their recorded metrics",
            "pass --data to measure both on it",
        )
    for name, most in _named(gate.largest_drop, contender, version.metrics).items():
        if name not in champion.version.metrics:
            where = f"champion {champion.version.number}"
            raise UserError(f"no {name} was recorded", where, "pass --data")
        mine, theirs = version.metrics[name], champion.version.metrics[name]
        difference = Interval(*[mine - theirs] * 3)
        lines.append(drop(name, theirs, difference, most, "recorded"))
    return lines


def _labelled_examples(gate: Gate, contender: Contender) -> list[Any]:
    assert gate.data is not None
    task = with_options(contender.predictor.task, gate.options)
    examples, unanswered = answered_examples(task, gate.data, gate.split)
    if unanswered:
        print(f"left out {tally_text(unanswered)}", file=sys.stderr)
    return list(examples)


def _metric_lines(
    gate: Gate,
    contender: Contender,
    champion: Contender | None,
    examples: Sequence[Any],
    sampling: Sampling,
) -> list[GateLine]:
    task = contender.predictor.task
    # Report unknown metrics before minutes are spent on the rest.
    some = examples[:_PROBES]
    known = task.metrics(contender.predictor.predict_examples(some)[0], some)
    wanted = _named(gate.metrics, contender, known)
    drops = _named(gate.largest_drop, contender, known)
    if not wanted and not drops:
        return []
    if champion is not None and drops:
        _require_like(contender, champion)
    mine = _predictions(contender, examples, sampling)
    values = task.metrics(mine, examples)
    lines = [least(name, values[name], value) for name, value in wanted.items()]
    if champion is None or not drops:
        return lines + [no_champion(name) for name in drops]
    found = compare(
        task,
        _predictions(champion, examples, sampling),
        mine,
        examples,
        num_resamples=sampling.num_resamples,
        seed=sampling.seed,
        groups=resampling_units(examples),
    )
    for name, most in drops.items():
        metric = found.metrics[name]
        of = f"{len(examples):,} examples"
        lines.append(drop(name, metric.first, metric.difference, most, of))
    return lines


def _require_like(contender: Contender, champion: Contender) -> None:
    mine, other = contender.predictor.task, champion.predictor.task
    if mine.labels != other.labels or type(mine) is not type(other):
        raise UserError(
            f"version {contender.version.number} has other labels",
            f"than champion {champion.version.number}",
            "register it under another name, or remove largest_drop",
        )


def _predictions(
    contender: Contender, examples: Sequence[Any], sampling: Sampling
) -> list[dict[str, Any]]:
    line = LiveLine(stream=sys.stderr)
    found: list[dict[str, Any]] = []
    for begin in range(0, len(examples), _AT_ONCE):
        some = examples[begin : begin + _AT_ONCE]
        found += contender.predictor.predict_examples(some, max_tokens=sampling.max_tokens)[0]
        done = f"version {contender.version.number}: {len(found):,} of {len(examples):,} examples"
        line(RunProgress(activity=done))
    line.close()
    return found


def _check_lines(
    file: CheckFile,
    suite: Suite,
    contender: Contender,
    examples: Sequence[Any],
    sampling: Sampling,
) -> Iterator[GateLine]:
    predictor = contender.predictor
    if not isinstance(predictor.task, Classification):
        what = "behavioural checks are for classification"
        raise UserError(what, str(file.file), "remove them from the gate")
    results = run_suite(
        suite,
        lambda texts: predictor.predict_examples(texts, max_tokens=sampling.max_tokens)[0],
        examples,
        labels=predictor.task.labels,
        seed=sampling.seed,
    )
    for result in results:
        passed = result.num_cases - result.num_failures
        rate = passed / result.num_cases  # not 1 - failures: 0.93 is to be as much as 93 of 100
        worst = ""
        if rate < file.pass_rate:
            failure = result.failures[0]
            text = " / ".join(filter(None, (failure.case.after.first, failure.case.after.second)))
            worst = f"“{text[:60]}”: {failure.found}"
        yield GateLine(
            f"{file.file.stem}: {result.name}",
            f"{passed} of {result.num_cases} ({rate:.1%})",
            f">= {file.pass_rate:.1%}",
            rate >= file.pass_rate,
            {f"pass_rate.{file.file.stem}": rate},
            worst,
        )


def _footprint_lines(
    gate: Gate, contender: Contender, examples: Sequence[Any]
) -> Iterator[GateLine]:
    how = gate.measured_with
    predictor = contender.predictor
    number = contender.version.number
    print(f"version {number}: {how.requests} requests to a new process", file=sys.stderr)
    found = measure_footprint(contender.folder, predictor.task_name, predictor.task, examples, how)
    if gate.p95_latency_ms is not None:
        line = at_most("p95 latency", "p95_latency_ms", found.p95_ms, gate.p95_latency_ms, "ms")
        measured = f"{line.measured}, p50 {found.p50_ms:.1f}, batch {how.batch_size}"
        measured += f", threads {how.threads}"
        values = {"p50_latency_ms": found.p50_ms, **line.values}
        yield replace(line, measured=measured, values=values)
    if gate.memory_mb is not None:
        yield at_most("memory", "memory_mb", found.memory_mb, gate.memory_mb, "MB")


def _named(
    wanted: Mapping[str, float], contender: Contender, known: Mapping[str, float]
) -> dict[str, float]:
    """Resolves `criterion` to the metric's name; raises `UserError` for an unknown metric."""
    found = {}
    for name, value in wanted.items():
        own = contender.criterion if name == CRITERION else name
        if own not in known:
            there = f"there are {', '.join(known)}" if known else "none was recorded; pass --data"
            raise UserError(
                f"unknown metric{nearest(own, list(known))}", f"{own} of {contender.kind}", there
            )
        found[own] = value
    return found
