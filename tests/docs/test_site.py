"""The site of `make docs`: no network, no warnings, nothing missing, nothing from other hosts."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from serving.app import create_app
from serving.engine import Engine
from workflows.cli import VERBS, options_of

NO_NETWORK = """
import socket

def refuse(*arguments, **options):
    raise OSError("the site is built without network")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
"""
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
"""Attributes by which a page loads something; those of `a` are only followed by a reader."""


@pytest.fixture(scope="module")
def site(repository, tmp_path_factory):
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(NO_NETWORK)
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder / "site"],
        cwd=repository,
        env=os.environ | {"PYTHONPATH": str(folder), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def text_of(page):
    """The visible text of a page."""
    parts = []
    parser = HTMLParser()
    parser.handle_data = parts.append
    parser.feed(page.read_text(encoding="utf-8"))
    return "".join(parts)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("demo", "tune")])
def test_every_option_of_a_command_is_in_the_reference(site, verb, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)  # commands set it
    shown = set(re.findall(r"--[\w.]+", text_of(site / "commands" / verb / "index.html")))
    known = {} if verb == "completion" else options_of(verb)
    assert {option for option in known if not option.startswith("--no-")} - {"--help"} <= shown


def test_every_command_and_route_has_its_place(site):
    assert {page.name for page in (site / "commands").iterdir()} == {*VERBS, "index.html"}
    shown = "\n".join(text_of(page) for page in (site / "http").glob("*/index.html"))
    paths = {*create_app(Engine({})).openapi()["paths"], "/webhooks/mlflow"}
    paths |= {"/admin/traffic", "/admin/traffic/{name}/{role}"}
    assert paths == set(re.findall(r"^(?:GET|POST|PUT|DELETE) (/[\w/{}-]*)", shown, re.MULTILINE))


def test_the_python_interface_is_described(site):
    shown = text_of(site / "python" / "index.html")
    assert {"load_model_folder", "Predictor", "AsyncClient", "RefusalError"} <= set(
        re.findall(r"\w+", shown)
    )


def test_no_page_loads_anything_from_another_host(site):
    loaded = set()
    for page in site.rglob("*.html"):
        parser = HTMLParser()
        parser.handle_starttag = lambda tag, attributes: loaded.add(
            dict(attributes).get(LOADED.get(tag, "")) or ""
        )
        parser.feed(page.read_text(encoding="utf-8"))
    for style in site.rglob("*.css"):
        loaded |= set(re.findall(r"(?:url\(|@import )[\"']?([^)\"']+)", style.read_text()))
    for script in site.rglob("*.js"):
        loaded |= set(re.findall(r"https?://(?:unpkg|cdn|fonts)[^\"'`]*", script.read_text()))
    assert any(address.endswith(".css") for address in loaded)
    assert not [each for each in loaded if re.match(r"(https?:)?//", each)]


def test_links_to_files_outside_are_paths(site):
    """Without an address of the repository there is nowhere to lead to."""
    assert "<code>infra/serve.yaml</code>" in (site / "guides/serve/index.html").read_text()
