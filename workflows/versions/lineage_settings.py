"""The settings of the way back from a version to the text."""

from pydantic import Field
from pydantic_settings import CliPositionalArg

from workflows.settings import CommandLineSettings, default_storage


class LineageSettings(CommandLineSettings):
    """Prints where a registered model comes from: run, code, settings, data, encoder, down to text.

    A paragraph for each model on the way, the version that is asked for first.
    """

    model: CliPositionalArg[str] = Field(
        description="NAME@ALIAS or NAME/3, with models:/ before it or without"
    )
    json_: bool = Field(default=False, alias="json", description="print everything as JSON")
    storage: str = Field(
        default_factory=default_storage,
        description="folder of the MLflow store; by default ~/.bertline",
    )
    tracking_uri: str | None = Field(
        default=None, description="MLflow tracking URI; by default the store under the storage"
    )
