"""The playground's files: what is sent, to whom, and what is not."""

import re
import tomllib
from pathlib import Path

import pytest

from serving import routes
from serving.engine import Engine
from serving.keys import add_key, read_keys
from serving.models import close_models, load_models

FOLDER = Path(routes.__file__).parent.parent / "playground"
FILES = {each.name: each for each in FOLDER.iterdir() if each.name != "index.html"}
MEDIA_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


def test_the_page_and_its_files_are_sent_with_a_strict_policy(server):
    status, page, headers = server.ask_whole("/")
    assert status == 200 and page == (FOLDER / "index.html").read_bytes()
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    answers = {name: server.ask_whole(f"/playground/{name}") for name in FILES}
    for name, (status, content, found) in answers.items():
        assert status == 200 and content == FILES[name].read_bytes()
        assert found["Content-Type"] == MEDIA_TYPES[FILES[name].suffix]
    for found in (headers, *(each for _, _, each in answers.values())):
        policy = found["Content-Security-Policy"]
        assert policy.startswith("default-src 'self';") and "unsafe" not in policy
        assert found["X-Content-Type-Options"] == "nosniff"
        assert found["Referrer-Policy"] == "no-referrer"


def test_what_a_browser_has_is_not_sent_again(server):
    _, page, headers = server.ask_whole("/")
    etag = headers["ETag"]
    for known in (etag, f"W/{etag}", f'"other", {etag}'):
        status, content, found = server.ask_whole("/", headers={"If-None-Match": known})
        assert (status, content) == (304, b"") and found["ETag"] == etag
        assert found["Content-Security-Policy"] == headers["Content-Security-Policy"]
    assert server.ask("/", headers={"If-None-Match": '"other"'}) == (200, page)
    assert server.ask("/", method="HEAD") == (200, b"")
    assert server.ask_whole("/playground/app.js")[2]["ETag"] != etag


@pytest.mark.parametrize(
    "name", ["index.html", "other.js", "../app.py", "%2e%2e/app.py", "..%2fapp.py", "", "app.js/"]
)
def test_nothing_else_is_sent(server, name):
    assert server.ask(f"/playground/{name}")[0] in (404, 307)


def test_the_page_needs_no_key_and_the_models_do(small_models, start_server, tmp_path):
    key = add_key(tmp_path / "keys.json", "user", ["predict"], None)
    models = load_models({"entities": small_models["entities"]})
    server = start_server(Engine(models), small_models, keys=read_keys(tmp_path / "keys.json"))
    for path in ("/", *(f"/playground/{name}" for name in FILES)):
        assert server.ask(path)[0] == 200
    assert server.ask("/info")[0] == server.ask("/playground/models.py")[0] == 401
    status, found = server.ask("/info", headers={"X-API-Key": key})
    assert status == 200 and found["models"].keys() == {"entities"}
    close_models(list(models.values()))


def test_the_playground_is_no_part_of_the_interface(server):
    _, document = server.ask("/openapi.json")
    assert "/" not in document["paths"]
    assert not [each for each in document["paths"] if each.startswith("/playground")]


def test_the_files_hold_no_foreign_address_and_make_no_html():
    texts = {name: path.read_text(encoding="utf-8") for name, path in FILES.items()}
    texts["index.html"] = page = (FOLDER / "index.html").read_text(encoding="utf-8")
    for name, text in texts.items():
        rest = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?:|[\"'(]//", rest), name
        made = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
        assert not re.search(made, text), name
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*src=)", page)
    named = set(re.findall(r'(?:src|href)="playground/([^"]+)"', page))
    imported = set(re.findall(r'from "\./([^"]+)"', "".join(texts.values())))
    assert named | imported == set(FILES)  # none is missing, none is left over


def test_the_package_brings_all_files(repository):
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))
    (pattern,) = project["tool"]["setuptools"]["package-data"]["serving"]
    assert set(FOLDER.parent.glob(pattern)) == set(FOLDER.iterdir())
