"""The table of ports in infra/README.md says what the commands and Ray Serve say."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from ray.serve._private import constants

INFRA = Path(__file__).parents[3] / "infra"


def table():
    """Ports by what says them."""
    text = (INFRA / "README.md").read_text(encoding="utf-8")
    rows = re.search(r"^\| port \|.*\n\|---.*\n((?:\|.*\n)+)", text, re.MULTILINE)[1].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {said.strip("`"): port for port, _, said, _ in cells}


def ports_said(name):
    """The ports in the start commands of a launcher file, by option."""
    config = yaml.safe_load((INFRA / "ray" / f"{name}.yaml").read_text())
    commands = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    words = [word for command in commands for word in shlex.split(command)]
    options = [word.split("=") for word in words if re.match(r"--[\w-]*port=", word)]
    assert len({option for option, _ in options}) >= 10
    found = dict(options)
    assert all(found[option] == port for option, port in options)
    return found


@pytest.mark.parametrize("name", ["gpu", "tpu"])
def test_the_table_has_the_ports_of_the_start_commands_and_no_others(name):
    told = {said: port for said, port in table().items() if said.startswith("--")}
    assert told == ports_said(name)


def test_the_table_has_the_ports_of_ray_serve():
    told = {said: port for said, port in table().items() if said.startswith("RAY_SERVE_")}
    assert len(told) == 5
    assert told == {said: str(getattr(constants, said)) for said in told}
    set_here = (INFRA / "ray-serve.env").read_text()
    assert not [said for said in told if said in set_here]
    serve = yaml.safe_load((INFRA / "serve.yaml").read_text())
    assert table()["http_options.port"] == str(serve["http_options"]["port"])


def test_no_port_is_told_twice():
    ports = list(table().values())
    assert len(set(ports)) == len(ports)
