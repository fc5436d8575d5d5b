"""What the suspects do to a model: runs on all training examples and runs without them."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_core.evaluation.intervals import MetricDifference, compare, over_seeds
from bert_core.evaluation.outcomes import resampling_units
from workflows.audits.settings import AuditSettings, retraining_settings
from workflows.finetune import read_inputs
from workflows.runs.storage import Storage
from workflows.sweeps.folds import has_predictions, keep_predictions, kept_predictions
from workflows.sweeps.live_table import SweepTable, TableRow, trial_row
from workflows.sweeps.planned import PlannedRun, unfinished
from workflows.sweeps.sweep import RESULT, PlannedTrial, Sweep, planned_trial
from workflows.training.job import refuse_a_full_disk

if TYPE_CHECKING:
    from workflows.sweeps.run import Driver

TITLES = ("all", "without suspects")


@dataclass(frozen=True)
class Retrained:
    """Both on the same dev examples; `differences` are those without the suspects less all.

    `runs` are the names of both, by seed: of several seeds the figures are means, and intervals are
    over seeds (`over_seeds`).
    """

    criterion: str
    runs: tuple[tuple[str, str], ...]
    num_train: tuple[int, int]
    num_dev: int
    differences: dict[str, MetricDifference]


class Retraining:
    """Two runs of each seed, all locked for this process while they are open."""

    def __init__(self, sweep: Sweep, pairs: Sequence[tuple[PlannedTrial, PlannedTrial]]) -> None:
        self.sweep, self.pairs = sweep, pairs
        self.runs = [run for pair in pairs for run in pair]

    def train(self, driver: "Driver") -> bool:
        """Trains what is left; False when told to stop before the end."""
        for run in self.runs:
            if run.is_finished:
                # Runs of workflows/finetune.py, which have a summary, keep their place at MLflow.
                driver.settled(run, tracked=not run.job.folder.summary.exists())
        left = unfinished(self.runs)
        if not left:
            return True
        refuse_a_full_disk([run.job for run in left])
        table = SweepTable(self.runs, row=self._row, called="retrainings")
        with self.sweep.counted_time(), table:
            return driver.train(
                self.runs,
                lambda: left.pop(0) if left else None,
                table,
                on_end=_keep,
            )

    def result(self) -> Retrained | None:
        """What they came to; None where one has failed."""
        if not all(map(_has_result, self.runs)):
            return None
        data, less = (run.job.data for run in self.pairs[0])
        dev = data.dev.examples
        compared, units = [], resampling_units(dev)
        for pair in self.pairs:
            first, second = (kept_predictions(run.job.folder) for run in pair)
            compared.append(compare(data.task, first, second, dev, groups=units))
        return Retrained(
            criterion=data.task.criterion,
            runs=tuple((first.name, second.name) for first, second in self.pairs),
            num_train=(len(data.train.examples), len(less.train.examples)),
            num_dev=len(dev),
            differences=dict(over_seeds(compared).metrics),
        )

    def failures(self) -> list[str]:
        """Why runs have no result."""
        return [f"{run.name}: {run.failure}" for run in self.runs if run.failure]

    def _row(self, run: PlannedTrial) -> TableRow:
        row, title = trial_row(run), TITLES[self.runs.index(run) % len(TITLES)]
        if len(self.pairs) > 1:
            title += f", seed {run.job.settings.seed}"
        return replace(row, title=title, cells={"trained on": title, **row.cells})


@contextmanager
def opened_retraining(
    settings: AuditSettings, storage: Storage, sweep: Sweep, suspects: Path
) -> Iterator[Retraining]:
    """Opens both runs of each seed; raises `UserError` for what the user can fix."""
    with ExitStack() as opened:
        sides = []
        for exclude in (None, suspects):
            own = retraining_settings(settings, exclude)
            inputs = read_inputs(own, storage)
            runs = []
            for seed in range(own.seed, own.seed + settings.seeds):
                seeded = own.model_copy(update={"seed": seed})
                run = planned_trial(seeded, storage, inputs, opened, point={})
                if run.is_finished and not _has_result(run):
                    _keep_earlier(run)
                runs.append(run)
            sides.append(runs)
        yield Retraining(sweep, [*zip(*sides, strict=True)])


def _has_result(run: PlannedTrial) -> bool:
    return run.is_finished and has_predictions(run.job.folder)


def _keep(run: PlannedRun[Any]) -> None:
    """Keeps what a trained run predicted for dev, and none of its weights: an audit has no model.

    A run that workflows/finetune.py began keeps them.
    """
    assert isinstance(run, PlannedTrial)
    folder = run.job.folder
    keep_predictions(folder, folder.last_checkpoint())
    if not folder.model.exists():
        run.drop_weights()


def _keep_earlier(run: PlannedTrial) -> None:
    """Keeps the same of another command's run, or has it trained again if its weights are gone."""
    if run.job.folder.is_trained():
        keep_predictions(run.job.folder, run.job.folder.last_checkpoint())
    else:
        (run.job.folder.path / RESULT).unlink()
