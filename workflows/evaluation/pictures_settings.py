"""The settings of the pictures of an encoder, each with its unit."""

from typing import Literal

from pydantic import Field

from workflows.report_run import ReportFolder
from workflows.settings import ONE_PER_ARGUMENT, CommandLineSettings, default_storage

Projection = Literal["pca", "tsne"]
"""How states are drawn in two dimensions."""


class PicturesSettings(CommandLineSettings):
    """What an encoder has learned, as pictures: attention, a map of words or texts, neighbours.

    They are files, and artifacts of a run at MLflow.
    """

    suite: Literal["pictures"] = Field(default="pictures", description="this suite")
    model: str = Field(
        description="encoder, fine-tuned or not: a model folder, models:/NAME@ALIAS, or the name of"
        " a run"
    )
    data: str = Field(
        description="labelled examples: a file, a folder, or hf://OWNER/NAME[:CONFIG]"
    )
    report: ReportFolder = Field(
        description="folder for pictures.md, pictures.json and the pictures"
    )
    task: str = Field(
        default="conll2003", description="what the data is: a tagging task, or one of single texts"
    )
    options: dict[str, str] = Field(
        default={}, description="options of the task for this data, such as text_column=title"
    )
    split: str = Field(default="dev", description="which file of a folder: train, dev, test, …")
    examples: int = Field(default=2000, ge=2, description="examples that are read, drawn")
    sentences: list[str] = Field(
        default=[],
        description="sentences whose attention is drawn, each in quotes; by default some of the"
        " data",
        json_schema_extra=ONE_PER_ARGUMENT,
    )
    words: list[str] = Field(
        default=[],
        description="words whose neighbours are looked up; by default those that mean most"
        " different things in different texts",
    )
    neighbours: int = Field(default=6, ge=1, description="neighbours of a word in a text")
    layers: list[int] = Field(
        default=[],
        description="layers of the map, 0 being the embeddings; by default those, a middle one and"
        " the last, whose states the neighbours are of",
    )
    projection: Projection = Field(
        default="tsne", description="how the map is drawn from the states: tsne or pca"
    )
    points: int = Field(
        default=1500, ge=3, description="points of the map, of each label as many where it has them"
    )
    seed: int = Field(default=0, ge=0, description="decides which examples and points are drawn")
    max_tokens: int = Field(default=4096, ge=8, description="tokens of one forward pass, at most")
    experiment: str = Field(default="pictures", description="the MLflow experiment of the run")
    storage: str = Field(
        default_factory=default_storage,
        description="folder of runs and of the MLflow store; by default ~/.bertline",
    )
    tracking_uri: str | None = Field(
        default=None, description="MLflow tracking URI; by default the store under the storage"
    )
