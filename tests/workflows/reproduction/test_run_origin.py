"""What a run records at its start and end: code, data, encoder, outcome."""

import hashlib
import json
import subprocess

import pytest
import torch
from finetuning_runs import write_encoder, write_task
from pretraining_runs import write_corpus
from recorded_runs import name_sources

from bert_core.lineage import Lineage
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.text.shards import read_index
from bert_core.tokenizer import tokenizer_hash
from workflows.finetune import parse
from workflows.finetuning.data import read_task_data
from workflows.model_location import open_encoder
from workflows.reproduction.run_origin import (
    CodeState,
    data_name,
    describe_shards,
    describe_task_data,
    encoder_tags,
    note_code,
    origin_tags,
    parse_code,
    read_code,
    training_files,
    write_origin,
    write_outcome,
)
from workflows.runs.tracker import without_machine_paths
from workflows.training.job import begin, tracked_run, write_settings
from workflows.versions.registration import content_hash


def artifact(job, name):
    return json.loads((job.folder.path / "artifacts" / name).read_text())


def test_a_run_writes_down_what_it_is_made_of(pretraining_job):
    folder = pretraining_job.folder
    write_settings(pretraining_job.settings, folder, "made of")
    assert origin_tags(folder).keys() == {"settings.sha256"}
    write_origin(pretraining_job.folder, pretraining_job.data_description(), trains=False)
    assert not (folder.path / "artifacts" / "code.json").exists(), "it was trained by other code"
    write_origin(pretraining_job.folder, pretraining_job.data_description(), trains=True)
    tags = tracked_run(pretraining_job).tags
    settings = (folder.path / "artifacts" / "settings.yaml").read_bytes()
    assert tags["settings.sha256"] == hashlib.sha256(settings).hexdigest()
    assert tags["code.sha256"] == CodeState.now().sha256
    described = artifact(pretraining_job, "data.json")
    assert described["sha256"] == tags["data.sha256"]
    assert described["tokenizer_sha256"] == tags["tokenizer.sha256"]


def test_a_run_that_trains_no_more_keeps_its_code(pretraining_job):
    begin(pretraining_job)
    path = pretraining_job.folder.path / "artifacts" / "code.json"
    states = json.loads(path.read_text())
    states[0]["files"] = {"bert_core/gone.py": "0" * 64}
    path.write_text(json.dumps(states))
    begin(pretraining_job, trains=False)
    assert json.loads(path.read_text()) == states
    begin(pretraining_job)
    assert len(json.loads(path.read_text())) == 2, "it went on under other code"


def test_what_it_came_to_and_what_has_computed_it(finetuning_job, finetuning_results):
    write_outcome(finetuning_job.folder, finetuning_job.folder.last_checkpoint())
    outcome = artifact(finetuning_job, "outcome.json")
    weights = (finetuning_job.folder.model / "model.safetensors").read_bytes()
    assert outcome["weights_sha256"] == hashlib.sha256(weights).hexdigest()
    assert (outcome["device"], outcome["num_threads"], outcome["world_size"]) == ("cpu", 1, 1)
    assert torch.backends.cpu.get_cpu_capability() in outcome["processor"]
    assert outcome["steps"] == 36
    text = json.dumps(outcome)
    assert without_machine_paths(text) == text


def test_the_encoder_is_told_by_content_and_by_the_run_that_made_it(tmp_path):
    folder = write_encoder(tmp_path / "mini")
    encoder = open_encoder(str(folder), tmp_path, "sqlite://")
    tags = encoder_tags(encoder)
    assert tags == {
        "encoder.name": "mini",
        "encoder.sha256": encoder.sha256,
        "encoder.content_sha256": content_hash(folder),
        "tokenizer.sha256": tokenizer_hash(encoder.tokenizer),
    }
    _, model, tokenizer = load_model_folder(folder)
    lineage = Lineage(run="mini-1a2b", run_id="f" * 32)
    save_model_folder(tmp_path / "made", model, tokenizer, "", lineage=lineage)
    tags = encoder_tags(open_encoder(str(tmp_path / "made"), tmp_path, "sqlite://"))
    assert (tags["encoder.run"], tags["encoder.run_id"]) == ("mini-1a2b", "f" * 32)
    (folder / "checksums").unlink()
    (folder / "tokenizer.json").unlink()
    # A folder of transformers with a vocab.txt alone is no content of the registry's.
    assert "encoder.content_sha256" not in encoder_tags(encoder)


SOURCES = {
    "workflows/__init__.py": "",
    "workflows/training/__init__.py": "",
    "workflows/training/run.py": "from workflows.training.backend import TorchBackend",
    "workflows/training/backend.py": "def f():\n    from bert_core.training import loop, absent",
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
    assert "workflows/reproduction/run_origin.py" in first.files
    content = json.loads(path.read_text())
    content[0]["files"]["workflows/reproduction/run_origin.py"] = "0" * 64
    path.write_text(json.dumps(content))  # as if another state had begun the run
    note_code(path)
    assert read_code(path)[1] == first and len(read_code(path)) == 2
    path.write_bytes(b"\xff\xfe[]")  # a disk that was damaged
    assert read_code(path) == []
    assert parse_code("{torn") == [] == parse_code('[{"files": 1, "else": 2}]')


def test_shards_are_told_with_their_text_and_without_a_path_of_this_machine(tmp_path):
    folder = write_corpus(tmp_path / "corpus", num_documents=40)
    name_sources(folder)
    described = describe_shards(folder)
    index = read_index(folder)
    assert described["sha256"] == index.data_hash
    assert described["tokenizer_sha256"] == index.tokenizer_sha256
    assert described["vocabulary"] == index.vocab_size
    assert described["splits"]["heldout"]["documents"] == 5
    assert described["splits"]["train"]["documents"] == 35
    assert described["splits"]["train"]["shards"] == 2
    train = index.splits["train"]
    assert described["splits"]["train"]["tokens"] == sum(each.num_tokens for each in train)
    assert [each["text"] for each in described["text"]] == ["docs://numpy", "…/*.txt"]
    assert described["text"][0]["version"] == "numpy 2.4.6"
    assert described["prepared_with"] == {"text": ["docs://numpy", "…/*.txt"], "language": "en"}


def test_examples_are_told_with_labels_and_counts(tmp_path):
    data, encoder = write_task(tmp_path / "cats"), write_encoder(tmp_path / "encoder")
    settings = parse(["--data", str(data), "--model", str(encoder), "--options.max_length", "32"])
    tokenizer = open_encoder(str(encoder), tmp_path, "sqlite://").tokenizer
    read = read_task_data(settings, tokenizer)
    described = describe_task_data("classification", str(data), read, tokenizer)
    assert described["source"] == "cats" and described["labels"] == ["down", "up"]
    assert described["tokenizer_sha256"] == tokenizer_hash(tokenizer)
    splits = described["splits"]
    assert (splits["train"]["examples"], splits["dev"]["examples"]) == (90, 40)
    assert splits["train"]["rows"] == 90
    assert splits["train"]["tokens"] == int(read.train.rows.lengths.sum())


@pytest.mark.parametrize(
    ("given", "name"),
    [("/data/glue/MRPC", "MRPC"), ("docs://numpy", "docs://numpy"), ("hf://a/b:c", "hf://a/b:c")],
)
def test_what_data_are_called(given, name):
    assert data_name(given) == name
