"""An ablation in its driver: a study goes in; its pre-trainings and their outcome come out.

Each pre-training is planned or finished; then each encoder is fine-tuned on every task, in sweeps.
Reports are made of the outcome, which is plain data.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean

import yaml

from bert_core.config import ModelConfig, training_flops
from bert_core.disk import write_atomically
from bert_core.settings import metric_name
from bert_core.text.shards import TokenShards, open_shards
from bert_core.tokenizer import load_tokenizer
from workflows.ablations.equal_time import TimedPhase, of_equal_time
from workflows.ablations.settings import (
    AblateSettings,
    LearnedTask,
    finetuning_rate,
    learned_tasks,
    tune_settings,
)
from workflows.ablations.studies import (
    CONTROL,
    Variant,
    chosen_variants,
    on_its_text,
    shape_of,
    shape_text,
    variant_settings,
)
from workflows.finetuning.data import read_task_data
from workflows.pretrain import given_shards, opened_pretraining, recipe_inputs
from workflows.pretraining.job import (
    PretrainingJob,
    Start,
    continue_from,
    find_start,
    find_teacher,
    tokens_per_word,
)
from workflows.pretraining.settings import PretrainSettings
from workflows.reproduction.run_origin import OUTCOME, data_name, write_outcome
from workflows.runs.folder import RunFolder, open_run
from workflows.runs.journal import read_records
from workflows.runs.storage import Storage
from workflows.runs.tracker import ARTIFACTS_NAME, JOURNAL_NAME, DatasetInput, TrackedRun
from workflows.settings import settings_hash
from workflows.sweeps.findings import number_of
from workflows.sweeps.outcome import SweepOutcome
from workflows.sweeps.planned import PlannedRun, PlannedRuns, unfinished
from workflows.sweeps.settings import SWEEP_FIELDS, TuneSettings

VARIANT = "variant"
"""The only axis of a task's sweep in an ablation."""


@dataclass(frozen=True)
class VariantOutcome:
    """The outcome of one pre-training.

    `name` and `title` are the variant's, `run` is its run's, `shape` says layers, width and heads.
    `figures` are those of held-out documents at the last step (`heldout/perplexity`), `curve` its
    losses there by step, in nats; both are empty where it has not finished. Losses of variants with
    one `question` compare: they predict the same tokens from the same text. `seconds` and
    `device_hours` count every start; `phases` are those of equal minutes, else (). `failure` says
    why it did not finish.
    """

    name: str
    title: str
    run: str
    shape: str
    question: str
    paper_row: str = ""
    is_reference: bool = False
    num_parameters: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    curve: tuple[tuple[int, float], ...] = ()
    num_tokens: int = 0
    seconds: float = 0.0
    device: str = "cpu"
    device_hours: float = 0.0
    phases: tuple[TimedPhase, ...] = ()
    failure: str | None = None

    @property
    def is_finished(self) -> bool:
        """Whether it has been trained to its end."""
        return bool(self.figures)


@dataclass(frozen=True)
class AblationOutcome:
    """An ablation, finished or as far as it has come.

    `tasks` are the sweeps over its encoders by what a task is called, in the order given, those
    that have begun; their only axis is VARIANT. `wanted_tasks` are all. `recipe` says in sentences
    how all encoders were trained and how they learn. `minutes` are those of each pre-training where
    they are equal, else None. `wall_seconds` is the time of all starts, in which `at_once` runs
    trained side by side.
    """

    name: str
    study: str
    text: str
    variants: tuple[VariantOutcome, ...]
    tasks: Mapping[str, SweepOutcome]
    wanted_tasks: tuple[str, ...]
    seeds: int
    recipe: tuple[str, ...] = ()
    wall_seconds: float = 0.0
    at_once: int = 1
    minutes: float | None = None

    @property
    def reference(self) -> VariantOutcome:
        """What the others are compared with."""
        return next(variant for variant in self.variants if variant.is_reference)


def by_variant(outcome: SweepOutcome, variants: Mapping[str, str]) -> SweepOutcome:
    """A sweep over runs (`model`) as one over the variants that they are, in the variants' order.

    `variants` are the names of variants by those of their runs.
    """
    order = list(variants)
    trials = sorted(outcome.trials, key=lambda each: order.index(each.point["model"]))
    renamed = (replace(trial, point={VARIANT: variants[trial.point["model"]]}) for trial in trials)
    return replace(outcome, axes=(VARIANT,), trials=tuple(renamed))


@dataclass
class PlannedVariant(PlannedRun[PretrainingJob]):
    """A variant and its pre-training run."""

    variant: Variant
    phases: tuple[TimedPhase, ...] = ()

    @property
    def is_finished(self) -> bool:
        """Whether its model folder is written."""
        folder = self.job.folder
        return (folder.path / ARTIFACTS_NAME / OUTCOME).is_file() and folder.model.is_dir()

    @property
    def criterion(self) -> str:
        """The metric reported to Tune."""
        return f"heldout/{metric_name(self.job.settings.rows.objective, 'masked_token_accuracy')}"

    @cached_property
    def config(self) -> ModelConfig:
        """The encoder's."""
        return self.job.settings.architecture(self.job.vocab_size, pad_token_id=0)

    @cached_property
    def cost(self) -> float:
        """About the FLOPs of all its steps, as if all rows were full."""
        settings = self.job.settings
        is_decoder = settings.rows.objective == "left_to_right"
        flops = 0.0
        for number, (phase, batch) in enumerate(
            zip(settings.phases, settings.batches, strict=True)
        ):
            share = 1.0 if is_decoder else settings.rows_of(number).masked_share
            num_rows = batch.global_batch_size
            num_tokens = num_rows * phase.sequence_length
            flops += phase.steps * training_flops(
                self.config,
                num_tokens=num_tokens,
                sum_of_squared_lengths=num_tokens * phase.sequence_length,
                num_predictions=round(num_tokens * share),
                num_rows=num_rows,
                num_read=round(num_tokens * share),
            )
        return flops

    @cached_property
    def used_seconds(self) -> float:
        """What its training took, once finished; reading its checkpoint hashes all of it."""
        return self.job.folder.last_checkpoint().extra["used_seconds"]

    def finish(self, *, stopped_early: bool = False) -> None:
        """Writes the model folder and the files next to it; no scheduler stops a pre-training."""
        assert not stopped_early
        from workflows.pretraining.results import write_results  # loads torch

        write_results(self.job)
        write_outcome(self.job.folder, self.job.folder.last_checkpoint())

    @property
    def outcome(self) -> VariantOutcome:
        """The outcome so far."""
        planned = VariantOutcome(
            name=self.variant.name,
            title=self.variant.title,
            run=self.name,
            shape=shape_text(shape_of(self.job.settings)),
            question=self._question(),
            paper_row=self.variant.paper_row,
            is_reference=self.variant.is_reference,
            num_parameters=self._num_parameters(),
            phases=self.phases,
            failure=self.failure,
        )
        return self._with_figures(planned) if self.is_finished else planned

    def _with_figures(self, planned: VariantOutcome) -> VariantOutcome:
        from workflows.training.job import Usage

        loss = f"heldout/{metric_name(self.job.settings.rows.objective, 'masked_token_loss')}"
        figures: dict[str, float] = {}
        curve: list[tuple[int, float]] = []
        for record in read_records(self.job.folder.path / JOURNAL_NAME):
            of_heldout = dict(self._measured(record.metrics))
            figures |= of_heldout
            if loss in of_heldout:
                curve.append((record.step, of_heldout[loss]))
        checkpoint = self.job.folder.last_checkpoint()
        usage = Usage.of(checkpoint)
        return replace(
            planned,
            figures=figures,
            curve=tuple(curve),
            num_tokens=checkpoint.num_tokens_seen,
            seconds=checkpoint.extra["used_seconds"],
            device=usage.device,
            device_hours=usage.device_hours,
        )

    def _measured(self, metrics: Mapping[str, float]) -> Iterator[tuple[str, float]]:
        """The figures of held-out text, `heldout/…` those of the ablation's own text.

        To a control that is the other text.
        """
        is_control = self.variant.name == CONTROL
        names = {"heldout": "other", "other": "heldout"} if is_control else {}
        for name, value in metrics.items():
            corpus, _, metric = name.partition("/")
            if corpus in ("heldout", "other"):
                yield f"{names.get(corpus, corpus)}/{metric}", value

    def _question(self) -> str:
        """What is predicted: losses of variants with the same answer are comparable."""
        rows = self.job.settings.heldout_rows
        if rows.objective == "left_to_right":
            return "next tokens"
        shares = f"{rows.mask_token_share:.0%} [MASK], {rows.random_token_share:.0%} random"
        return f"masked tokens ({rows.masked_share:.0%} of all; {shares})"

    def _num_parameters(self) -> int:
        import torch

        from bert_core.model.bert import Bert

        with torch.device("meta"):
            encoder = Bert.for_pretraining(self.config).encoder
        return sum(parameter.numel() for parameter in encoder.parameters())


KIND = "ablations"
"""The folder of ablations in the storage."""


class Ablation(PlannedRuns[AblateSettings]):
    """An ablation and its variants, each locked for this process while the ablation is open.

    `sweeps` are those of the tasks, by the task's key, as far as they have come.
    """

    def __init__(
        self,
        settings: AblateSettings,
        storage: Storage,
        folder: RunFolder,
        shards: TokenShards,
        variants: list[PlannedVariant],
        start: Start | None = None,
    ) -> None:
        super().__init__(settings, storage, folder)
        self.shards, self.start = shards, start
        self.variants, self.tasks = variants, learned_tasks(settings)
        self.sweeps: dict[str, SweepOutcome] = {}

    @cached_property
    def recipe(self) -> tuple[str, ...]:
        """How all encoders are trained, and how they learn, in sentences."""
        return described_recipe(self.settings, self.start, self.shards)

    def tracked_run(self) -> TrackedRun:
        """The ablation's run at MLflow."""
        settings, shards = self.settings, self.shards
        source = ", ".join(settings.text) if settings.shards is None else shards.folder.name
        data = DatasetInput("pre-training text", shards.data_hash, source)
        return self._tracked(data, {"tasks": ", ".join(task.key for task in self.tasks)})

    def left(self) -> list[PlannedVariant]:
        """The variants to pre-train, the longest first."""
        return unfinished(self.variants)

    def sweep_settings(self, learned: LearnedTask) -> TuneSettings:
        """The sweep over the encoders that there are, to learn a task from each."""
        there = [variant for variant in self.variants if variant.is_finished]
        reference = next((each for each in there if each.variant.is_reference), there[0])
        return tune_settings(
            self.settings,
            learned,
            [each.name for each in there],
            reference.name,
            fewest_layers=fewest_layers([variant.job.settings for variant in self.variants]),
        )

    def note_sweep(self, learned: LearnedTask, outcome: SweepOutcome) -> None:
        """Records the progress of a task's sweep."""
        names = {variant.name: variant.variant.name for variant in self.variants}
        self.sweeps[learned.key] = by_variant(outcome, names)

    def failures(self) -> list[str]:
        """The reasons of all failed runs."""
        reasons = [variant.failure for variant in self.variants]
        reasons += [trial.failure for sweep in self.sweeps.values() for trial in sweep.trials]
        return [reason for reason in reasons if reason]

    def mean_figures(self) -> dict[str, float]:
        """The mean of each variant on each task, by `task/variant`, in 0..1."""
        figures: dict[str, list[float]] = {}
        for key, sweep in self.sweeps.items():
            for trial in sweep.trials:
                if trial.score is not None:
                    figures.setdefault(f"{key}/{trial.point[VARIANT]}", []).append(trial.score)
        return {name: fmean(scores) for name, scores in figures.items()}

    def outcome(self, at_once: int) -> AblationOutcome:
        """The ablation as far as it has come."""
        settings = self.settings
        return AblationOutcome(
            name=self.folder.name,
            study=settings.study,
            text=", ".join(settings.text) if settings.shards is None else settings.shards.name,
            variants=tuple(variant.outcome for variant in self.variants),
            tasks=self.sweeps,
            wanted_tasks=tuple(task.key for task in self.tasks),
            seeds=settings.seeds,
            recipe=self.recipe,
            wall_seconds=self.seconds(),
            at_once=at_once,
            minutes=settings.minutes,
        )


@contextmanager
def opened_ablation(settings: AblateSettings, storage: Storage) -> Iterator[Ablation]:
    """The ablation of these settings, taken for this process alone.

    Text is prepared, and the tasks' data are read, before anything is trained. Raises `UserError`
    for input that the user can fix.
    """
    start = find_start(settings, storage)
    settings = continue_from(settings, start)  # a variant from scratch has that shape, too
    learned_tasks(settings)
    variants = chosen_variants(settings.study, settings, settings.variants)
    to_train = [variant_settings(settings, variant) for variant in variants]
    tokenizer = None if start is None else start.encoder.path
    prepared = given_shards(settings, storage.folder, tokenizer)
    shards = open_shards(prepared, "train")
    if settings.control is not None:
        to_train = [
            on_its_text(variant, each, prepared, settings.control)
            for variant, each in zip(variants, to_train, strict=True)
        ]
    starts = [find_start(each, storage) for each in to_train]
    to_train = [continue_from(*pair) for pair in zip(to_train, starts, strict=True)]
    texts = [open_shards(each.shards or prepared, "train") for each in to_train]
    pairs = zip(to_train, texts, strict=True)
    teachers = [find_teacher(each, storage, text) for each, text in pairs]
    inputs = [recipe_inputs(*each) for each in zip(to_train, texts, starts, teachers, strict=True)]
    control = settings.control and open_shards(settings.control, "train").data_hash
    recipe = {
        "study": settings.study,
        "variants": {
            variant.name: each.recipe() | {name: read[name] for name in read if name != "data"}
            for variant, each, read in zip(variants, to_train, inputs, strict=True)
        },
        "data": shards.data_hash,
        **({} if control is None else {"control": control}),
        "tasks": _tasks_recipe(settings, shards, fewest_layers=fewest_layers(to_train)),
        "seeds": settings.seeds,
        **({} if settings.minutes is None else {"minutes": settings.minutes}),
    }
    name = settings.name or f"{settings.study}-{settings_hash(recipe)}"
    with ExitStack() as opened:
        opening = open_run(storage.folder, name, recipe, fresh=settings.fresh, kind=KIND)
        folder = opened.enter_context(opening)
        models = [
            (begun and begun.encoder.path, teacher and teacher.path.absolute())
            for begun, teacher in zip(starts, teachers, strict=True)
        ]
        given = list(zip(variants, to_train, models, strict=True))
        timed = of_equal_time(settings, folder, given, prepared)
        planned = [
            PlannedVariant(
                opened.enter_context(opened_pretraining(each, storage, text, begun)),
                variant,
                phases,
            )
            for variant, (each, phases), text, begun in zip(
                variants, timed, texts, starts, strict=True
            )
        ]
        write_atomically(folder.settings, _settings_text(settings))
        yield Ablation(settings, storage, folder, shards, planned, start)


def fewest_layers(variants: Sequence[PretrainSettings]) -> int:
    """The layers that all variants have."""
    return min(shape_of(variant)[0] for variant in variants)


def described_recipe(
    settings: AblateSettings, start: Start | None, shards: TokenShards
) -> tuple[str, ...]:
    """How all encoders are trained, and how they learn, in sentences."""
    learning = settings.finetuning
    steps = ", ".join(
        f"{phase.steps:,} steps of {batch.global_batch_size:,} rows of "
        f"{phase.sequence_length} tokens"
        for phase, batch in zip(settings.phases, settings.batches, strict=True)
    )
    if settings.minutes is not None:
        steps = f"as many steps as take {settings.minutes:g} minutes, in the shares of {steps}"
    reads = "All encoders see the same text"
    if settings.control is not None:
        reads = f"All encoders but the control, which sees {settings.control.name}, see one text"
    return (
        f"{reads}. But for what the study varies they train {steps}, seed {settings.seed}, and "
        f"are {settings.model.described}.",
        *([] if start is None else _of_the_start(start, shards)),
        "All learn alike, with the dropout that is usual for their block: "
        f"{number_of(learning.epochs, 'epoch')} in batches of {learning.batch_size}, peak learning "
        f"rate {finetuning_rate(settings):g}, which is searched for none of them.",
    )


def _of_the_start(start: Start, shards: TokenShards) -> Iterator[str]:
    before, after = tokens_per_word(start, shards)
    instead = "" if before == after else f" instead of {before:.3f}"
    yield f"The start model is {start.name}. A word of the text is {after:.3f} tokens{instead}."
    if start.fresh:
        yield (
            f"The start model has no head {' or '.join(start.fresh)}: all have one drawn from one "
            "seed, so held-out figures of the start model are those of a head that knows how "
            "frequent tokens are, and nothing else."
        )


def _tasks_recipe(
    settings: AblateSettings, shards: TokenShards, *, fewest_layers: int
) -> dict[str, object]:
    """What decides what is learned: reads the data of all tasks, so that a wrong one stops here."""
    tokenizer, found = load_tokenizer(shards.folder), {}
    for learned in learned_tasks(settings):
        sweep = tune_settings(
            settings, learned, ["encoder"], "encoder", fewest_layers=fewest_layers
        ).for_encoder(settings.architecture(shards.vocab_size, pad_token_id=0))
        recipe = {name: each for name, each in sweep.recipe().items() if name not in SWEEP_FIELDS}
        found[learned.key] = recipe | {"data": read_task_data(sweep, tokenizer).sha256}
    return found


def _settings_text(settings: AblateSettings) -> str:
    head = "# the settings of an ablation of workflows/ablate.py\n"
    tasks = [f"{task.key}={data_name(task.data)}" for task in learned_tasks(settings)]
    values = settings.portable() | {"task": tasks}
    return head + yaml.safe_dump(values, sort_keys=False)
