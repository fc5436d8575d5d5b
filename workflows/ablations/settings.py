"""The settings of an ablation: those of pre-training, what is varied, and what is learned then.

What is set for pre-training holds for all variants, but for what the study varies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from bert_core.command_help import Example, Guide
from bert_core.errors import UserError
from bert_core.settings import rate_for
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Task
from workflows.ablations.studies import (
    ADAPTATION,
    BLOCK,
    STUDIES,
    chosen_variants,
    find_study,
    shape_of,
    variant_settings,
)
from workflows.finetuning.settings import settings_class
from workflows.pretraining.job import parse_pretraining
from workflows.pretraining.settings import PretrainSettings
from workflows.settings import given_names, given_option, validated
from workflows.sweeps.settings import TuneSettings, refuse_worker_counts, tune_settings_class
from workflows.training.run_settings import CheckpointSettings, TrackingSettings

EXPERIMENT = "ablations"
DOCUMENTATION = "docs://"


class LearningSettings(BaseModel):
    """How every task is learned from every encoder; several seeds show what a seed alone does."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    epochs: int = Field(default=3, ge=1, description="passes over the training examples")
    batch_size: int = Field(default=32, ge=1, description="examples per step")
    peak_learning_rate: float | None = Field(
        default=None,
        gt=0,
        description="learning rate at the end of the warm-up; by default 5e-5 at width 768, up to"
        " 1e-3 at 128",
    )
    max_length: int | None = Field(
        default=None, ge=8, description="longest row, in tokens; by default the task's"
    )
    max_examples: int = Field(
        default=2500,
        ge=120,
        description="training examples of docs_… tasks",
    )
    feature_epochs: int = Field(
        default=10, ge=1, description="epochs of a tagger over features (TASK:features)"
    )


class AblateSettings(PretrainSettings):
    """Pre-trains the variants of a study and fine-tunes each on some tasks: tables 5, 6 and 8.

    Each pre-training and each fine-tuning is a run of its own, one worker each, several side by
    side. Without more than --study: small encoders on the documentation that is on this machine.
    """

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example(
                "masked tokens against left to right, on the documentation of this machine",
                "--study objective",
            ),
            Example(
                "sizes of the encoder, each fine-tuned on two tasks",
                "--study size --shards shards --task mnli=glue/MNLI conll2003=ner",
            ),
            Example(
                "whether adapting an encoder to a text helped (also bertline adapt --report)",
                "--study adaptation --preset adapt --start_from MODEL_FOLDER --shards shards "
                "--control other_shards",
            ),
        ),
        common=(
            "study",
            "variants",
            "task",
            "seeds",
            "finetuning.epochs",
            "finetuning.peak_learning_rate",
            "preset",
            "shards",
            "profile",
            "at_once",
        ),
        refused=("tracking.register_as",),
    )

    machine_fields = PretrainSettings.machine_fields | {"task", "control"}
    trains_on_tpu = False  # nor do the fine-tunings

    study: str = Field(description=f"what to vary: {', '.join(STUDIES)}")
    variants: tuple[str, ...] = Field(
        default=(),
        description="only these variants, and the paper's choice (such as mlm, 100/0/0, 0.4 or"
        " 24/1024/16); by default all",
    )
    task: tuple[str, ...] = Field(
        default=tuple(
            f"{name}={DOCUMENTATION}"
            for name in ("docs_library", "docs_parameters", "docs_answers")
        ),
        min_length=1,
        description="TASK=DATA to fine-tune each encoder on, or TASK:features=DATA, as in finetune",
    )
    control: Path | None = Field(
        default=None,
        description="token shards of other text, made with the start model's tokenizer, for the"
        " study adaptation",
    )
    seeds: int = Field(default=3, ge=1, description="fine-tuning runs of each; seeds start at 0")
    minutes: float | None = Field(
        default=None,
        gt=0,
        description="minutes of pre-training of each variant: as many steps as fit, measured"
        " before, in the shares of --phases; the variants are trained one after the other",
    )
    finetuning: LearningSettings = Field(default_factory=LearningSettings)
    at_once: int | None = Field(
        default=None,
        ge=1,
        description="runs at once, at most; by default as many as fit the cluster at the start",
    )
    gpus_per_trial: float = Field(default=1.0, gt=0, description="GPUs of a run, or a share of one")
    tracking: TrackingSettings = Field(
        default=TrackingSettings(experiment=EXPERIMENT, register_as=None)
    )
    checkpoint: CheckpointSettings = Field(default=CheckpointSettings(keep=1))

    @field_validator("tracking")
    @classmethod
    def _nothing_is_registered(cls, tracking: TrackingSettings) -> TrackingSettings:
        if tracking.register_as is not None:
            raise ValueError(
                "an ablation registers no model: leave --tracking.register_as out, and register "
                "a variant with workflows/pretrain.py and its settings.yaml"
            )
        return tracking

    @classmethod
    def _compares_blocks(cls, values: Mapping[str, Any]) -> bool:
        return values.get("study") == BLOCK


@dataclass(frozen=True)
class LearnedTask:
    """A task that is learned from every encoder, how, and from what data."""

    task: str
    approach: str
    data: str

    @property
    def key(self) -> str:
        """What it is called: `mrpc`, or `conll2003:features`."""
        return self.task if self.approach == "finetune" else f"{self.task}:{self.approach}"


def parse(arguments: Sequence[str]) -> AblateSettings:
    """The settings; raises `UserError` for what is wrong, a field that the study varies too."""
    study = given_option(arguments, "study")
    if study is not None:  # first: together with the others' such a value may be wrong as well
        _refuse_varied_fields(study, arguments)
    refuse_worker_counts(arguments)
    settings = parse_pretraining(AblateSettings, arguments)
    _refuse_varied_fields(settings.study, arguments)
    _refuse_unfit_controls(settings)
    _refuse_unfit_models(settings)
    variants = chosen_variants(settings.study, settings, settings.variants)
    if settings.start_from is None:  # else `opened_ablation` asks, once the start model is read
        for variant in variants:
            variant_settings(settings, variant)
    learned_tasks(settings)
    return settings


def _refuse_varied_fields(study: str, arguments: Sequence[str]) -> None:
    given = given_names(arguments)
    for field in find_study(study).fields:
        if field in given:
            remedy = f"leave it out: --study {study} sets it for each variant"
            raise UserError("what the study varies cannot be given", f"--{field}", remedy)


def _refuse_unfit_controls(settings: AblateSettings) -> None:
    """The study adaptation, and no other, has a start model's control."""
    if settings.study == ADAPTATION:
        for option, value in (("start_from", settings.start_from), ("control", settings.control)):
            if value is None:
                what = "the study adaptation compares a start model with a control"
                raise UserError(what, f"--study {ADAPTATION}", f"give --{option}")
        if settings.evaluation.other is not None:
            what = "the study adaptation measures all encoders on both texts"
            raise UserError(what, "--evaluation.other", "leave it out")
    elif settings.control is not None:
        raise UserError("a control of no study", "--control", f"give --study {ADAPTATION}")


def _refuse_unfit_models(settings: AblateSettings) -> None:
    """Raises `UserError` where a start model, or a block, decides what a study varies."""
    study = settings.study
    if settings.start_from is not None and study in ("objective", "size", BLOCK):
        what = f"the study {study} varies what a start model decides"
        raise UserError(what, f"--start_from {settings.start_from}", "leave it out")
    if settings.model.block == "modern" and study == "objective":
        what = "the study objective varies what the modern block has one of"
        raise UserError(what, "--model.block modern", "leave it out")


def learned_tasks(settings: AblateSettings) -> list[LearnedTask]:
    """The tasks, in the order given; raises `UserError` for what is none."""
    tasks: dict[str, LearnedTask] = {}
    for text in settings.task:
        name, equals, data = text.partition("=")
        if not equals or not data:
            raise UserError("a task without data", f"--task {text}", "write TASK=DATA")
        task, colon, approach = name.partition(":")
        found = LearnedTask(task, approach if colon else "finetune", data)
        settings_class(found.task)
        if colon and (approach != "features" or not isinstance(TASKS[task], Tagging)):
            what = "features are for tags of words" if approach == "features" else "no approach"
            raise UserError(
                what, f"--task {text}", f"leave :{approach} out, or give ner:features=DATA"
            )
        if found.key in tasks:
            raise UserError("a task given twice", f"--task {text}", "give each once")
        tasks[found.key] = found
        _refuse_long_rows(settings, found)
    return list(tasks.values())


def _refuse_long_rows(settings: AblateSettings, learned: LearnedTask) -> None:
    """Fine-tuning would refuse them too, after all the pre-training."""
    model = settings.model
    if settings.start_from is not None and "max_position_embeddings" not in model.model_fields_set:
        return  # `opened_ablation` asks again, once the start model is read
    longest, positions = task_options(settings, learned).max_length, model.max_position_embeddings
    if longest > positions:
        raise UserError(
            f"rows of {longest} tokens, the encoders have {positions} positions",
            f"--task {learned.key}",
            f"give --finetuning.max_length {positions}, or "
            f"--model.max_position_embeddings {longest}",
        )


def task_options(settings: AblateSettings, learned: LearnedTask) -> Task:
    """The task with the options that the settings say."""
    options, learning = TASKS[learned.task], settings.finetuning
    changed: dict[str, Any] = {}
    if learning.max_length is not None:
        changed["max_length"] = learning.max_length
    if "max_examples" in type(options).model_fields:
        changed["max_examples"] = learning.max_examples
    return options.model_copy(update=changed)


def tune_settings(
    settings: AblateSettings,
    learned: LearnedTask,
    models: Sequence[str],
    reference: str,
    *,
    fewest_layers: int,
) -> TuneSettings:
    """The sweep over the encoders, names of runs, by which a task is learned from each.

    What depends on the shape is made for that of the settings, the `reference`'s, so that all learn
    alike; features are of layers that all have. Raises `UserError` for what is no setting of a
    fine-tuning.
    """
    learning = settings.finetuning
    values: dict[str, Any] = {
        "task": learned.task,
        "approach": learned.approach,
        "data": learned.data,
        "model": reference,
        "axis": (f"model={','.join(models)}",),
        "seeds": settings.seeds,
        "batch_size": learning.batch_size,
        "options": task_options(settings, learned),
        "tracking": {"uri": settings.tracking.uri, "experiment": settings.tracking.experiment},
        "checkpoint": {"keep": 1},
        "cluster": settings.cluster,
        **{
            name: getattr(settings, name)
            for name in ("profile", "storage", "fresh", "precision", "at_once", "gpus_per_trial")
        },
    }
    if learned.approach == "features":
        values |= {"epochs": learning.feature_epochs}
        values["strategy"] = "concat_last_four" if fewest_layers >= 4 else "last"
        values["tagger"] = {"lstm_size": shape_of(settings)[1]}  # the paper: 768 beside 768
    else:
        rate = finetuning_rate(settings)
        values |= {"epochs": learning.epochs, "optimizer": {"peak_learning_rate": rate}}
    kind = tune_settings_class(learned.task, learned.approach)
    return validated(kind, values, f"--task {learned.key}")


def finetuning_rate(settings: AblateSettings) -> float:
    """The peak learning rate of fine-tuning, the same for all encoders."""
    return settings.finetuning.peak_learning_rate or rate_for(shape_of(settings)[1])
