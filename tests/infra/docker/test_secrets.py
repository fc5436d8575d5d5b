"""secrets.sh: made once, seen by nobody else, and what they open."""

import configparser
import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
from compose_files import FOLDER, compose, secret_file

from serving.keys import read_keys

SCRIPT = FOLDER / "secrets.sh"


@pytest.fixture
def secrets(tmp_path):
    """Makes the secrets in a folder: what the script said, and the folder."""
    folder = tmp_path / "secrets"

    def make(*arguments):
        return subprocess.run(
            [SCRIPT, *arguments],
            env=os.environ | {"BERTLINE_SECRETS": str(folder)},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return make, folder


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_they_are_made_once_for_their_owner_alone_and_not_shown(secrets):
    make, folder = secrets
    first = make()
    assert first.returncode == 0, first.stderr
    made = contents(folder)
    assert {Path(secret_file(name)).name for name in compose()["secrets"]} <= made.keys()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not [text for text in made.values() if text in first.stdout + first.stderr]
    random = [made[name] for name in ("database_password", "ray_token", "grafana_password")]
    assert len(set(random)) == 3
    assert all(len(each) == 64 and set(each) <= set("0123456789abcdef") for each in random)
    assert make().returncode == 0
    assert contents(folder) == made
    (folder / "ray_token").unlink()
    assert make().returncode == 0
    again = contents(folder)
    assert again.pop("ray_token") != made.pop("ray_token")
    assert again == made


def test_keys_open_what_they_are_for(secrets):
    make, folder = secrets
    assert make().returncode == 0
    keys = read_keys(folder / "api_keys.json")
    client = keys.find((folder / "client_key").read_text())
    prometheus = keys.find((folder / "prometheus_key").read_text())
    assert (client.record.scopes, prometheus.record.scopes) == (("predict",), ("admin",))
    credentials = configparser.ConfigParser()
    credentials.read(folder / "object_store_credentials")
    (identity,) = json.loads((folder / "object_store_keys.json").read_text())["identities"]
    (key,) = identity["credentials"]
    assert key["accessKey"] == credentials["default"]["aws_access_key_id"]
    assert key["secretKey"] == credentials["default"]["aws_secret_access_key"]


def test_help_and_what_it_does_not_take(secrets):
    make, folder = secrets
    assert "database_password" in make("--help").stdout
    refused = make("now")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "error: 'now' is no option; see --help\n"
    assert not folder.exists()


def test_shellcheck_knows_no_fault_of_it():
    done = subprocess.run(["shellcheck", SCRIPT], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)
