"""The API's page: made of the server's own files, which are found wherever it is mounted."""

import re
from urllib.parse import urljoin

import pytest

MEDIA_TYPES = {"js": "text/javascript", "css": "text/css", "png": "image/png"}


def test_the_page_asks_this_server_alone(server):
    status, page, headers = server.ask_whole("/docs")
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page.decode())
    assert len(addresses) == len(MEDIA_TYPES)
    for each in (*addresses, *re.findall(r"url: '([^']+)'", page.decode())):
        assert not re.match(r"/|\w+:", each)  # relative to wherever the page is
        status, content, headers = server.ask_whole(urljoin("/docs", each))
        assert status == 200 and content
        kind = each.rpartition(".")[2]
        assert headers["Content-Type"].startswith(MEDIA_TYPES.get(kind, "application/json"))
    assert b"https://" not in page and b"http://" not in page


def test_an_answer_is_the_same_the_second_time(server):
    """Middleware adds headers to each: they must not gather."""
    for path in ("/docs", "/swagger/swagger-ui.css"):
        for _ in range(2):
            assert len(server.ask_whole(path)[2].get_all("X-Request-Id")) == 1


@pytest.mark.parametrize("name", ["", "other.js", "%2e%2e/__init__.py", "..%2f__init__.py"])
def test_nothing_else_is_sent(server, name):
    assert server.ask(f"/swagger/{name}")[0] in (404, 307)


def test_it_is_no_part_of_the_interface(server):
    _, document = server.ask("/openapi.json")
    assert not [each for each in document["paths"] if each.startswith(("/docs", "/swagger"))]
