"""The settings of what is done to texts part by part on a cluster, each with its unit."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from workflows.settings import CommandLineSettings, default_storage

OF_ONE_START = (
    *("output", "fresh", "num_workers", "use_gpu", "threads_per_worker", "max_tokens"),
    *("skip_bad", "storage", "tracking_uri", "model"),
)
"""The settings that may change when a command goes on: results depend on the others."""


class TextPartsSettings(CommandLineSettings):
    """What is read, by which model, and by how many processes."""

    model: str
    input: list[str] = Field(
        min_length=1,
        description="files, folders, globs or s3:// and gs:// addresses of texts: a line of .txt"
        " (empty ones are left out and counted), a record of .jsonl (both also .xz and .gz) or of"
        " .parquet (an empty text keeps its place); several may follow",
    )
    output: Path = Field(description="folder of the results; all nodes of a cluster must see it")
    text_column: str = Field(default="text", description="column of the texts")
    id_column: str | None = Field(
        default=None,
        description="column of their ids, which become strings; by default, and for lines of .txt,"
        " FILE:PLACE, the place being a byte, or a row of Parquet",
    )
    skip_bad: bool = Field(
        default=False,
        description="name files that cannot be read, and go on with the rest; without it more than"
        " 1 % of a file's records without text, or that are no JSON, is an error too",
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32", description="type of matrix products"
    )
    max_tokens: int = Field(default=4096, ge=8, description="tokens of one forward pass, at most")
    num_workers: int | None = Field(
        default=None, ge=1, description="processes; by default one for each GPU, or each CPU"
    )
    use_gpu: bool | None = Field(
        default=None, description="one GPU per process; by default where there are any"
    )
    threads_per_worker: int = Field(default=1, ge=1, description="CPUs of a process, without GPU")
    part_bytes: int | None = Field(
        default=None,
        ge=1,
        description="bytes of text in a part, the least that is done again; by default a 64th of"
        " the input, between 32 KiB and 512 KiB",
    )
    storage: str = Field(
        default_factory=default_storage,
        description="folder of runs and of the MLflow store, for models that are named; by default"
        " ~/.bertline",
    )
    tracking_uri: str | None = Field(
        default=None, description="MLflow tracking URI; by default the store under the storage"
    )
    fresh: bool = Field(
        default=False, description="start over; what stands in the output folder is renamed"
    )
