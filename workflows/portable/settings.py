"""The settings of exporting a model, each with its unit."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from bert_core.command_help import Example, Guide
from workflows.settings import MODEL_PLACES, StoreSettings

Format = Literal["onnx", "openvino"]


class ExportSettings(StoreSettings):
    """Writes a model as a graph for ONNX Runtime or OpenVINO, with tokenizer and labels.

    The graph's outputs are compared with the model's before the folder appears.
    """

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example(
                "a model folder, for ONNX Runtime",
                "--model runs/mrpc/model --output mrpc-onnx",
            ),
            Example(
                "a registered version, in int8",
                "--model models:/mrpc@champion --int8 --output mrpc-onnx-int8",
            ),
            Example(
                "an embedding model, for OpenVINO",
                "--model models:/search/2 --format openvino --output search-openvino",
            ),
        ),
        common=("model", "format", "int8", "output", "storage", "tracking_uri"),
    )

    model: str = Field(description=f"model in float32: {MODEL_PLACES}")
    format: Format = Field(
        default="onnx", description="onnx writes model.onnx, openvino openvino_model.xml and .bin"
    )
    int8: bool = Field(
        default=False,
        description="write weights in 8-bit integers, and report how many decisions stay the same",
    )
    output: Path = Field(description="the folder to write; must not exist")
