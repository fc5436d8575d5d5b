"""The settings of a prediction, each with its unit."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from bert_core.command_help import Example, Guide
from bert_core.interface import Aggregation, OverflowOrError
from workflows.inference.text_parts import TextPartsSettings
from workflows.settings import MODEL_PLACES

PredictionFormat = Literal["jsonl", "parquet"]


class PredictSettings(TextPartsSettings):
    """Writes predictions of a fine-tuned model for texts: labels, numbers, entities or answers.

    They match those served over HTTP. After a kill the same command resumes.
    """

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example(
                "a label for each line of a text file",
                "--model models:/mrpc/1 --input texts.txt --output predictions",
            ),
            Example(
                "a column of a table, as Parquet",
                "--model models:/mrpc/1 --input reviews.parquet --text_column review"
                " --id_column id --format parquet --output predictions",
            ),
            Example(
                "the three most probable labels of each text",
                "--model models:/mrpc/1 --input texts --output predictions --top_k 3",
            ),
        ),
        common=(
            "model",
            "input",
            "output",
            "text_column",
            "id_column",
            "format",
            "top_k",
            "overflow",
            "num_workers",
            "fresh",
        ),
    )

    model: str = Field(description=f"fine-tuned model: {MODEL_PLACES}")
    task: str | None = Field(
        default=None,
        description="task of a model that records none, such as one of transformers",
    )
    output: Path = Field(description="folder of the predictions, visible to all nodes of a cluster")
    format: PredictionFormat = Field(default="jsonl", description="of the files of the parts")
    text_column: str = Field(
        default="text",
        description="column of the texts; for entities also of lists of words",
    )
    text_pair_column: str | None = Field(
        default=None,
        description="column of the second texts of pairs; by default text_pair",
    )
    question_column: str = Field(default="question", description="column of the questions")
    context_column: str = Field(
        default="context", description="column of the texts to find answers in"
    )
    overflow: OverflowOrError = Field(
        default="window",
        description="a text that is too long: read in overlapping windows, cut on the left or"
        " right, or refused",
    )
    top_k: int | None = Field(
        default=None,
        ge=1,
        description="labels per text, best first (by default all), or answers (by default 1)",
    )
    aggregation: Aggregation = Field(
        default="first",
        description="how sub-words become entities: none, simple (adjacent ones), or by word:"
        " first, average or max",
    )
    max_answer_length: int | None = Field(
        default=None, ge=1, le=512, description="longest answer, in tokens; by default the model's"
    )
    align_to_words: bool | None = Field(
        default=None, description="whether answers have whole words; by default as the model has it"
    )
    null_threshold: float | None = Field(
        default=None,
        description="null score above which there is no answer; by default the model's",
    )
