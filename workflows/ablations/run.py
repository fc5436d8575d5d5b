"""One start of an ablation: pre-trains what is missing, fine-tunes each encoder, reports."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bert_core.settings import metric_name
from workflows.ablations.ablation import Ablation, PlannedVariant
from workflows.ablations.settings import LearnedTask
from workflows.progress import duration
from workflows.runs.journal import read_records
from workflows.runs.tracker import JOURNAL_NAME
from workflows.sweeps.live_table import SweepTable, TableRow, step_text, trial_row
from workflows.sweeps.planned import TRAINED, PlannedRun
from workflows.sweeps.run import Driver, SweepRun, append_figures
from workflows.sweeps.sweep import PlannedTrial, opened_sweep
from workflows.training.job import refuse_a_full_disk


class AblationRun:
    """Trains what is left of an ablation; `look` is called whenever there is more to report."""

    def __init__(self, ablation: Ablation, driver: Driver, look: Callable[[], object]) -> None:
        self.ablation, self._driver, self._look = ablation, driver, look

    def train(self) -> bool:
        """Trains all that is left; False when told to stop before the end."""
        ablation = self.ablation
        with ablation.counted_time():
            complete = self._pretrain()
        self._look()
        if not any(variant.is_finished for variant in ablation.variants):
            return complete
        for learned in ablation.tasks if complete else ():
            with ablation.counted_time():
                complete = self._learn(learned)
            self._look()
            if not complete:
                break
        return complete

    def _pretrain(self) -> bool:
        ablation, left = self.ablation, self.ablation.left()
        for planned in ablation.variants:
            if planned.is_finished:
                # Runs of workflows/pretrain.py, which have a summary, keep their place at MLflow.
                tracked = not planned.job.folder.summary.exists()
                self._driver.settled(planned, tracked=tracked)
        if not left:
            return True
        refuse_a_full_disk([planned.job for planned in left])
        # Of equal time are runs that share no machine.
        most = len(left) if ablation.settings.minutes is None else 1
        at_once = min(self._driver.at_once, most)
        with SweepTable(ablation.variants, row=variant_row, called="pre-trainings") as table:
            return self._driver.train(
                ablation.variants,
                lambda: left.pop(0) if left else None,
                table,
                at_once=at_once,
                on_end=_push_results,
            )

    def _learn(self, learned: LearnedTask) -> bool:
        """Fine-tunes each encoder on a task: a sweep whose only axis is the encoder."""
        ablation, driver = self.ablation, self._driver
        with opened_sweep(ablation.sweep_settings(learned), ablation.storage) as sweep:
            total, left = len(sweep.trials), len(sweep.left())
            print(f"task     {learned.key}: {total} fine-tunings, {left} left", flush=True)
            own = driver.for_runs_of(sweep)
            complete = SweepRun(sweep, own, row=self._trial_row, keeps_winner=False).train()
            ablation.note_sweep(learned, sweep.outcome(driver.at_once))
        return complete

    def _trial_row(self, trial: PlannedTrial) -> TableRow:
        """A fine-tuning as a row of the live table: by the variant, not by its run's name."""
        variant = next(v for v in self.ablation.variants if v.name == trial.point["model"])
        row, title = trial_row(trial), variant.variant.title
        cells = {"variant": title, **{k: v for k, v in row.cells.items() if k != "model"}}
        return replace(row, title=f"{title}, seed {trial.seed}", cells=cells)


def variant_row(planned: PlannedVariant) -> TableRow:
    """A pre-training as a row of the live table: how far it is, and its loss on held-out text."""
    progress, loss = planned.status.progress, ""
    objective = planned.job.settings.rows.objective
    figure = progress.metrics.get(f"heldout/{metric_name(objective, 'masked_token_loss')}")
    state = step_text(progress)
    result = ""
    if planned.is_finished:
        state = "trained"
        result = f"pre-trained, {duration(planned.used_seconds)}"
    if figure is not None:
        loss = f"{figure:.3f}"
        result += f", held-out loss {loss}" if result else ""
    return TableRow(
        name=planned.name,
        title=planned.variant.title,
        state=TRAINED if planned.is_finished else planned.status.state,
        status=planned.status,
        cost=planned.cost,
        cells={"variant": planned.variant.title, "state": state, "held-out loss": loss},
        result=result,
    )


def note_figures(ablation: Ablation) -> None:
    """Appends the means that are new to the ablation's journal, for MLflow."""
    before: dict[str, float] = {}
    for record in read_records(ablation.folder.path / JOURNAL_NAME):
        before |= record.metrics
    figures = ablation.mean_figures()
    if new := {name: value for name, value in figures.items() if before.get(name) != value}:
        append_figures(ablation, new)


def _push_results(run: PlannedRun[Any]) -> None:
    if run.job.remote is not None:
        run.job.remote.push_results(run.job.folder)
