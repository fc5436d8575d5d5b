import json
import subprocess

import pytest

from workflows.reproduction.code_files import (
    CodeState,
    note_code,
    parse_code,
    read_code,
    training_files,
)

SOURCES = {
    "workflows/__init__.py": "",
    "workflows/training/__init__.py": "",
    "workflows/training/worker_main.py": "from workflows.training.run import TrainingRun",
    "workflows/training/run.py": "def f():\n    from bert_core.training import loop, absent",
    "workflows/demo.py": "import workflows.training.run",
    "bert_core/__init__.py": "",
    "bert_core/training/__init__.py": "",
    "bert_core/training/loop.py": "import torch, bert_core.model.bert",
    "bert_core/model/bert.py": "from bert_core.training.loop import train",  # in a circle
    "bert_core/evaluation/slices.py": "",
}


@pytest.fixture
def root(tmp_path):
    for name, source in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    return tmp_path


def test_training_reads_what_its_workers_import(root):
    assert training_files(root) == SOURCES.keys() - {
        "workflows/demo.py",
        "bert_core/evaluation/slices.py",
    }


def test_in_this_house_it_reads_model_loop_and_tasks_and_no_command():
    found = training_files()
    for name in ("model/encoder", "training/loop", "tasks/classification", "text/masking"):
        assert f"bert_core/{name}.py" in found
    for name in ("finetune", "reproduce", "demo", "registry"):
        assert f"workflows/{name}.py" not in found


def test_what_has_changed_is_named(root):
    before = CodeState.now(root)
    assert before.files.keys() == SOURCES.keys() and before.changed(before, set(SOURCES)) == []
    (root / "bert_core/training/loop.py").write_text("import torch")
    (root / "workflows/demo.py").unlink()
    after = CodeState.now(root)
    assert after.sha256 != before.sha256
    names = ["bert_core/training/loop.py", "workflows/demo.py"]
    assert before.changed(after, set(SOURCES)) == names == after.changed(before, set(SOURCES))
    assert before.changed(after, training_files(root)) == names[:1]


def test_the_commit_is_told_and_what_was_changed_since(root):
    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        given = ["git", "-C", str(root), *who, *arguments]
        return subprocess.run(given, check=True, capture_output=True, text=True).stdout.strip()

    assert CodeState.now(root).git_commit is None and CodeState.now(root).git_dirty is None
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    state = CodeState.now(root)
    assert (state.git_commit, state.git_dirty) == (git("rev-parse", "HEAD"), False)
    (root / "workflows/demo.py").write_text("import json")
    assert CodeState.now(root).git_dirty


def test_every_state_that_a_run_is_started_under_is_kept_once(tmp_path):
    path = tmp_path / "code.json"
    assert read_code(path) == []
    note_code(path)
    note_code(path)
    (first,) = read_code(path)
    assert first.files == CodeState.now().files
    assert "workflows/reproduction/code_files.py" in first.files
    content = json.loads(path.read_text())
    content[0]["files"]["workflows/reproduction/code_files.py"] = "0" * 64
    path.write_text(json.dumps(content))  # as if another state had begun the run
    note_code(path)
    assert read_code(path)[1] == first and len(read_code(path)) == 2
    path.write_bytes(b"\xff\xfe[]")  # a disk that was damaged
    assert read_code(path) == []
    assert parse_code("{torn") == [] == parse_code('[{"files": 1, "else": 2}]')
