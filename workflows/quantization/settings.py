"""The settings of quantizing a model, each with its unit."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from bert_core.command_help import Example, Guide
from workflows.settings import MODEL_PLACES, StoreSettings


class QuantizeSettings(StoreSettings):
    """Writes a model folder that is computed in int8 on the CPU, with the loss in its card.

    The loss is measured first: the metrics of a fine-tuned model on labelled data, or the cosine of
    an encoder's text vectors with those in float32.
    """

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example(
                "a fine-tuned model, measured on its dev split",
                "--model models:/mrpc/1 --data glue/MRPC --output mrpc-int8",
            ),
            Example(
                "an encoder, measured on texts",
                "--model models:/bert/1 --data texts.txt --output bert-int8",
            ),
            Example(
                "a fine-tuned model, measured on its test split",
                "--model models:/mrpc/1 --data glue/MRPC --split test --output mrpc-int8",
            ),
        ),
        common=(
            "model",
            "data",
            "output",
            "split",
            "task",
            "options",
            "num_resamples",
            "max_tokens",
            "storage",
            "tracking_uri",
        ),
    )

    model: str = Field(description=f"model in float32: {MODEL_PLACES}")
    data: str = Field(
        description="labelled examples: file, folder with the splits, or hf://OWNER/NAME[:CONFIG];"
        " for an encoder a file of texts"
    )
    output: Path = Field(description="the folder to write; must not exist")
    split: str = Field(default="dev", description="split of a folder to read: train, dev, test, …")
    task: str | None = Field(
        default=None,
        description="task of a model that records none, such as one of transformers",
    )
    options: dict[str, str] = Field(
        default={},
        description="options of the model's task for this data, such as text_column=title",
    )
    num_resamples: int = Field(
        default=1000, ge=100, description="bootstrap samples of each 95 % interval"
    )
    seed: int = Field(default=0, ge=0, description="seed of the bootstrap samples")
    max_tokens: int = Field(default=1024, ge=8, description="tokens of one forward pass, at most")
