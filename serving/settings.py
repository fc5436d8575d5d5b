"""The settings of a server: those of `python -m serving`, which Ray Serve's deployment shares."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliApp,
    CliSettingsSource,
    PydanticBaseSettingsSource,
)
from pydantic_settings.exceptions import SettingsError

from bert_core.command_help import (
    Example,
    Guide,
    command_line_error,
    help_of_settings,
    program_name,
    show_help,
)
from bert_core.errors import UserError, nearest, refusal
from serving.addresses import Host, Origin, OtlpEndpoint, Proxy, is_loopback
from serving.limits import Limits
from serving.rollout.aliases import Address, Slot, VariantSource, named_models, parse_variants


class ApplicationSettings(BaseModel):
    """What is served and who may ask, on one machine and under Ray Serve."""

    model_config = {"extra": "forbid", "frozen": True}

    model: list[str] = Field(
        min_length=1,
        description="model folder, models:/NAME@ALIAS, models:/NAME/3 or hf://OWNER/NAME; KEY=MODEL"
        " serves it as KEY; repeatable",
    )
    canary: list[str] = Field(
        default=[],
        description="NAME=MODEL,SHARE: a version that answers this share of the requests, 0 to 1;"
        " repeatable",
    )
    shadow: list[str] = Field(
        default=[],
        description="NAME=MODEL,SHARE: a version that gets a copy of this share; its answers are"
        " only compared; repeatable",
    )
    tracking_uri: str | None = Field(
        default=None,
        description="MLflow tracking URI; by default MLFLOW_TRACKING_URI, or the store under"
        " ~/.bertline",
    )
    cache: Path | None = Field(
        default=None, description="folder of fetched models; by default ~/.bertline/models"
    )
    cache_gib: float = Field(
        default=20.0,
        ge=0,
        allow_inf_nan=False,
        description="size of the cache above which models unused for an hour are removed; 0 keeps"
        " all",
    )
    poll_seconds: float = Field(
        default=2.0,
        ge=0,
        description="interval of asking MLflow which version an alias is; 0: at the start only",
    )
    allowed_hosts: list[Host] = Field(
        default=[],
        description="allowed Host names besides localhost and the server's address; by default any"
        " if keys are needed; repeatable",
    )
    api_key_file: Path | None = Field(
        default=None,
        description="file of API keys (python -m serving.new_key); requests then need one",
    )
    webhook_secret_file: Path | None = Field(
        default=None,
        description="file with the secret of MLflow's webhook to /webhooks/mlflow",
    )
    cors_origins: list[Origin] = Field(
        default=[],
        description="origin of browser pages that may send requests, https://a.example; repeatable",
    )
    otlp_endpoint: OtlpEndpoint | None = Field(
        default=None,
        description="OpenTelemetry collector to send spans to, http://HOST:4318; by default no"
        " tracing",
    )
    trace_share: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="share of requests to trace, 0 to 1, unless the client decides (traceparent)",
    )
    insecure: bool = Field(
        default=False,
        description="listen beyond this machine without keys; see --allowed_hosts",
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="type of matrix products; int8 models stay int8",
    )
    limits: Limits = Limits()

    @property
    def models(self) -> dict[str, Path | Address]:
        """The models by the names they are asked for.

        Raises `UserError` for two of one name, and for what is no address of MLflow's registry.
        """
        return named_models(self.model)

    @property
    def variants(self) -> dict[Slot, VariantSource]:
        """The canaries and shadows; raises `UserError` for what is none."""
        return parse_variants(self.models, self.canary, self.shadow)


class ServerSettings(ApplicationSettings, BaseSettings):
    """Serves model folders over HTTP, on one machine."""

    model_config = {
        "cli_implicit_flags": True,
        "cli_hide_none_type": True,
        "cli_avoid_json": True,
        "nested_model_default_partial_update": True,
    }

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example("a model folder", "--model model"),
            Example(
                "the champion of a registered model; the server follows it",
                "--model models:/mrpc@champion",
            ),
            Example(
                "two models beyond this machine, with keys",
                "--model models:/mrpc@champion --model vectors=models:/bert/1 --host 0.0.0.0"
                " --api_key_file keys.json",
            ),
        ),
        common=(
            "model",
            "host",
            "port",
            "tracking_uri",
            "api_key_file",
            "device",
            "precision",
            "threads",
            "canary",
            "limits.max_batch_tokens",
        ),
    )

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(
        default=8000, ge=0, le=65535, description="port to listen on; 0: any free one"
    )
    max_connections: int = Field(
        default=4096,
        ge=1,
        description="open connections; above, idle ones are closed",
    )
    keep_alive_seconds: int = Field(
        default=75,
        ge=0,
        description="time an idle connection stays open; keep it above the load balancer's,"
        " usually 60",
    )
    header_seconds: float = Field(
        default=10,
        gt=0,
        allow_inf_nan=False,
        description="time for the head of a request to arrive",
    )
    forwarded_allow_ips: list[Proxy] = Field(
        default=[],
        description="address or network of a trusted proxy (X-Forwarded-For, X-Forwarded-Proto);"
        " repeatable",
    )
    log_requests: bool = Field(
        default=True, description="log a line of JSON for each request, without its text"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="device; auto: a GPU if there is one"
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        description="threads that compute on the CPU; by default one per core",
    )
    shutdown_seconds: int = Field(
        default=20, ge=1, description="time for running requests to finish at shutdown"
    )

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

    def check(self) -> None:
        """Raises `UserError` for a server that everybody could use unasked."""
        if self.api_key_file is None and not self.insecure and not is_loopback(self.host):
            raise UserError(
                "listening beyond this machine without keys",
                f"--host {self.host}",
                "give --api_key_file, listen at 127.0.0.1, or say --insecure in a closed network",
            )


class _Models(CliSettingsSource):
    """Takes each value of --model, --canary and --shadow whole: a path may have commas and quotes.

    pydantic's own reading divides `NAME=MODEL,SHARE` at the comma.
    """

    def _merge_parsed_list(self, parsed_list: list[str], field_name: str) -> str:
        if field_name in ("model", "canary", "shadow"):
            return json.dumps(parsed_list)
        return super()._merge_parsed_list(parsed_list, field_name)


def parse_arguments(arguments: Sequence[str]) -> ServerSettings:
    """Reads a command line; `--help` prints every option and leaves with exit code 0.

    Raises `UserError`, in one line, for what is wrong with it.
    """
    source = _Models(ServerSettings, cli_exit_on_error=False)
    program = program_name("python -m serving")
    source.root_parser.print_help = lambda: show_help(
        help_of_settings(program, ServerSettings, ServerSettings.guide)
    )
    names = [*ServerSettings.model_fields, *(f"limits.{field}" for field in Limits.model_fields)]
    try:
        settings = CliApp.run(ServerSettings, list(arguments), cli_settings_source=source)
    except SettingsError as error:
        message = " ".join(str(error.__cause__ or error).split())
        raise command_line_error(message, names) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        parts = [part for part in first["loc"] if isinstance(part, str)]
        name = ".".join(parts) or "command line"
        near = nearest(name, names) if first["type"] == "extra_forbidden" else ""
        raise UserError(f"{refusal(error)}{near}", f"--{name}", "see --help") from error
    settings.check()
    return settings
