"""The settings of `python -m serving`, from its command line."""

import json
import sys
from collections.abc import Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliApp,
    CliSettingsSource,
    PydanticBaseSettingsSource,
)
from pydantic_settings.exceptions import SettingsError

from bert_core.errors import UserError, nearest
from serving.limits import Limits
from serving.middleware.access import Host, Origin, is_loopback
from serving.models import Products
from serving.rollout.aliases import Address, Slot, VariantSource, named_models, parse_variants
from serving.telemetry.tracing import OtlpEndpoint, TraceShare


def _is_proxy(given: str) -> str:
    try:
        return str(ip_network(given))
    except ValueError as error:
        raise ValueError(f"{error}: write 10.0.0.7 or 10.0.0.0/8") from None


Proxy = Annotated[str, AfterValidator(_is_proxy)]
"""An address or a network, as `ipaddress` has it."""


class ServerSettings(BaseSettings):
    """Serves model folders over HTTP, on one machine."""

    model_config = {
        "extra": "forbid",
        "frozen": True,
        "cli_implicit_flags": True,
        "cli_hide_none_type": True,
        "cli_avoid_json": True,
        "cli_use_class_docs_for_groups": True,
        "nested_model_default_partial_update": True,
    }

    model: list[str] = Field(
        min_length=1,
        description="model folder, models:/NAME@ALIAS or models:/NAME/3 of MLflow's registry, or"
        " KEY=MODEL for another name than its own; may be given several times",
    )
    canary: list[str] = Field(
        default=[],
        description="NAME=MODEL,SHARE: another version of a model, which answers a share of its"
        " requests (0 to 1); may be given several times",
    )
    shadow: list[str] = Field(
        default=[],
        description="NAME=MODEL,SHARE: another version of a model, which is asked a share of its"
        " requests too; its answers are only compared. May be given several times",
    )
    tracking_uri: str | None = Field(
        default=None,
        description="MLflow that models:/ addresses are of; by default MLFLOW_TRACKING_URI, or the"
        " store under ~/.bertline",
    )
    cache: Path | None = Field(
        default=None, description="folder of fetched models; by default ~/.bertline/models"
    )
    cache_gib: float = Field(
        default=20.0,
        ge=0,
        allow_inf_nan=False,
        description="GiB of fetched models above which those are removed, after a switch, that no"
        " address stands for and that were unused for an hour; 0 keeps all",
    )
    poll_seconds: float = Field(
        default=2.0,
        ge=0,
        description="seconds after which MLflow is asked again which version an alias is, and that"
        " one is served then; 0 asks at the start alone",
    )
    host: str = Field(default="127.0.0.1", description="address to listen at")
    port: int = Field(
        default=8000, ge=0, le=65535, description="port to listen at; 0 takes any that is free"
    )
    max_connections: int = Field(
        default=4096,
        ge=1,
        description="connections that are open at once; above, those that send nothing are closed",
    )
    keep_alive_seconds: int = Field(
        default=75,
        ge=0,
        description="seconds that a connection stays open after an answer; longer than a load"
        " balancer before the server keeps it, which is 60 with most",
    )
    header_seconds: float = Field(
        default=10,
        gt=0,
        allow_inf_nan=False,
        description="seconds in which the head of a request has to arrive",
    )
    allowed_hosts: list[Host] = Field(
        default=[],
        description="name that the server may be asked by, a.example, besides localhost and the"
        " address that a connection comes to; may be given several times. With keys any name is"
        " allowed where none is given",
    )
    forwarded_allow_ips: list[Proxy] = Field(
        default=[],
        description="address or network of a proxy whose X-Forwarded-For and X-Forwarded-Proto are"
        " believed; may be given several times",
    )
    api_key_file: Path | None = Field(
        default=None,
        description="file of keys that clients have to show one of; see python -m serving.new_key",
    )
    webhook_secret_file: Path | None = Field(
        default=None,
        description="file with the secret of MLflow's webhook to /webhooks/mlflow, by which MLflow"
        " is asked as soon as an alias moves",
    )
    log_requests: bool = Field(
        default=True, description="a line of JSON for each request, without its text"
    )
    cors_origins: list[Origin] = Field(
        default=[],
        description="origin of pages that may ask from browsers, https://a.example; may be given"
        " several times, by default none",
    )
    otlp_endpoint: OtlpEndpoint | None = Field(
        default=None,
        description="collector of OpenTelemetry that spans of requests are sent to,"
        " http://HOST:4318; by default none are made",
    )
    trace_share: TraceShare = Field(
        default=1.0,
        description="share of the requests that are traced, 0 to 1, of those whose clients do not"
        " decide it (traceparent)",
    )
    insecure: bool = Field(
        default=False,
        description="listen beyond this machine without asking for keys; names that it may then be"
        " asked by are --allowed_hosts",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="what computes; auto takes a GPU where there is one"
    )
    precision: Products = Field(
        default="float32",
        description="numbers that products are computed in; models in int8 stay so",
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        description="threads that compute on the CPU, each other requests; by default all cores",
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
    def models(self) -> dict[str, Path | Address]:
        """The models by the names they are asked for.

        Raises `UserError` for two of one name, and for what is no address of MLflow's registry.
        """
        return named_models(self.model)

    @property
    def variants(self) -> dict[Slot, VariantSource]:
        """The canaries and shadows; raises `UserError` for what is none."""
        return parse_variants(self.models, self.canary, self.shadow)

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
    try:
        program = Path(sys.argv[0]).name
        is_console_script = program.startswith("bertline ")  # else the path of __main__.py
        program = program if is_console_script else "python -m serving"
        source = _Models(ServerSettings, cli_prog_name=program)
        settings = CliApp.run(ServerSettings, list(arguments), cli_settings_source=source)
    except SettingsError as error:
        raise UserError("wrong command line", str(error), "see --help") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        parts = [part for part in first["loc"] if isinstance(part, str)]
        name = ".".join(parts) or "command line"
        fields = [
            *ServerSettings.model_fields,
            *(f"limits.{field}" for field in Limits.model_fields),
        ]
        near = nearest(name, fields) if first["type"] == "extra_forbidden" else ""
        reason = first["msg"].removeprefix("Value error, ")
        raise UserError(f"{reason}{near}", f"--{name}", "see --help") from error
    settings.check()
    return settings
