"""The settings of a fine-tuning run, each with its unit; the defaults are the paper's (A.3).

The options of the task stand in a section of their own, whose fields are those of the task.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from bert_core.command_help import Example, Guide
from bert_core.config import ModelConfig, ModernConfig
from bert_core.disk import file_sha256
from bert_core.errors import UserError, nearest
from bert_core.model.strategies import STRATEGIES
from bert_core.settings import (
    DecisionSettings,
    DistillationSettings,
    EvaluationPlan,
    FinetuningOptimizerSettings,
    LabelLossSettings,
    Recompute,
)
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import Task
from workflows.settings import LAYERS, MODEL_PLACES, given_option, read_layer
from workflows.training.run_settings import (
    REGISTER,
    ExperimentName,
    ModelName,
    RunSettings,
    TrackingSettings,
)

Approach = Literal["finetune", "features"]

DATA_FIELDS = ("data", "train", "dev", "test", "exclude")
"""The settings that say where data are; what is in them decides a run, not where it is."""
DIVISION_FIELDS = ("split", "folds", "fold", "group_by", "split_seed")
"""The settings that divide the training examples; the examples that come out decide a run."""


_LATER = (
    *("loss", "evaluation", "patience", "freeze_layers", "reinit_layers", "optimizer.layer_decay"),
    *("decisions", "options.thresholds"),
    *(
        "options.classifier_pooling",
        "options.drop_labels",
        "options.max_skipped",
        "options.first_number",
    ),
)
"""Settings that older runs did not have."""


class DropoutSettings(BaseModel):
    """Dropout while fine-tuning; the paper keeps what it pre-trained with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hidden_dropout_prob: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="dropout on hidden states and before the classifier; by default 0.1 (the"
        " paper), of the modern block what its folder says, 0",
    )
    attention_probs_dropout_prob: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="dropout on attention probabilities; by default 0.1, of the modern block what"
        " its folder says, 0",
    )

    def of(self, config: ModelConfig) -> Self:
        """The same with what an encoder of this shape has by default."""
        usual = config if isinstance(config, ModernConfig) else ModelConfig()
        by_default = usual.model_dump(include={*type(self).model_fields})
        return type(self)(**by_default | self.model_dump(exclude_none=True))


class FinetuneTrackingSettings(TrackingSettings):
    """Where MLflow is and what a run is called there."""

    experiment: ExperimentName = Field(default="fine-tuning", description="MLflow experiment")
    register_as: ModelName | None = Field(
        default=None,
        description="name to register the model under; by default it is not registered",
    )


class TaskRunSettings(RunSettings):
    """What a run that learns a task has, whichever weights it trains."""

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example(
                "learn MRPC from a registered encoder, and register the result",
                "--task mrpc --data glue/MRPC --model models:/bert/1 --register mrpc",
            ),
            Example(
                "classify the rows of two tables",
                "--task classification --train train.csv --dev dev.csv --model models:/bert/1"
                " --options.label_column topic",
            ),
            Example(
                "tag words with a BiLSTM over frozen hidden states",
                "--task ner --approach features --data ner --model models:/bert/1",
            ),
        ),
        common=(
            "task",
            "data",
            "model",
            "tracking.register_as",
            "epochs",
            "batch_size",
            "optimizer.peak_learning_rate",
            "options.max_length",
            "name",
            "seed",
        ),
        aliases=REGISTER,
    )

    machine_fields = RunSettings.machine_fields | {"preset", "model", *DATA_FIELDS}

    preset: str | None = Field(
        default=None,
        description="settings to start from: settings.yaml of a run, best.yaml of a sweep",
    )

    task: str = Field(default="classification", description=f"one of {', '.join(TASKS)}")
    data: str = Field(
        default="",
        description="folder with files of train and dev, hf://OWNER/NAME[:CONFIG], or docs:// for"
        " docs_… tasks",
    )
    train: str | None = Field(
        default=None, description="file of train, instead of the one in --data"
    )
    dev: str | None = Field(default=None, description="file of dev, instead of the one in --data")
    test: str | None = Field(
        default=None,
        description="file of test: the best epoch's model is measured on it once, at the end",
    )
    exclude: str | None = Field(
        default=None,
        description="file of training examples to leave out, CSV or JSONL with where and text, such"
        " as suspects.csv of an audit",
    )
    split: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="share of the training examples to take as dev, every label alike; a file of"
        " dev is not read; with --folds it is in no fold",
    )
    folds: int | None = Field(
        default=None,
        ge=2,
        description="divide the training examples into so many folds and take --fold as dev;"
        " tune.py trains on all",
    )
    fold: int | None = Field(default=None, ge=0, description="fold to take as dev, from 0")
    group_by: str | None = Field(
        default=None,
        description="column whose equal values stay together in train or in dev, of --split and"
        " --folds; rows without a value are divided one by one",
    )
    split_seed: int = Field(default=0, ge=0, description="seed of --split and --folds")
    approach: Approach = Field(
        default="finetune",
        description="finetune trains all weights; features trains a BiLSTM on frozen hidden"
        " states, for tagging (paper, 5.3)",
    )
    model: str = Field(description=f"encoder: {MODEL_PLACES}")
    batch_size: int = Field(default=32, ge=1, description="examples per step, all workers")
    epochs: int = Field(default=3, ge=1, description="passes over the training examples")
    max_tokens: int = Field(
        default=4096,
        ge=8,
        description="tokens of one forward pass, at most; changes memory, not results",
    )
    optimizer: FinetuningOptimizerSettings = Field(  # pyright: ignore - frozen, so it may narrow
        default_factory=FinetuningOptimizerSettings
    )
    tracking: FinetuneTrackingSettings = Field(  # pyright: ignore - frozen, so it may narrow
        default_factory=FinetuneTrackingSettings
    )
    loss: LabelLossSettings = Field(default_factory=LabelLossSettings)
    evaluation: EvaluationPlan = Field(default_factory=EvaluationPlan)
    patience: int | None = Field(
        default=None,
        ge=1,
        description="evaluations on dev without a better one after which the run ends; by default"
        " it never ends early",
    )
    decisions: DecisionSettings = Field(default_factory=DecisionSettings)
    options: Task

    @model_validator(mode="after")
    def _division_is_whole(self) -> Self:
        """Which fold is dev may be missing: a sweep trains on all."""
        if self.division_given and self.dev is not None:
            what = f"{self.division_given} takes dev from the training examples"
            raise UserError(
                what, "--dev", "leave one of them out; --test FILE is measured at the end"
            )
        if self.division_given and self.options.divides_itself:
            what = f"--task {self.task} divides its file itself"
            raise UserError(what, self.division_given, "leave it out")
        if self.fold is not None and self.fold >= (self.folds or 0):
            last = f"a number below {self.folds}" if self.folds else "--folds 5, too"
            raise UserError("no such fold", f"--fold {self.fold}", f"give {last}")
        if not self.division_given and (self.group_by is not None or self.split_seed):
            name = "--group_by" if self.group_by is not None else "--split_seed"
            raise UserError("nothing is divided", name, "add --split 0.1, or leave it out")
        return self

    @property
    def division_given(self) -> str:
        """The option that divides the training examples, "" where none does."""
        return "--split" if self.split is not None else "--folds" if self.folds else ""

    @model_validator(mode="after")
    def _loss_is_of_labels(self) -> Self:
        options = [f"--loss.{name}" for name in self.loss.changed]
        if options and not self.options.has_label_loss:
            what = f"it has no effect on --task {self.task}, which learns no labels"
            raise UserError(what, options[0], "leave it out")
        return self

    @model_validator(mode="after")
    def _decisions_can_be_tuned(self) -> Self:
        for name in self.decisions.changed:
            option = f"--decisions.{name}"
            if name not in self.options.tunable:
                raise UserError(
                    f"the task {self.task} has no {name} to tune", option, "leave it out"
                )
        if self.decisions.thresholds and getattr(self.options, "thresholds", None):
            remedy = "leave --options.thresholds out, or this"
            raise UserError("thresholds are given as well", "--decisions.thresholds", remedy)
        return self

    def recipe(self) -> dict[str, Any]:
        """What decides the weights that come out: a run may only go on under the same.

        The approach is told by the fields that only one of them has. An option that came later is
        left out where it says nothing: a default run keeps its name, and an older one may go on.
        """
        changeable = {"preset", "profile", "name", "storage", "fresh", "model", "approach"}
        changeable |= {"tracking", "cluster", "checkpoint", "max_tokens"}
        changeable |= {*DATA_FIELDS, *DIVISION_FIELDS}
        values = self.model_dump(mode="json", exclude=changeable)
        values["options"] = self.options.written()
        for dotted in _LATER:
            section, _, name = dotted.rpartition(".")
            owner = getattr(self, section) if section else self
            field = type(owner).model_fields.get(name)
            if field and getattr(owner, name) == field.get_default(call_default_factory=True):
                del (values[section] if section else values)[name]
        return values

    def asked(self) -> dict[str, str | None]:
        """Also what its model is measured on, or compared with; of a file also what is in it."""
        test, path = self.test, Path(self.test or "")
        if test is not None and "://" not in test and path.expanduser().is_file():
            test += f" {file_sha256(path.expanduser())}"
        return super().asked() | {"test": test, "compare": getattr(self, "compare", None)}

    def source(self, split: str) -> str:
        """Where the examples of a split are: its file, or the folder or address of all.

        Those of dev are in train where train is divided. Raises `UserError` where neither is given.
        """
        split = "train" if split == "dev" and self.division_given else split
        source = getattr(self, split) or self.data
        if not source:
            remedy = "give a folder (finetune.py: or --train FILE and --dev FILE)"
            raise UserError("no data", "--data", remedy)
        return source

    @property
    def data_name(self) -> str:
        """What the data are called where nobody knows this machine: addresses, or last parts."""
        sources = dict.fromkeys((self.source("train"), self.source("dev")))
        return ", ".join(source if "://" in source else Path(source).name for source in sources)

    def encoder_changes(self) -> dict[str, Any]:
        """Fields of the encoder's `ModelConfig` that are other than in its folder."""
        return {}

    def for_encoder(self, config: ModelConfig) -> Self:
        """These settings with what an encoder decides where they say nothing."""
        del config
        return self


class FinetuneSettings(TaskRunSettings):
    """Fine-tunes an encoder, any BERT model folder, on a task."""

    machine_fields = TaskRunSettings.machine_fields | {"teacher", "unlabelled", "compare"}

    dropout: DropoutSettings = Field(default_factory=DropoutSettings)
    freeze_layers: int = Field(
        default=0,
        ge=0,
        description="lowest layers that stay as they are, with the embeddings; 0: all learn",
    )
    reinit_layers: int = Field(
        default=0, ge=0, description="highest layers, and the pooler, to draw anew from the seed"
    )
    keep_layers: int | None = Field(
        default=None,
        ge=1,
        description="so many of the encoder's layers, evenly spaced from the first to the last",
    )
    teacher: str | None = Field(
        default=None,
        description=f"fine-tuned model of the same labels to learn from, too: {MODEL_PLACES}",
    )
    unlabelled: tuple[str, ...] = Field(
        default=(),
        description="files of texts without answers that the teacher answers: tables as train, or"
        " .txt with a text a line",
    )
    recompute: Recompute = "nothing"
    compare: str | None = Field(
        default=None,
        description="model or run to measure beside teacher and student, such as one that has"
        " learned without the teacher",
    )
    distillation: DistillationSettings = Field(default_factory=DistillationSettings)

    @model_validator(mode="after")
    def _only_a_teacher_teaches(self) -> Self:
        given = [f"--{name}" for name in ("unlabelled", "compare") if getattr(self, name)]
        given += [f"--distillation.{name}" for name in self.distillation.changed]
        if given and self.teacher is None:
            remedy = "add --teacher, or leave it out"
            raise UserError("there is no teacher to learn from", given[0], remedy)
        idle = {*given} & {"--unlabelled", "--distillation.temperature"}
        if self.distillation.alpha == 0 and idle:
            what = "with --distillation.alpha 0 nothing is learned from the teacher"
            raise UserError(what, min(idle), "leave one of them out")
        is_number = getattr(self.options, "kind", None) == "regression"
        if self.teacher is not None and self.distillation.alpha == 1 and self.loss.changed:
            what = "with --distillation.alpha 1 nothing is learned from labels"
            where = f"--loss.{self.loss.changed[0]}"
            raise UserError(what, where, "leave one of them out")
        if is_number and "temperature" in self.distillation.changed:
            what = "numbers have no temperature"
            raise UserError(what, "--distillation.temperature", "leave it out")
        return self

    def recipe(self) -> dict[str, Any]:
        """What is of a teacher only where there is one; see `TaskRunSettings.recipe`."""
        values = super().recipe()
        unused = {"teacher", "unlabelled", "compare", "recompute"}
        unused |= {"distillation"} if self.teacher is None else set()
        unused |= {"keep_layers"} if self.keep_layers is None else set()
        return {name: value for name, value in values.items() if name not in unused}

    def encoder_changes(self) -> dict[str, Any]:
        """The dropout, and how many layers are left."""
        layers = {} if self.keep_layers is None else {"num_hidden_layers": self.keep_layers}
        return self.dropout.model_dump(exclude_none=True) | layers

    def for_encoder(self, config: ModelConfig) -> Self:
        """These settings with the dropout that the encoder has by default."""
        return self.model_copy(update={"dropout": self.dropout.of(config)})


class TaggerSettings(BaseModel):
    """The tagger over features; the sizes are the paper's (section 5.3)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lstm_size: int = Field(default=768, ge=1, description="width of the LSTM in each direction")
    lstm_layers: int = Field(default=2, ge=1, description="layers of the LSTM")
    dropout: float = Field(
        default=0.5, ge=0, lt=1, description="dropout on features, and before the classifier"
    )


class FeatureOptimizerSettings(FinetuningOptimizerSettings):
    """The optimizer of a tagger that starts from nothing."""

    peak_learning_rate: float = Field(
        default=1e-3, gt=0, description="learning rate at the end of the warm-up"
    )


class FeatureSettings(TaskRunSettings):
    """Trains a tagger on hidden states of an encoder, any BERT model folder, that stays as it is.

    The states are computed once, and kept under the storage folder for other seeds and strategies.
    """

    epochs: int = Field(default=10, ge=1, description="passes over the training examples")
    strategy: str = Field(
        default="concat_last_four",
        description=f"the layers read: {', '.join(STRATEGIES)}, or layer_N",
    )
    tagger: TaggerSettings = Field(default_factory=TaggerSettings)
    optimizer: FeatureOptimizerSettings = Field(  # pyright: ignore - frozen, so it may narrow
        default_factory=FeatureOptimizerSettings
    )

    @model_validator(mode="after")
    def _no_layer_learns(self) -> Self:
        if self.optimizer.layer_decay != 1:
            what = "no layer learns with --approach features"
            raise UserError(what, "--optimizer.layer_decay", "leave it out")
        return self


APPROACHES: dict[str, type[TaskRunSettings]] = {
    "finetune": FinetuneSettings,
    "features": FeatureSettings,
}
"""The settings of each approach."""


@cache
def settings_class(task: str, approach: str = "finetune") -> type[TaskRunSettings]:
    """The settings of a run that learns this task by this approach, with the task's options.

    Raises `UserError` for a task that is not in TASKS, and an approach that is not for it.
    """
    if task not in TASKS:
        raise UserError(
            f"unknown task{nearest(task, TASKS)}",
            f"--task {task}",
            f"one of {', '.join(TASKS)}",
        )
    if approach not in APPROACHES:
        near = nearest(approach, APPROACHES)
        remedy = f"one of {', '.join(APPROACHES)}"
        raise UserError(f"unknown approach{near}", f"--approach {approach}", remedy)
    options = TASKS[task]
    if approach == "features" and not isinstance(options, Tagging):
        what = f"features are for tags of words, not for --task {task}"
        raise UserError(what, "--approach features", "add --task ner, or leave --approach out")
    base = APPROACHES[approach]
    described = f"options of the task {task}"
    fields = base.model_fields
    return create_model(
        f"{approach.capitalize()}_{task}",
        __base__=base,
        __doc__=f"{base.__doc__}\n\nThe options are those of --task {task}.",
        task=(str, Field(default=task, description=fields["task"].description)),
        approach=(Approach, Field(default=approach, description=fields["approach"].description)),
        options=(type(options), Field(default=options, description=described)),
    )


def task_and_approach(arguments: Sequence[str]) -> tuple[str, str]:
    """What decides which settings there are: as options say it, or else the file of --preset.

    Raises `UserError` for a preset that is no settings file.
    """
    preset, content = given_option(arguments, "preset"), {}
    if preset is not None:
        if not preset.endswith((".yaml", ".yml")):
            what = "no settings file: presets with names are those of pre-training"
            remedy = "give settings.yaml of a run, or best.yaml of a sweep"
            raise UserError(what, f"--preset {preset}", remedy)
        content = read_layer("preset", preset, LAYERS["preset"])
    task, approach = (
        given_option(arguments, name)
        or str(content.get(name) or TaskRunSettings.model_fields[name].default)
        for name in ("task", "approach")
    )
    return task, approach


def read_settings(values: dict[str, Any]) -> TaskRunSettings:
    """The settings of `model_dump`, as a worker gets them."""
    return settings_class(values["task"], values["approach"]).model_validate(values)
