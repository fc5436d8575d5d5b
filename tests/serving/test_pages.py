"""The playground and the API's page."""

import re
import tomllib
from pathlib import Path
from urllib.parse import urljoin

import pytest

from serving import routes
from serving.keys import add_key, read_keys

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
    _, document = server.ask("/openapi.json")
    hidden = ("/playground", "/docs", "/swagger")
    assert "/" not in document["paths"]
    assert not [path for path in document["paths"] if path.startswith(hidden)]


@pytest.mark.parametrize("folder", ["playground", "swagger"])
@pytest.mark.parametrize(
    "name", ["index.html", "other.js", "../app.py", "%2e%2e/app.py", "..%2fapp.py", "", "app.js/"]
)
def test_nothing_else_is_sent(server, folder, name):
    assert server.ask(f"/{folder}/{name}")[0] in (404, 307)


def test_the_page_needs_no_key_and_the_models_do(small_models, start_server, tmp_path):
    key = add_key(tmp_path / "keys.json", "user", ["predict"], None)
    folders = {"entities": small_models["entities"]}
    server = start_server(folders, keys=read_keys(tmp_path / "keys.json"))
    for path in ("/", *(f"/playground/{name}" for name in FILES)):
        assert server.ask(path)[0] == 200
    assert server.ask("/info")[0] == server.ask("/playground/models.py")[0] == 401
    status, found = server.ask("/info", headers={"X-API-Key": key})
    assert status == 200 and found["models"].keys() == {"entities"}


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


SWAGGER_TYPES = {"js": "text/javascript", "css": "text/css", "png": "image/png"}


def test_the_page_asks_this_server_alone(server):
    status, page, headers = server.ask_whole("/docs")
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page.decode())
    assert len(addresses) == len(SWAGGER_TYPES)
    for each in (*addresses, *re.findall(r"url: '([^']+)'", page.decode())):
        assert not re.match(r"/|\w+:", each)  # relative to wherever the page is
        status, content, headers = server.ask_whole(urljoin("/docs", each))
        assert status == 200 and content
        kind = each.rpartition(".")[2]
        assert headers["Content-Type"].startswith(SWAGGER_TYPES.get(kind, "application/json"))
    assert b"https://" not in page and b"http://" not in page
    assert b'href="docs"' in server.ask("/")[1]


def test_an_answer_is_the_same_the_second_time(server):
    """Middleware adds headers to each: they must not gather."""
    for path in ("/docs", "/swagger/swagger-ui.css"):
        for _ in range(2):
            assert len(server.ask_whole(path)[2].get_all("X-Request-Id")) == 1
