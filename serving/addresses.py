"""Hosts, origins, proxies and collectors, as settings name them and requests show them."""

import ipaddress
import re
from functools import lru_cache
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator


def _is_origin(given: str) -> str:
    parts = urlsplit(given)
    written = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}".lower()
    if parts.scheme not in ("http", "https") or not parts.hostname or given != written:
        raise ValueError(
            f"{given!r} is no origin: write scheme, host and port alone, https://a.example"
        )
    return given


Origin = Annotated[str, AfterValidator(_is_origin)]
"""Scheme, host and port of a page, as a browser sends it: `https://a.example`, never `*`."""


_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,254})(:\d{0,5})?")


@lru_cache(maxsize=256)
def host_of(header: str) -> str | None:
    """The name or address in a `Host`, without its port, as it is compared; None of another text.

    Names are in lower case and without a dot at the end, addresses in their shortest form.
    """
    match = _HOST.fullmatch(header)
    if match is None:
        return None
    name = match[1].lower().removesuffix(".")
    return str(address_of(name) or name) or None


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address, IPv4 where one is mapped into IPv6; None of a name."""
    try:
        found = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def is_loopback(host: str) -> bool:
    """Whether a name or address is a loopback one."""
    address = address_of(host)
    return host == "localhost" if address is None else address.is_loopback


def _is_host(given: str) -> str:
    host = host_of(f"[{given}]" if given.count(":") > 1 and given[0] != "[" else given)
    match = _HOST.fullmatch(given)
    if host is None or (match is not None and match[2] is not None):
        raise ValueError(f"{given!r} is no host: write a name or an address alone, a.example")
    return host


Host = Annotated[str, AfterValidator(_is_host)]
"""A name or an address without scheme and port, as `host_of` has it."""


def _is_proxy(given: str) -> str:
    try:
        return str(ipaddress.ip_network(given))
    except ValueError as error:
        raise ValueError(f"{error}: write 10.0.0.7 or 10.0.0.0/8") from None


Proxy = Annotated[str, AfterValidator(_is_proxy)]
"""An address or a network, as `ipaddress` has it."""


TRACES_PATH = "/v1/traces"


def _is_base(given: str) -> str:
    parts = urlsplit(given)
    if "@" in parts.netloc:
        raise ValueError("a password has no place in it: OTEL_EXPORTER_OTLP_HEADERS takes one")
    is_address = parts.scheme in ("http", "https") and parts.hostname
    is_whole = parts.path.rstrip("/").endswith(TRACES_PATH)
    if not is_address or parts.query or parts.fragment or is_whole:
        raise ValueError(f"{given!r} is no base: write http://HOST:4318, without {TRACES_PATH}")
    return given


OtlpEndpoint = Annotated[str, AfterValidator(_is_base)]
"""Address of a collector of OpenTelemetry; traces are sent to `TRACES_PATH` below it."""
