"""What a client is opened with is checked, and the key in it is not shown."""

import pytest

from bert_core.errors import UserError
from serving.client.settings import ClientSettings


@pytest.mark.parametrize(
    "address",
    ["", "127.0.0.1:8000", "localhost:8000", "ftp://a", "http://", "http://a?b", "http://a:99999"],
)
def test_an_address_is_that_of_a_server(address):
    with pytest.raises(UserError, match="no address of a server: .*http://HOST:PORT"):
        ClientSettings(address)


@pytest.mark.parametrize("key", ["", "a b", "sécret", "secret\n"])
def test_a_key_that_is_none_is_refused_and_not_shown(key):
    with pytest.raises(UserError) as told:
        ClientSettings("http://a", key)
    assert "cret" not in str(told.value)


@pytest.mark.parametrize(
    "number", [{"timeout_seconds": 0}, {"retry_seconds": -1}, {"concurrency": 0}]
)
def test_numbers_are_large_enough(number):
    with pytest.raises(UserError, match=next(iter(number))):
        ClientSettings("http://a", **number)


def test_nothing_secret_is_shown():
    settings = ClientSettings("https://me:p@ss@example.org/bert/")
    assert settings.shown_address == "https://example.org/bert"
    assert "p@ss" not in repr(settings) and "ss" not in settings.shown_address.partition("//")[2]
    assert "secret" not in repr(ClientSettings("http://a", "secret"))
    with pytest.raises(UserError, match="two ways"):
        ClientSettings("http://me:word@a", "secret")
