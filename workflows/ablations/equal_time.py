"""Variants of equal time: the seconds of their steps are measured, and their steps chosen by that.

The measurement is made once, and kept: a later start of the ablation trains the same steps.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_core.disk import write_atomically
from bert_core.strict_files import read_json_object
from workflows.ablations.settings import AblateSettings
from workflows.ablations.studies import Variant
from workflows.pretraining.job import for_workers
from workflows.pretraining.settings import PretrainSettings
from workflows.progress import duration
from workflows.runs.folder import RunFolder

_FILE = "seconds_per_step.json"
_ROUNDS = 5
"""In turns, with medians over the rounds: a machine that others use is slower now and then."""

_WARM_UP_STEPS, _FEWEST_STEPS = 2, 2
_SECONDS = 10.0
"""Of each phase of each variant in each round."""

Models = tuple[Path | None, Path | None]
"""The folders of a variant's start model and of its teacher."""


@dataclass(frozen=True)
class TimedPhase:
    """A phase of a variant of equal time; `seconds` are those that a step took when measured."""

    sequence_length: int
    steps: int
    seconds: float


def seconds_until(step: int, phases: Sequence[TimedPhase]) -> float:
    """The seconds that the first steps take, by those of a step of each phase."""
    seconds = 0.0
    for phase in phases:
        seconds += min(step, phase.steps) * phase.seconds
        step -= min(step, phase.steps)
    return seconds


def of_equal_time(
    settings: AblateSettings,
    folder: RunFolder,
    variants: Sequence[tuple[Variant, PretrainSettings, Models]],
    shards: Path,
) -> list[tuple[PretrainSettings, tuple[TimedPhase, ...]]]:
    """The settings of the variants with as many steps as take `settings.minutes`, and their phases.

    Phases keep their shares of the steps. What is not there yet is measured on the cluster. Without
    `minutes` the settings are as given, with no phases.
    """
    if settings.minutes is None:
        return [(each, ()) for _, each, _ in variants]
    path = folder.path / _FILE
    known = read_json_object(path, is_optional=True)
    unknown = [given for given in variants if given[0].is_trained and given[0].name not in known]
    if unknown:
        rounds = _rounds(settings, unknown, shards)
        for (variant, _, _), by_round in zip(unknown, zip(*rounds, strict=True), strict=True):
            known[variant.name] = [
                statistics.median(seconds) for seconds in zip(*by_round, strict=True)
            ]
        write_atomically(path, json.dumps(known, indent=1) + "\n")
    timed = []
    for variant, each, _ in variants:
        if not variant.is_trained:
            timed.append((each, ()))
            continue
        longer = with_minutes(each, known[variant.name], settings.minutes)
        seconds = 60 * settings.minutes / longer.total_steps
        title = variant.title
        print(f"timing   {title}: {seconds:.3f} s a step, {longer.total_steps:,} steps", flush=True)
        pairs = zip(longer.phases, known[variant.name], strict=True)
        phases = (TimedPhase(phase.sequence_length, phase.steps, took) for phase, took in pairs)
        timed.append((longer, tuple(phases)))
    return timed


def _rounds(
    settings: AblateSettings,
    variants: Sequence[tuple[Variant, PretrainSettings, Models]],
    shards: Path,
) -> list[list[list[float]]]:
    """Seconds of a step, by round, variant and phase; says how long it takes."""
    num_phases = sum(len(each.phases) for _, each, _ in variants)
    least = duration(_ROUNDS * num_phases * _SECONDS)
    print(f"timing   steps of {len(variants)} variants in turns, {least} or more", flush=True)
    rounds, begin = [], time.monotonic()
    for number in range(1, _ROUNDS + 1):
        gpus = settings.gpus_per_trial
        rounds.append([_measured(each, shards, models, gpus) for _, each, models in variants])
        left = (time.monotonic() - begin) / number * (_ROUNDS - number)
        print(f"timing   round {number} of {_ROUNDS}  ETA {duration(left)}", flush=True)
    return rounds


def with_minutes(
    settings: PretrainSettings, seconds_per_step: Sequence[float], minutes: float
) -> PretrainSettings:
    """The settings with all steps times a factor, so that they take these minutes.

    `seconds_per_step` are those of each phase. Warm-up and evaluations keep their shares.
    """
    pairs = zip(settings.phases, seconds_per_step, strict=True)
    factor = 60 * minutes / sum(phase.steps * seconds for phase, seconds in pairs)

    def scaled(steps: int) -> int:
        return max(1, round(factor * steps))

    optimizer, evaluation = settings.optimizer, settings.evaluation
    return settings.model_copy(
        update={
            "phases": [
                phase.model_copy(update={"steps": scaled(phase.steps)}) for phase in settings.phases
            ],
            "optimizer": optimizer.model_copy(
                update={"warmup_steps": round(factor * optimizer.warmup_steps)}
            ),
            "evaluation": evaluation.model_copy(
                update={"every_steps": scaled(evaluation.every_steps)}
            ),
        }
    )


def _measured(settings: PretrainSettings, shards: Path, models: Models, gpus: float) -> list[float]:
    """Seconds of a step of each phase, measured by a task with the place of a run."""
    import ray

    from workflows.clusters.tasks import connect
    from workflows.sweeps.training import TrialPlace

    connect()
    place = TrialPlace.of(settings.cluster, gpus)
    task: Any = ray.remote(num_cpus=place.threads, num_gpus=place.gpus, max_retries=0)(_time_steps)
    values = for_workers(settings)
    return [
        ray.get(task.remote(values, number, shards.absolute(), models, place.threads, _SECONDS))
        for number in range(len(settings.phases))
    ]


def _time_steps(
    values: dict[str, Any],
    phase: int,
    shards: Path,
    models: Models,
    num_threads: int,
    seconds: float,
) -> float:
    """Runs in a task: the mean seconds of a step of a phase, behind some that warm up."""
    import torch

    from workflows.clusters.workers import Worker
    from workflows.pretraining.worker import pretraining_parts
    from workflows.training.backend import RemainingSteps

    torch.set_num_threads(num_threads)
    torch.set_flush_denormal(True)
    settings = PretrainSettings.model_validate(values)
    endless = settings.phases[phase].model_copy(update={"steps": 1 << 40})
    settings = settings.model_copy(update={"phases": [endless]})
    device = torch.device("cuda" if settings.cluster.use_gpu else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker(0, 1, device, None)
        parts = pretraining_parts(settings, shards, worker, Path(folder), *models)
        steps = RemainingSteps(
            parts.state,
            parts.batches(0),
            parts.compute_loss,
            parts.total_steps,
            parts.learning_rate,
            settings,
            lambda: False,
            print,
        )
        results = parts.backend.results(steps)
        for _ in range(_WARM_UP_STEPS):
            next(results)
        begin, count = time.monotonic(), 0
        while count < _FEWEST_STEPS or time.monotonic() - begin < seconds:
            next(results)
            count += 1
        return (time.monotonic() - begin) / count
