"""What `python -m serving` is told, from its command line."""

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, CliApp, PydanticBaseSettingsSource
from pydantic_settings.exceptions import SettingsError

from bert_core.errors import UserError, nearest
from serving.limits import Limits
from serving.models import model_folders


class ServerSettings(BaseSettings):
    """Serves model folders over HTTP, on one machine."""

    model_config = {
        "extra": "forbid",
        "frozen": True,
        "cli_prog_name": "python -m serving",
        "cli_implicit_flags": True,
        "cli_hide_none_type": True,
        "cli_avoid_json": True,
        "cli_use_class_docs_for_groups": True,
        "nested_model_default_partial_update": True,
    }

    model: list[str] = Field(
        min_length=1,
        description="model folder, or NAME=FOLDER; may be given several times. Without a name the"
        " folder's is the model's",
    )
    host: str = Field(default="127.0.0.1", description="address to listen at")
    port: int = Field(
        default=8000, ge=0, le=65535, description="port to listen at; 0 takes any that is free"
    )
    api_key_file: Path | None = Field(
        default=None,
        description="file of keys that clients have to show one of; see python -m serving.new_key",
    )
    log_requests: bool = Field(
        default=True, description="a line of JSON for each request, without its text"
    )
    insecure: bool = Field(
        default=False, description="listen beyond this machine without asking for keys"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="what computes; auto takes a GPU where there is one"
    )
    threads: int | None = Field(
        default=None, ge=1, description="threads that compute on the CPU; by default all cores"
    )
    shutdown_seconds: int = Field(
        default=20, ge=1, description="seconds that requests have to end when the server is stopped"
    )
    limits: Limits = Limits()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The command line alone: nothing of the environment overrides it in silence."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)

    @property
    def folders(self) -> dict[str, Path]:
        """The model folders by the names they are asked for.

        Raises `UserError` for two of one name.
        """
        return model_folders(self.model)

    def check(self) -> None:
        """Raises `UserError` for a server that everybody could use unasked."""
        if self.api_key_file is None and not self.insecure and not _is_loopback(self.host):
            raise UserError(
                "listening beyond this machine without keys",
                f"--host {self.host}",
                "give --api_key_file, listen at 127.0.0.1, or say --insecure in a closed network",
            )


def parse_arguments(arguments: Sequence[str]) -> ServerSettings:
    """Reads a command line; `--help` prints every option and leaves with exit code 0.

    Raises `UserError`, in one line, for what is wrong with it.
    """
    try:
        settings = CliApp.run(ServerSettings, cli_args=list(arguments))
    except SettingsError as error:
        raise UserError("wrong command line", str(error), "see --help") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"])) or "command line"
        fields = [*ServerSettings.model_fields, *(f"limits.{each}" for each in Limits.model_fields)]
        near = nearest(name, fields) if first["type"] == "extra_forbidden" else ""
        raise UserError(f"{first['msg']}{near}", f"--{name}", "see --help") from error
    settings.check()
    return settings


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
