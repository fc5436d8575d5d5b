"""The settings of a prediction, each with its unit."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from bert_core.interface import Aggregation, OverflowOrError
from workflows.inference.text_input import TextPartsSettings

PredictionFormat = Literal["jsonl", "parquet"]


class PredictSettings(TextPartsSettings):
    """What a fine-tuned model says of texts: labels, numbers, entities or answers.

    The same as over HTTP. Killed at any moment, the same command finishes the rest.
    """

    model: str = Field(
        description="fine-tuned model: a model folder, models:/NAME@ALIAS, or the name of a run"
    )
    task: str | None = Field(
        default=None,
        description="the task of a model that names none, such as one of transformers; by default"
        " the usual one of its kind",
    )
    output: Path = Field(
        description="folder of the predictions; all nodes of a cluster must see it"
    )
    format: PredictionFormat = Field(default="jsonl", description="of the files of the parts")
    text_column: str = Field(
        default="text",
        description="column of the texts; for entities also of lists of words, whose characters"
        " are those of the words with a space between them",
    )
    text_pair_column: str | None = Field(
        default=None,
        description="column of the second texts, for a model that reads pairs; by default"
        " text_pair",
    )
    question_column: str = Field(default="question", description="column of the questions")
    context_column: str = Field(
        default="context", description="column of the texts in which answers are looked for"
    )
    overflow: OverflowOrError = Field(
        default="window",
        description="what becomes of a text longer than the model takes: read in overlapping"
        " windows, cut on the left or right, or the end of it all with an error",
    )
    top_k: int | None = Field(
        default=None,
        ge=1,
        description="how many labels, best first, by default all; or how many different answers,"
        " by default 1",
    )
    aggregation: Aggregation = Field(
        default="first",
        description="how what is said of sub-words becomes entities: each alone (none), side by"
        " side (simple), or words by their first sub-word, the mean of their sub-words (average),"
        " or the surest (max)",
    )
    max_answer_length: int | None = Field(
        default=None, ge=1, le=512, description="longest answer, in tokens; by default the model's"
    )
    align_to_words: bool | None = Field(
        default=None, description="whether answers have whole words; by default as the model has it"
    )
    null_threshold: float | None = Field(
        default=None,
        description="a null score above this means no answer; by default the model's, of one that"
        " was taught that there may be none",
    )
