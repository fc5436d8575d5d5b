"""Models come out of MLflow's registry as they went in, once."""

import shutil
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mlflow.artifacts import list_artifacts

from bert_core.disk import file_sha256, locked
from bert_core.errors import UserError
from bert_core.model_folder import load_model_folder
from serving.registry import (
    DamagedError,
    KnownDamage,
    UnreachableError,
    as_user_error,
    check_location,
    default_tracking_uri,
    fetch_model,
    lineage_of_tags,
    mlflow_environment,
    newest_version,
)
from serving.rollout.aliases import Address
from serving.watch import Commands, Watch


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_alias_is_the_whole_folder_once(registry, small_models, tmp_path):
    killed = tmp_path / "models"
    found = fetch_model("models:/people@champion", registry.uri, killed)
    assert content(found.folder) == content(small_models["entities"])
    load_model_folder(found.folder)
    assert (found.name, found.version) == ("people", 1)
    assert found.lineage.run_id == registry.run_id
    assert found.lineage.data_sha256 == "ab" * 32
    assert found.lineage.metrics == {"dev/f1": 0.75}
    assert found.folder == killed / file_sha256(small_models["entities"] / "checksums")
    stamp = (found.folder / "config.json").stat().st_ino
    assert fetch_model("models:/people/1", registry.uri, killed) == found
    assert (found.folder / "config.json").stat().st_ino == stamp
    folders = [path for path in killed.iterdir() if path.name[0] != "." and not path.is_symlink()]
    assert folders == [found.folder]


def test_what_a_kill_left_is_fetched_again(registry, small_models, tmp_path):
    folder = fetch_model("models:/people@champion", registry.uri, tmp_path / "first").folder
    cache = tmp_path / "second"
    unfinished = cache / f".{folder.name}.part" / "model"
    unfinished.mkdir(parents=True)
    (unfinished / "model.safetensors").write_text("a part")
    (unfinished / "stray").touch()
    again = fetch_model("models:/people@champion", registry.uri, cache).folder
    assert content(again) == content(small_models["entities"])
    assert not unfinished.parent.exists()


def test_who_comes_second_waits_and_takes_what_is_there(registry, tmp_path):
    asked = ("models:/people@champion", registry.uri)
    first = fetch_model(*asked, tmp_path / "first").folder
    cache = tmp_path / "second"
    cache.mkdir()
    second = threading.Thread(target=fetch_model, args=(*asked, cache))
    with locked(cache / f".{first.name}.lock"):
        second.start()
        second.join(1)
        assert second.is_alive() and not (cache / first.name).exists()
        shutil.copytree(first, cache / first.name)
        (cache / first.name / "mark").touch()
    second.join(60)
    assert (cache / first.name / "mark").exists()
    assert not list(cache.glob(".*.part"))


@pytest.mark.parametrize(
    ("uri", "remedy"),
    [
        ("models:/people@nobody", "the MLflow UI lists the models"),
        ("models:/people/7", "the MLflow UI lists the models"),
        ("models:/nothing/1", "the MLflow UI lists the models"),
        ("people@champion", "write models:/name@alias"),
    ],
)
def test_what_is_not_there_is_named(uri, remedy, registry, tmp_path):
    with pytest.raises(UserError, match=rf"{uri}.*{remedy}") as told:
        fetch_model(uri, registry.uri, tmp_path)
    assert not isinstance(told.value, UnreachableError) and "\n" not in str(told.value)
    assert not any(tmp_path.iterdir())


def test_what_others_registered_is_named(copied_registry, tmp_path):
    from mlflow import MlflowClient

    client = MlflowClient(copied_registry.uri, copied_registry.uri)
    client.create_registered_model("foreign")
    client.create_model_version("foreign", source=f"{tmp_path}/somewhere")
    with pytest.raises(UserError, match=r"models:/foreign/1.*Bertline has registered"):
        fetch_model("models:/foreign/1", copied_registry.uri, tmp_path / "models")


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("sqlite:///{}/mlflow.db", r"no model models:/a@b: no MLflow store at sqlite"),
        ("sqlite:///{}/none.db", "no model models:/a@b: .*not a database"),
        ("http://me:secret@127.0.0.1:9", r"is MLflow at http://127\.0\.0\.1:9\?"),
    ],
)
def test_a_store_that_does_not_answer_is_said_and_not_made(tmp_path, uri, said):
    (tmp_path / "none.db").write_text("no database " * 99)
    with pytest.raises(UnreachableError, match=said) as told:
        fetch_model("models:/a@b", uri.format(tmp_path), tmp_path / "models")
    assert "secret" not in str(told.value) and "\n" not in str(told.value)
    assert not (tmp_path / "mlflow.db").exists()


def test_the_newest_version_is_the_highest_number_whatever_aliases_say(
    copied_registry, small_models, tmp_path
):
    uri = copied_registry.uri
    for number in range(2, 11):  # as text, 10 would come before 9
        version = copied_registry.client.create_model_version("people", "file:///x")
        assert int(version.version) == number
    assert newest_version("people", uri) == 10
    assert newest_version("mood", uri) == 1
    assert newest_version("nobody's", uri) is None
    nowhere = tmp_path / "no.db"
    with pytest.raises(UnreachableError, match="no versions of people"):
        newest_version("people", f"sqlite:///{nowhere}")
    assert not nowhere.exists()


def lose_artifacts(registry, where):
    """Whoever asks MLflow for an artifact of these people from now on is told there is none."""
    for version in registry.client.search_model_versions("name = 'people'"):
        registry.move_artifacts((where / "gone").as_uri(), "people", version.version)


def test_artifacts_that_are_gone_leave_nothing_behind(copied_registry, tmp_path):
    lose_artifacts(copied_registry, tmp_path)
    with pytest.raises(UnreachableError, match="models:/people/1 not fetched: .*No such artifact"):
        fetch_model("models:/people/1", copied_registry.uri, tmp_path / "models")
    found = (tmp_path / "models").iterdir()
    assert all(each.name.startswith(".") for each in found)


BAD_LOCATIONS = (
    "s3://bucket/x", "s3://", "what://is/this", "http://[", "http://127.0.0.1:9/x", "", "//",
    "file:///a\0b", "file:///nowhere", "gs://bucket/x", "wasbs://a@b/x", "hdfs://127.0.0.1:9/x",
    "runs:/x/y", "models:/nobody/1", "mlflow-artifacts:/x", "dbfs:/x", "ftp://127.0.0.1:9/x",
)  # fmt: skip


def test_artifacts_at_any_address_that_fails_are_one_line(copied_registry, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", "http://127.0.0.1:9")
    for location in BAD_LOCATIONS:
        copied_registry.move_artifacts(location, "people", 1)
        with pytest.raises(UnreachableError) as told:
            fetch_model("models:/people/1", copied_registry.uri, tmp_path / "models")
        assert "\n" not in str(told.value) and "models:/people/1" in told.value.what, location


class Recorder:
    """An HTTP server that notes who asks it with which keys, and sends them on."""

    def __init__(self, send_to=None):
        asked = self.asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):  # noqa: N802 - the library's name
                asked.append(self.headers.get("Authorization"))
                self.send_response(404 if send_to is None else 302)
                if send_to is not None:
                    self.send_header("Location", send_to + self.path)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts/x"


@pytest.fixture(params=["token", "password", "file"])
def secret(request, monkeypatch, tmp_path):
    """What opens MLflow, in each way that MLflow is told it."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if request.param == "token":
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    elif request.param == "password":
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    else:
        (tmp_path / "home" / ".mlflow").mkdir(parents=True)
        given = "[mlflow]\nmlflow_tracking_username = me\nmlflow_tracking_password = secret\n"
        (tmp_path / "home" / ".mlflow" / "credentials").write_text(given)


@pytest.mark.usefixtures("secret")
def test_nobody_but_mlflow_is_sent_what_opens_it(copied_registry, tmp_path):
    other = Recorder()
    server = Recorder(send_to=f"http://127.0.0.1:{other.port}")
    try:
        for location in (f"http://127.0.0.1:{other.port}{ARTIFACTS}", "runs:/x/y", "models:/a/1"):
            copied_registry.move_artifacts(location, "people", 1)
            with pytest.raises(UserError, match="not at the tracking server") as told:
                fetch_model("models:/people/1", copied_registry.uri, tmp_path / "models")
            assert "secret" not in str(told.value)
        assert not other.asked
        # Where MLflow sends somebody on its secret does not go.
        at_server = f"http://127.0.0.1:{server.port}"
        check_location(at_server + ARTIFACTS, at_server)
        with (
            mlflow_environment(at_server, {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}),
            pytest.raises(UnreachableError),
            as_user_error("a", "b"),
        ):
            list_artifacts(at_server + ARTIFACTS, tracking_uri=at_server)
        assert all(server.asked) and other.asked and not any(other.asked)
    finally:
        server.close()
        other.close()


@pytest.mark.parametrize(
    ("location", "tracking_uri", "is_there"),
    [
        ("mlflow-artifacts:/1", "https://mlflow", True),
        ("mlflow-artifacts://mlflow:443/1", "https://mlflow/", True),
        ("https://me:word@MLflow:443/at/1", "https://you:pass@mlflow/at", True),
        ("http://mlflow/1", "https://mlflow", False),
        ("http://mlflow:443/1", "https://mlflow", False),
        ("https://mlflow:8443/1", "https://mlflow", False),
        ("https://mlflow.a.example/1", "https://mlflow", False),
        ("https://mlflow@a.example/1", "https://mlflow", False),
        ("mlflow-artifacts://a.example/1", "https://mlflow", False),
        ("HTTP://a.example/1", "https://mlflow", False),
        ("runs:/a/b", "https://mlflow", False),
        ("s3://bucket/1", "https://mlflow", True),
        ("file:///a", "sqlite:///a", True),
        ("/a", "sqlite:///a", True),
    ],
)
def test_artifacts_are_where_mlflow_is_or_have_keys_of_their_own(
    monkeypatch, tmp_path, location, tracking_uri, is_there
):
    monkeypatch.setenv("HOME", str(tmp_path))
    check_location(location, tracking_uri)  # nothing to be kept to ourselves
    for name in ("TOKEN", "PASSWORD", "CLIENT_CERT_PATH", "AUTH"):
        with monkeypatch.context() as given:
            given.setenv(f"MLFLOW_TRACKING_{name}", "a")
            with nullcontext() if is_there else pytest.raises(UserError, match="token"):
                check_location(location, tracking_uri)


def artifacts_of(registry, version):
    """The folder that MLflow has of a version of `people`."""
    source = registry.client.get_model_version("people", str(version)).source
    location = registry.client.get_logged_model(source.removeprefix("models:/")).artifact_location
    return Path(location.removeprefix("file://")) / "artifacts" / "model"


def test_the_same_content_of_another_run_is_not_fetched_again(
    copied_registry, small_models, tmp_path
):
    fetched = partial(fetch_model, tracking_uri=copied_registry.uri, cache=tmp_path / "models")
    first = fetched("models:/people/1")
    other = replace(copied_registry, run_id=copied_registry.client.create_run("0").info.run_id)
    assert other.register(small_models["entities"], "people") == 2
    (artifacts_of(other, 2) / "model.safetensors").unlink()
    second = fetched("models:/people/2")
    assert second.folder == first.folder and second.lineage.run_id == other.run_id
    lose_artifacts(copied_registry, tmp_path)
    assert fetched("models:/people/1") == first and fetched("models:/people/2") == second


def test_a_cache_from_before_goes_on_to_serve(copied_registry, small_models, tmp_path):
    asked = ("models:/people@champion", copied_registry.uri, tmp_path / "models")
    folder = fetch_model(*asked).folder
    (model_id,) = (path for path in folder.parent.iterdir() if path.is_symlink())
    model_id.unlink()
    folder.rename(model_id)
    lose_artifacts(copied_registry, tmp_path)
    assert fetch_model(*asked).folder == model_id
    assert content(model_id) == content(small_models["entities"])


def test_a_download_that_is_not_what_was_registered_is_no_model(
    copied_registry, small_models, tmp_path
):
    cache = tmp_path / "models"
    assert copied_registry.register(small_models["topics"], "people") == 2
    weights = artifacts_of(copied_registry, 2) / "model.safetensors"
    whole = weights.read_bytes()
    for other in (whole[:-1], whole[:-1] + b"!"):
        weights.write_bytes(other)
        with pytest.raises(UnreachableError, match="model.safetensors is not as the folder's list"):
            fetch_model("models:/people/2", copied_registry.uri, cache)
        assert all(path.suffix == ".lock" for path in cache.iterdir())
    weights.write_bytes(whole)
    load_model_folder(fetch_model("models:/people/2", copied_registry.uri, cache).folder)


@pytest.mark.slow
def test_what_is_known_to_be_damaged_is_not_downloaded_again_for_a_while(
    served_registry, mlflow_server, small_models, tmp_path, monkeypatch
):
    (registry, _), asked = served_registry
    registry.register(small_models["entities"], "damaged")
    # Where the server keeps them, beside those of other tests.
    kept = mlflow_server.folder.rglob("model.safetensors")
    weights = max(kept, key=lambda path: path.stat().st_mtime_ns)
    weights.write_bytes(weights.read_bytes()[:-1])
    known = KnownDamage()
    downloaded = []
    for _ in range(3):
        with pytest.raises(DamagedError, match="model.safetensors is not as the folder's list"):
            fetch_model("models:/damaged/1", registry.uri, tmp_path / "models", known)
        downloaded.append(asked()[1])
    assert downloaded[0] > 1 and downloaded[1:] == [0, 0]
    monkeypatch.setattr(KnownDamage, "_AGAIN_SECONDS", 0.0)
    with pytest.raises(DamagedError):
        fetch_model("models:/damaged/1", registry.uri, tmp_path / "models", known)
    assert asked()[1] > 1
    monkeypatch.undo()

    watch = Watch([Address.of("models:/damaged/1")], registry.uri, tmp_path / "models", 0.0)
    downloaded.clear()
    for _ in range(2):
        watch.look(Commands())
        downloaded.append(asked()[1])
    assert downloaded[0] > 1 and downloaded[1] == 0, "whoever follows asks again and again"


def test_what_no_list_describes_lies_under_its_id(copied_registry, small_models, tmp_path):
    cache = tmp_path / "models"
    pooling = shutil.copytree(small_models["topics"], tmp_path / "pooling")
    (pooling / "1_Pooling").mkdir()
    (pooling / "1_Pooling" / "config.json").write_text("{}")
    unlisted = shutil.copytree(small_models["grade"], tmp_path / "unlisted")
    (unlisted / "checksums").unlink()
    for version, source in enumerate((pooling, unlisted), start=2):
        assert copied_registry.register(source, "people") == version
        folder = fetch_model(f"models:/people/{version}", copied_registry.uri, cache).folder
        assert folder.name == artifacts_of(copied_registry, version).parents[2].name
        assert not folder.is_symlink() and {path.name for path in folder.iterdir()} == {
            path.name for path in source.iterdir()
        }


def test_tags_that_people_wrote_do_no_harm():
    endless = {"metric.c": "1e999", "metric.d": "9" * 400}
    few = {"metric.a": "good", "metric.b": "-1.5e-05", "git.dirty": "true"}
    found = lineage_of_tags(few | endless)
    assert found.metrics == {"b": -1.5e-05} and found.git_dirty is True
    assert found.data_sha256 is None


def test_the_default_store(tmp_path, monkeypatch):
    assert default_tracking_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow/mlflow.db"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///here.db")
    assert default_tracking_uri(tmp_path) == f"sqlite:///{tmp_path}/here.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    assert default_tracking_uri(tmp_path) == "http://mlflow:5000"


@pytest.fixture
def served_registry(registry, mlflow_server, request):
    """A registry at the server for each of two runs, and what it was asked for last."""
    from workflows.runs.mlflow_run import open_client

    log = mlflow_server.folder / "server.log"
    read = log.read_text().splitlines()

    def asked():
        """The requests since the last time, and those for artifacts among them."""
        time.sleep(0.2)  # its log has lines when they are answered
        lines = log.read_text().splitlines()[len(read) :]
        read.extend(lines)
        requests = [line for line in lines if '"GET ' in line or '"POST ' in line]
        return len(requests), sum("/mlflow-artifacts/" in line for line in requests)

    client = open_client(mlflow_server.uri)
    experiment = client.create_experiment(request.node.name)  # the first one is the store's own
    runs = [client.create_run(experiment).info.run_id for _ in range(2)]
    return [replace(registry, uri=mlflow_server.uri, run_id=run) for run in runs], asked


def test_a_look_without_a_change_asks_for_no_artifact(served_registry, small_models, tmp_path):
    registries, asked = served_registry
    for registry in registries:
        registry.register(small_models["entities"], "people", "champion")
    fetched = partial(fetch_model, tracking_uri=registries[0].uri, cache=tmp_path / "models")
    asked()
    first = fetched("models:/people/1").folder
    assert content(first) == content(small_models["entities"])
    assert asked()[1] > len(content(first))
    assert fetched("models:/people/1").folder == first and asked() == (2, 0)
    assert fetched("models:/people@champion").folder == first
    assert asked()[1] <= 3, "the list alone, which says that the content is there"
    assert fetched("models:/people@champion").version == 2 and asked() == (2, 0)
