"""An ablation: settings and a study go in; its pre-trainings come out, planned or finished.

And what is to be learned from them. What has been reached lies in the runs' folders, so the same
command does only what is missing.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import yaml

from bert_core.text.shards import TokenShards, open_shards
from bert_core.tokenizer import load_tokenizer
from workflows.ablations.outcome import AblationOutcome, by_variant
from workflows.ablations.planned_variant import PlannedVariant
from workflows.ablations.settings import (
    AblateSettings,
    LearnedTask,
    finetuning_rate,
    learned_tasks,
    tune_settings,
)
from workflows.ablations.studies import chosen_variants, shape_of, variant_settings
from workflows.finetuning.data import read_task_data
from workflows.pretrain import opened_pretraining
from workflows.pretraining.settings import PretrainSettings
from workflows.pretraining.setup import prepared_text
from workflows.reproduction.run_origin import data_name
from workflows.run_folder import RunFolder, open_run, read_seconds, write_atomically
from workflows.settings import settings_hash
from workflows.storage import Storage
from workflows.sweeps.outcome import SweepOutcome
from workflows.sweeps.settings import SWEEP_FIELDS, TuneSettings
from workflows.tracking.tracker import default_tracking_uri

KIND = "ablations"
"""The folder of ablations in the storage."""
CLOCK = "clock.json"


class Ablation:
    """An ablation and its variants, each taken for this process alone while the ablation is open.

    `sweeps` are those of the tasks, by what a task is called, as far as they have come.
    """

    def __init__(
        self,
        settings: AblateSettings,
        storage: Storage,
        folder: RunFolder,
        shards: TokenShards,
        variants: list[PlannedVariant],
    ) -> None:
        self.settings, self.storage, self.folder, self.shards = settings, storage, folder, shards
        self.variants, self.tasks = variants, learned_tasks(settings)
        self.sweeps: dict[str, SweepOutcome] = {}

    @property
    def tracking_uri(self) -> str:
        """Where MLflow is."""
        return self.settings.tracking.uri or default_tracking_uri(self.storage.folder)

    def left(self) -> list[PlannedVariant]:
        """The variants that are not pre-trained, the longest first."""
        return sorted((v for v in self.variants if not v.is_finished), key=lambda v: -v.cost)

    def sweep_settings(self, learned: LearnedTask) -> TuneSettings:
        """The sweep over the encoders that there are, to learn a task from each."""
        there = [each for each in self.variants if each.is_finished]
        reference = next((each for each in there if each.variant.is_reference), there[0])
        return tune_settings(
            self.settings,
            learned,
            [each.name for each in there],
            reference.name,
            fewest_layers=fewest_layers([each.job.settings for each in self.variants]),
        )

    def note_sweep(self, learned: LearnedTask, outcome: SweepOutcome) -> None:
        """Keeps how far a task's sweep has come."""
        names = {each.name: each.variant.name for each in self.variants}
        self.sweeps[learned.key] = by_variant(outcome, names)

    def failures(self) -> list[str]:
        """Why runs have failed, of those that have."""
        reasons = [each.failure for each in self.variants]
        reasons += [trial.failure for each in self.sweeps.values() for trial in each.trials]
        return [each for each in reasons if each]

    def add_seconds(self, seconds: float) -> None:
        """Counts the time of a start."""
        write_atomically(self.folder.path / CLOCK, json.dumps(self.seconds() + seconds))

    def seconds(self) -> float:
        """The time that the ablation has taken, all starts together."""
        return read_seconds(self.folder.path / CLOCK)

    def outcome(self, at_once: int) -> AblationOutcome:
        """The ablation as far as it has come."""
        settings = self.settings
        return AblationOutcome(
            name=self.folder.name,
            study=settings.study,
            text=", ".join(settings.text) if settings.shards is None else settings.shards.name,
            variants=tuple(each.outcome for each in self.variants),
            tasks=self.sweeps,
            wanted_tasks=tuple(each.key for each in self.tasks),
            seeds=settings.seeds,
            recipe=described_recipe(settings),
            wall_seconds=self.seconds(),
            at_once=at_once,
        )


@contextmanager
def opened_ablation(settings: AblateSettings, storage: Storage) -> Iterator[Ablation]:
    """The ablation of these settings, taken for this process alone.

    Text is prepared, and the tasks' data are read, before anything is trained. Raises `UserError`
    for what the user can mend.
    """
    variants = chosen_variants(settings.study, settings, settings.variants)
    to_train = [variant_settings(settings, each) for each in variants]
    shards = open_shards(settings.shards or prepared_text(settings, storage.folder), "train")
    recipe = {
        "study": settings.study,
        "variants": {
            variant.name: each.recipe() for variant, each in zip(variants, to_train, strict=True)
        },
        "data": shards.data_hash,
        "tasks": _tasks_recipe(settings, shards, fewest_layers=fewest_layers(to_train)),
        "seeds": settings.seeds,
    }
    name = settings.name or f"{settings.study}-{settings_hash(recipe)}"
    with ExitStack() as opened:
        opening = open_run(storage.folder, name, recipe, fresh=settings.fresh, kind=KIND)
        folder = opened.enter_context(opening)
        planned = [
            PlannedVariant(variant, opened.enter_context(opened_pretraining(each, storage, shards)))
            for variant, each in zip(variants, to_train, strict=True)
        ]
        write_atomically(folder.settings, _settings_text(settings))
        yield Ablation(settings, storage, folder, shards, planned)


def fewest_layers(variants: Sequence[PretrainSettings]) -> int:
    """The layers that all variants have."""
    return min(shape_of(each)[0] for each in variants)


def described_recipe(settings: AblateSettings) -> tuple[str, ...]:
    """How all encoders are trained, and how they learn, in sentences."""
    learning = settings.finetuning
    steps = ", ".join(
        f"{each.steps:,} steps of {settings.batch.global_batch_size:,} rows of "
        f"{each.sequence_length} tokens"
        for each in settings.phases
    )
    return (
        f"All encoders see the same text: {steps}, seed {settings.seed}. But for what the study "
        f"varies they are {settings.model.described}.",
        f"All learn alike: {learning.epochs} epochs in batches of {learning.batch_size}, peak "
        f"learning rate {finetuning_rate(settings):g}, which is searched for none of them.",
    )


def _tasks_recipe(
    settings: AblateSettings, shards: TokenShards, *, fewest_layers: int
) -> dict[str, object]:
    """What decides what is learned: reads the data of all tasks, so that a wrong one stops here."""
    tokenizer, found = load_tokenizer(shards.folder), {}
    for learned in learned_tasks(settings):
        sweep = tune_settings(
            settings, learned, ["encoder"], "encoder", fewest_layers=fewest_layers
        )
        recipe = {name: each for name, each in sweep.recipe().items() if name not in SWEEP_FIELDS}
        found[learned.key] = recipe | {"data": read_task_data(sweep, tokenizer).sha256}
    return found


def _settings_text(settings: AblateSettings) -> str:
    head = "# the settings of an ablation of workflows/ablate.py\n"
    tasks = [f"{each.key}={data_name(each.data)}" for each in learned_tasks(settings)]
    values = settings.portable() | {"task": tasks}
    return head + yaml.safe_dump(values, sort_keys=False)
