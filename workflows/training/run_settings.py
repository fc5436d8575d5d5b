"""The settings that every training run has: its name and place, its workers, its checkpoints."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from bert_core.settings import OptimizerSettings
from serving.registry import default_tracking_uri
from workflows.clusters.settings import ClusterSettings
from workflows.settings import CommandLineSettings, default_storage

_NOT_IN_MODEL_NAMES = "/\\:@?#%'\""
_LONGEST_RUN_NAME = 180
"""Bytes, of the 255 that a file's name may have: the names of locks and of old runs are longer."""


def _model_name(name: str) -> str:
    """What MLflow takes as the name of a model, and what `models:/NAME@ALIAS` can say."""
    wrong = [letter for letter in name if letter in _NOT_IN_MODEL_NAMES or not letter.isprintable()]
    if wrong:
        raise ValueError(f"{name!r} is no name for a model at MLflow: take {wrong[0]!r} out of it")
    if not name.strip(" .") or name != name.strip() or len(name) > 200:
        rule = "1 to 200 characters, not dots alone, no space at either end"
        raise ValueError(f"{name!r} is no name for a model at MLflow: {rule}")
    return name


def _experiment_name(name: str) -> str:
    if not name.strip() or not name.isprintable() or len(name) > 500:
        raise ValueError(f"{name!r} is no name for an experiment: 1 to 500 characters on one line")
    return name


def _run_name(name: str) -> str:
    if len(name.encode()) > _LONGEST_RUN_NAME:
        raise ValueError(f"a name of {len(name.encode())} bytes: at most {_LONGEST_RUN_NAME}")
    return name


ModelName = Annotated[str, AfterValidator(_model_name)]
ExperimentName = Annotated[str, AfterValidator(_experiment_name)]
RunName = Annotated[str, Field(pattern=r"^\w[\w.\-]*$"), AfterValidator(_run_name)]


REGISTER = (("tracking.register_as", "--register"),)
"""The short name of an option that every training command has."""


class CheckpointSettings(BaseModel):
    """When a run is saved, besides its end and any request to stop."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    every_steps: int = Field(default=1000, ge=1, description="steps between checkpoints")
    keep: int = Field(default=3, ge=1, description="newest checkpoints that stay on disk")


class TrackingSettings(BaseModel):
    """Where MLflow is and what a run is called there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    uri: str | None = Field(
        default=None,
        description="MLflow tracking URI; by default a SQLite store under --storage",
    )
    experiment: ExperimentName = Field(default="pretraining", description="MLflow experiment")
    register_as: ModelName | None = Field(
        default="bert",
        description="name to register the encoder under; null: do not register",
    )

    def uri_of(self, storage: Path) -> str:
        """The tracking URI of runs under this storage folder."""
        return self.uri or default_tracking_uri(storage)

    @property
    def asked_name(self) -> str | None:
        """The name under which the user has asked to register, None where a default stands."""
        return self.register_as if "register_as" in self.model_fields_set else None


class RunSettings(CommandLineSettings):
    """What a training run has, whatever it trains."""

    model_config = {"allow_inf_nan": False}

    machine_fields: ClassVar[frozenset[str]] = frozenset({"profile", "name", "storage", "fresh"})
    """What belongs to one machine or one run, and not to what is repeated."""
    trains_on_tpu: ClassVar[bool] = False
    """Whether the steps also go through XLA."""

    profile: str = Field(
        default="local", description="where to train: name of a profile, or a YAML file"
    )
    name: RunName | None = Field(
        default=None,
        description="run name; the same name resumes; by default from settings and data",
    )
    storage: str = Field(
        default_factory=default_storage,
        description="folder of runs, caches and the MLflow store, or address of runs (s3://,"
        " gs://, file://)",
    )
    fresh: bool = Field(
        default=False, description="rename an earlier run of this name and start over"
    )
    seed: int = Field(default=0, ge=0, description="seed of weights, rows, masks and dropout")
    optimizer: OptimizerSettings = Field(default_factory=OptimizerSettings)
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32", description="type of matrix products; weights stay float32"
    )
    checkpoint: CheckpointSettings = Field(default_factory=CheckpointSettings)
    tracking: TrackingSettings = Field(default_factory=TrackingSettings)
    cluster: ClusterSettings = Field(default_factory=ClusterSettings)

    @field_validator("cluster")
    @classmethod
    def _only_some_train_on_tpu(cls, value: ClusterSettings) -> ClusterSettings:
        """Said of the field, so before a TPU's profile is told that `batch` is unknown here."""
        return value if cls.trains_on_tpu else value.without_tpu()

    def asked(self) -> dict[str, str | None]:
        """What may be asked of a finished run too, by option: a version of a name."""
        return {"tracking.register_as": self.tracking.asked_name}

    def portable(self) -> dict[str, Any]:
        """The settings without what belongs to one machine."""
        return self.model_dump(mode="json", exclude=set(self.machine_fields)) | {
            "tracking": self.tracking.model_dump(mode="json", exclude={"uri"})
        }
