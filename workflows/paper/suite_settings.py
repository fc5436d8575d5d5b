"""Settings of the Table 7 and pictures suites, each with its unit; defaults are the paper's."""

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from bert_core.command_help import Example, Guide
from workflows.clusters.settings import ClusterSettings
from workflows.finetuning.settings import TaggerSettings
from workflows.runs.mlflow_run import ReportFolder
from workflows.settings import MODEL_PLACES, ONE_PER_ARGUMENT, StoreSettings


class Table7Settings(StoreSettings):
    """Reproduces Table 7 of the paper: fine-tuning and six strategies of features, on NER.

    Each seed of each row is a run of its own under the storage folder; after a kill the
    same command resumes; finished runs are not repeated.
    """

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example(
                "the table for an encoder",
                "--model models:/bert/1 --data conll2003 --report table7",
            ),
            Example(
                "features only, two seeds",
                "--model models:/bert/1 --data conll2003 --no-finetune --seeds 2",
            ),
            Example(
                "on GPUs",
                "--model models:/bert/1 --data conll2003 --profile gpu --cluster.num_workers 4",
            ),
        ),
        common=(
            "model",
            "data",
            "task",
            "report",
            "seeds",
            "by_layer",
            "finetune",
            "batch_size",
            "profile",
            "storage",
        ),
        action="--suite table7",
    )

    suite: Literal["table7"] = Field(default="table7", description="this suite")
    profile: str = Field(
        default="local", description="where to train: name of a profile, or a YAML file"
    )
    model: str = Field(description=f"encoder: {MODEL_PLACES}")
    data: str = Field(description="folder with train, dev and, for the paper's test column, test")
    task: str = Field(default="conll2003", description="a tagging task")
    report: ReportFolder | None = Field(
        default=None, description="folder for table7.md, table7.json and the pictures"
    )
    seeds: int = Field(default=5, ge=1, description="runs of each row, with seeds from 0 on")
    by_layer: bool = Field(
        default=True, description="measure each layer alone too, for the picture of F1 by layer"
    )
    finetune: bool = Field(default=True, description="measure the row of fine-tuning too")
    document_context: bool = Field(
        default=False, description="show the encoder as much of the document as max_length takes"
    )
    max_length: int = Field(default=128, ge=8, description="longest row")
    batch_size: int = Field(default=32, ge=1, description="examples per step")
    finetuning_epochs: int = Field(default=3, ge=1, description="epochs of fine-tuning")
    finetuning_learning_rate: float = Field(
        default=5e-5, gt=0, description="peak learning rate of fine-tuning, per step"
    )
    feature_epochs: int = Field(default=10, ge=1, description="epochs of a tagger over features")
    feature_learning_rate: float = Field(
        default=1e-3, gt=0, description="peak learning rate of a tagger over features, per step"
    )
    tagger: TaggerSettings = Field(default_factory=TaggerSettings)
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32", description="type of matrix products"
    )
    cluster: ClusterSettings = Field(default_factory=ClusterSettings)

    @field_validator("cluster")
    @classmethod
    def _nothing_here_trains_on_tpu(cls, value: ClusterSettings) -> ClusterSettings:
        return value.without_tpu()


Projection = Literal["pca", "tsne"]
"""How states are drawn in two dimensions."""


class PicturesSettings(StoreSettings):
    """Draws what an encoder has learned: attention, a map of words or texts, neighbours.

    They are files, and artifacts of a run at MLflow.
    """

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example(
                "pictures of an encoder on labelled words",
                "--model models:/bert/1 --data conll2003 --report pictures",
            ),
            Example(
                "attention in a sentence of your own",
                "--model models:/bert/1 --data conll2003 --report pictures"
                ' --sentences "The cat sat on the mat."',
            ),
            Example(
                "neighbours of two words",
                "--model models:/bert/1 --data conll2003 --report pictures --words bank spring",
            ),
        ),
        common=(
            "model",
            "data",
            "report",
            "task",
            "sentences",
            "words",
            "layers",
            "projection",
            "examples",
            "split",
        ),
        action="--suite pictures",
    )

    suite: Literal["pictures"] = Field(default="pictures", description="this suite")
    model: str = Field(description=f"encoder: {MODEL_PLACES}")
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
    split: str = Field(default="dev", description="split of a folder to read: train, dev, test, …")
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
