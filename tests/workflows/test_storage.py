"""Where runs lie, and the files at an address: in a folder, and on an S3 server over HTTP."""

import subprocess
import sys
from pathlib import Path

import pytest
from storage_addresses import folder_address

from bert_core.errors import UserError
from workflows.pretrain import main
from workflows.runs.storage import RemoteFolder, open_storage
from workflows.settings import storage_folder


@pytest.fixture
def content(tmp_path):
    """A file of this machine."""
    path = tmp_path / "content"
    path.write_bytes(bytes(range(256)) * 40_000)
    return path


def test_a_path_stays_a_path_and_nothing_is_loaded_for_it(repository):
    assert open_storage("~/runs").folder == Path.home() / "runs"
    assert open_storage("runs").folder == Path.cwd() / "runs"
    assert open_storage("runs").uri is None
    code = "import sys; from workflows.runs.storage import open_storage; open_storage('runs')"
    code += "; assert not {'pyarrow', 'torch'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], cwd=repository, check=True)


def test_an_address_has_one_working_copy_on_a_machine(uri, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    storage = open_storage(uri)
    assert storage.uri == uri and storage.folder.parent == tmp_path / ".bertline" / "copies"
    assert storage.folder == storage_folder(uri) != storage_folder(uri.replace("where", "there"))
    assert storage.folder.name.startswith(uri.partition(":")[0] + "-")
    assert not storage.folder.exists()
    assert RemoteFolder(uri).names("") == [], "the trial leaves nothing"


def test_a_trailing_slash_makes_no_other_copy():
    assert storage_folder("gs://bucket/runs/") == storage_folder("gs://bucket/runs")


def test_files_come_and_go(uri, content, tmp_path):
    remote = RemoteFolder(uri)
    assert remote.read("a/b") is None and remote.names("a") == []
    remote.remove("a/b")
    remote.remove_folder("a")
    for name in ("a/b", "a/c/d", "ab"):
        remote.upload(content, name)
    remote.upload(content, "a/b")
    assert remote.names("a") == ["a/b", "a/c/d"]
    assert remote.names("") == ["a/b", "a/c/d", "ab"]
    assert remote.read("a/b") == content.read_bytes()
    remote.download("a/c/d", tmp_path / "new" / "d")
    assert (tmp_path / "new" / "d").read_bytes() == content.read_bytes()
    remote.move("a/c/d", "e/f/g")
    remote.remove("ab")
    assert remote.names("") == ["a/b", "e/f/g"]
    assert remote.read("e/f/g") == content.read_bytes()
    remote.remove_folder("e")
    assert remote.names("") == ["a/b"]


def test_a_file_that_could_not_be_written_does_not_appear(tmp_path, content):
    remote = RemoteFolder(folder_address(tmp_path / "there"))
    remote.upload(content, "a")
    with pytest.raises(UserError, match=r"cannot write.*there/b"):
        remote.upload(tmp_path / "missing", "b")
    assert remote.names("") == ["a"]


def test_an_address_that_cannot_be_written_is_named_with_the_remedy(tmp_path, content, uri):
    below_a_file = folder_address(content / "runs")
    with pytest.raises(UserError, match=r"cannot write.*/content/runs.*--storage\)"):
        open_storage(below_a_file)
    if uri.startswith("s3"):
        no_bucket = "s3://no-such-bucket/runs?" + uri.partition("?")[2]
        with pytest.raises(UserError, match=r"cannot write.*NO_SUCH_BUCKET.*credentials"):
            open_storage(no_bucket)


def test_the_command_refuses_it_in_one_line_before_anything_else(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["--storage", "s4://bucket/runs"]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith("error: cannot open") and "s4://bucket/runs" in line
    assert not printed.out and not list(tmp_path.iterdir())


def test_credentials_in_the_address_are_refused_and_not_repeated():
    with pytest.raises(UserError, match="AWS_ACCESS_KEY_ID") as caught:
        open_storage("s3://key:geheim@bucket/runs")
    assert "geheim" not in str(caught.value)
