"""What infra/docker/compose.yaml says, as Docker Compose reads it."""

import re
from functools import cache

from yaml_files import INFRA, document, environment

FOLDER = INFRA / "docker"
COMPOSE = FOLDER / "compose.yaml"
DOCKERFILE = FOLDER / "Dockerfile"


@cache
def compose():
    """The whole file."""
    return document(COMPOSE)


def services():
    """The services by name."""
    return compose()["services"]


def secret_file(name):
    """Where the file of a secret lies, from the folder of compose.yaml."""
    return compose()["secrets"][name]["file"]


def variables(service):
    """What a service has in its environment: its files, then what is said of it."""
    found = {}
    for path in service.get("env_file", []):
        found |= environment(FOLDER / path)
    said = {name: filled(value) for name, value in service.get("environment", {}).items()}
    return found | said


def filled(text, **given):
    """A text with ${NAME:-DEFAULT} filled in and $$ as $."""

    def fill(match):
        return given.get(match["name"], match["default"])

    text = re.sub(r"(?<!\$)\$\{(?P<name>\w+):-(?P<default>[^}]*)\}", fill, text)
    assert not re.search(r"(?<!\$)\$(?!\$)", text), text
    return text.replace("$$", "$")


def mounts(service):
    """What is mounted: (source, target, whether it is a file or folder of the checkout)."""
    for each in service.get("volumes", []):
        source, target, *_ = each.split(":")
        yield source, target, source.startswith(".")
