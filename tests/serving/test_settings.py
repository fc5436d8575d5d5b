"""The command line of the server: what it means, and what it refuses in one line."""

from pathlib import Path

import pytest

from bert_core.errors import UserError
from serving.model_sources import SharedSource
from serving.pointers import Address
from serving.settings import parse_arguments


def test_models_have_names():
    settings = parse_arguments(["--model", "a/b", "--model", "ner=c/d", "--port", "0"])
    assert settings.models == {"b": Path("a/b"), "ner": Path("c/d")}


def test_limits_are_options():
    settings = parse_arguments(["--model", "a", "--limits.max_items", "7"])
    assert settings.limits.max_items == 7
    assert settings.limits.max_body_bytes == 2 << 20


def test_two_models_of_one_name_are_refused():
    with pytest.raises(UserError, match="two models of one name"):
        _ = parse_arguments(["--model", "a/b", "--model", "c/b"]).models


def test_models_may_come_from_mlflow():
    given = ["--model", "models:/cats@champion", "--tracking_uri", "http://mlflow:5000"]
    settings = parse_arguments([*given, "--cache", "here", "--cache_gib", "0.5"])
    assert settings.models == {"cats": Address("cats", "champion", None)}
    assert (settings.tracking_uri, settings.cache) == ("http://mlflow:5000", Path("here"))
    assert settings.cache_gib == 0.5


def test_pages_of_named_origins_may_ask():
    assert parse_arguments(["--model", "a"]).cors_origins == []
    origins = ["https://a.example", "http://localhost:3000"]
    given = [word for each in origins for word in ("--cors_origins", each)]
    assert parse_arguments(["--model", "a", *given]).cors_origins == origins
    with pytest.raises(UserError, match=r"is no origin.*--cors_origins"):
        parse_arguments(["--model", "a", "--cors_origins", "*"])


def test_names_and_proxies_are_told():
    given = ["--allowed_hosts", "A.example", "--allowed_hosts", "::2"]
    given += ["--forwarded_allow_ips", "10.0.0.0/8", "--forwarded_allow_ips", "::1"]
    settings = parse_arguments(["--model", "a", *given])
    assert settings.allowed_hosts == ["a.example", "::2"]
    assert settings.forwarded_allow_ips == ["10.0.0.0/8", "::1/128"]
    for option, wrong in (("allowed_hosts", "a:80"), ("forwarded_allow_ips", "proxy.example")):
        with pytest.raises(UserError, match=option):
            parse_arguments(["--model", "a", f"--{option}", wrong])


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "a.example"])
def test_listening_to_the_world_has_to_be_meant(host):
    with pytest.raises(UserError, match="without keys"):
        parse_arguments(["--model", "a", "--host", host])
    assert parse_arguments(["--model", "a", "--host", host, "--insecure"]).host == host
    guarded = ["--model", "a", "--host", host, "--api_key_file", "keys.json"]
    assert parse_arguments(guarded).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.0.0.5"])
def test_this_machine_may_listen_to_itself(host):
    assert parse_arguments(["--model", "a", "--host", host]).host == host


@pytest.mark.parametrize(
    "arguments",
    [[], ["--model", "a", "--port", "70000"], ["--model", "a", "--limits.max_items", "x"]],
)
def test_what_is_wrong_is_one_line(arguments):
    with pytest.raises(UserError) as told:
        parse_arguments(arguments)
    assert "\n" not in str(told.value) and "see --help" in str(told.value)


def test_the_environment_says_nothing(monkeypatch):
    monkeypatch.setenv("PORT", "1")
    monkeypatch.setenv("INSECURE", "true")
    settings = parse_arguments(["--model", "a"])
    assert settings.port == 8000 and not settings.insecure


def test_a_model_and_its_canary_are_taken_whole():
    path = '/a, b/"c"=[d]\\/ü'
    given = ["--model", path, "--model=e", "--canary", f"e={path},0.25", "--shadow=e=f,1"]
    settings = parse_arguments(given)
    assert settings.model == [path, "e"]
    assert list(settings.models.values()) == [Path(path), Path("e")]
    assert settings.beside["canary"]["e"] == SharedSource(Path(path), 0.25)
    assert settings.beside["shadow"]["e"] == SharedSource(Path("f"), 1.0)
