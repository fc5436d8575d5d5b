"""The settings of quantizing a model, each with its unit."""

from pathlib import Path

from pydantic import Field

from workflows.settings import CommandLineSettings, default_storage


class QuantizeSettings(CommandLineSettings):
    """Writes a model folder that is computed in int8 on the CPU, with the loss in its card.

    The loss is measured first: the metrics of a fine-tuned model on labelled data, or the cosine of
    an encoder's text vectors with those in float32.
    """

    model: str = Field(
        description="a model folder, models:/NAME@ALIAS, or the name of a run; in float32"
    )
    data: str = Field(
        description="file of examples with answers, folder with the files of the splits, or"
        " hf://OWNER/NAME[:CONFIG]; of an encoder, a file of texts, one a line (or .jsonl, .parquet"
        " with a column text)"
    )
    output: Path = Field(description="the folder to write; must not exist")
    split: str = Field(default="dev", description="which file of a folder: train, dev, test, …")
    task: str | None = Field(
        default=None,
        description="the task of a model that names none, such as one of transformers; a model of"
        " another task is refused; by default any is taken",
    )
    options: dict[str, str] = Field(
        default={},
        description="options of the model's task for this data, such as text_column=title",
    )
    num_resamples: int = Field(
        default=1000, ge=100, description="bootstrap samples behind each 95 % interval"
    )
    seed: int = Field(default=0, ge=0, description="decides the bootstrap samples")
    max_tokens: int = Field(
        default=1024, ge=8, description="tokens of one forward pass, at most; the server's default"
    )
    storage: str = Field(
        default_factory=default_storage,
        description="folder of runs and of the MLflow store, for models that are named; by default"
        " ~/.bertline",
    )
    tracking_uri: str | None = Field(
        default=None, description="MLflow tracking URI; by default the store under the storage"
    )
