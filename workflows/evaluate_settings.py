"""The settings of an evaluation, each with its unit."""

from pathlib import Path

from pydantic import Field

from workflows.settings import CommandLineSettings


class EvaluateSettings(CommandLineSettings):
    """Measures a fine-tuned model: metrics with intervals, slices, calibration, mistakes."""

    model: str = Field(description="a model folder, models:/NAME@ALIAS, or the name of a run")
    data: str = Field(description="file of examples, or folder with the files of the splits")
    task: str | None = Field(
        default=None,
        description="refuse a model of another task; by default any is taken",
    )
    split: str = Field(default="dev", description="which file of a folder: train, dev, test, …")
    output: Path | None = Field(
        default=None, description="file for a prediction for each example, .jsonl or .parquet"
    )
    report: Path | None = Field(
        default=None, description="folder for report.md, report.json and the pictures"
    )
    compare: str | None = Field(
        default=None, description="a second model, or a file of its predictions (--output of it)"
    )
    slice_by: list[str] = Field(
        default=[], description="columns of the data by whose values metrics are sliced"
    )
    checks: Path | None = Field(
        default=None, description="YAML file of behavioural checks, see docs/behavioural_checks.md"
    )
    num_resamples: int = Field(
        default=1000, ge=100, description="bootstrap samples behind each 95 % interval"
    )
    seed: int = Field(default=0, ge=0, description="decides the bootstrap samples")
    max_tokens: int = Field(default=4096, ge=8, description="tokens of one forward pass, at most")
    storage: str = Field(
        default_factory=lambda: str(Path.home() / ".bertline"),
        description="folder of runs and of the MLflow store, for models that are named",
    )
    tracking_uri: str | None = Field(
        default=None, description="MLflow tracking URI; by default the store under the storage"
    )
