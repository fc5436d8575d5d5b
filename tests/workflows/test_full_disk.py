"""Every writer on a disk that takes no more: one line, the file before stays, nothing is left."""

import errno
import os
import shutil

import numpy as np
import pytest
import torch

from bert_core.config import ModelConfig
from bert_core.disk import DiskFullError, atomic_write, write_atomically
from bert_core.errors import UserError
from bert_core.evaluation.outcomes import write_for_scorers, write_predictions
from bert_core.features.output import join_parts, write_features
from bert_core.features.states import stored_states
from bert_core.lineage import Lineage
from bert_core.model.bert import Bert
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.special_tokens import SPECIAL_TOKENS
from bert_core.tasks.squad import Question
from bert_core.text.shards import write_array, write_bytes, write_shard
from bert_core.tokenizer import save_tokenizer, wordpiece_tokenizer
from serving.keys import add_key
from serving.rollout.aliases import Pointer, WatchStatus, switch_pointer, write_status
from serving.rollout.cache import add_folder
from workflows.finetuning.worker import write_weights
from workflows.inference.prediction import prediction_file
from workflows.output_folder import WorkKeptError, work_folder
from workflows.reporting.figures import new_figure, save_picture
from workflows.runs.journal import Journal
from workflows.runs.tracker import write_json

BYTES = 200_000


def words_tokenizer():
    words = [*SPECIAL_TOKENS, *(f"w{i}" for i in range(8000))]
    return wordpiece_tokenizer({word: i for i, word in enumerate(words)}, lowercase=True)


def picture():
    figure = new_figure(3, 3)
    figure.add_subplot().imshow(np.random.default_rng(0).random((100, 100)))
    return figure


def pointer(folder):
    return Pointer(
        address="models:/a@b",
        name="x" * BYTES,
        version=1,
        alias="b",
        folder=folder,
        tracking_uri="",
        lineage=Lineage(),
    )


def predictions(path, form):
    row = {"id": "x" * 1000, "n_tokens": 1, "truncated": False, "label": "a", "scores": []}
    rng = np.random.default_rng(0)
    rows = [row | {"id": rng.bytes(500).hex()} for _ in range(400)]
    with prediction_file(path, form, "label") as write:
        write(rows)


def random_records():
    rng = np.random.default_rng(0)
    return [{"a": rng.bytes(500).hex()} for _ in range(400)]


ARRAY = np.random.default_rng(0).integers(0, 1 << 60, BYTES // 8)
WEIGHTS = {"a": torch.zeros(BYTES // 4)}
WRITERS = {
    "tokenizer.json": lambda path: save_tokenizer(words_tokenizer(), path),
    "records.jsonl": lambda path: write_predictions(random_records(), path),
    "records.parquet": lambda path: write_predictions(random_records(), path),
    "array.npy": lambda path: write_array(path, ARRAY),
    "bytes": lambda path: write_bytes(path, bytes(BYTES)),
    "picture.png": lambda path: save_picture(picture(), path),
    "text.json": lambda path: write_atomically(path, "x" * BYTES),
    "tracking.json": lambda path: write_json(path, {"a": "x" * BYTES}),
    "best.safetensors": lambda path: write_weights(path, WEIGHTS),
    "answers.jsonl": lambda path: predictions(path, "jsonl"),
    "answers.parquet": lambda path: predictions(path, "parquet"),
    "questions.json": lambda path: write_for_scorers(
        [{"text": "x" * BYTES}], [Question("", "", "", None)], path
    ),
    "pointer.json": lambda path: switch_pointer(path, pointer(path.parent)),
}


def fill(disk, left=20_000):
    """Leaves so many bytes: enough to begin."""
    (disk / "filler").write_bytes(bytes(shutil.disk_usage(disk).free - left))


def names(disk):
    return sorted(str(path.relative_to(disk)) for path in disk.rglob("*"))


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_is_written_whole_or_not_at_all(small_disk, name):
    path, write = small_disk / name, WRITERS[name]
    path.write_text("the file before")
    fill(small_disk)
    with pytest.raises(DiskFullError, match=f"the disk is full: .*{name}") as caught:
        write(path)
    assert "\n" not in str(caught.value)
    assert path.read_text() == "the file before"
    assert names(small_disk) == sorted(["filler", name])
    (small_disk / "filler").unlink()
    write(path)  # as the message says
    assert path.stat().st_size > 1000
    assert names(small_disk) == [name]


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "bad"), OSError(errno.EDQUOT, "full")])
def test_a_write_that_ends_badly_leaves_nothing(tmp_path, monkeypatch, name, call, error):
    path = tmp_path / name
    path.write_text("the file before")

    def fail(*_, **__):
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(os, call, fail)
        with pytest.raises(DiskFullError if error.errno == errno.EDQUOT else OSError):
            WRITERS[name](path)
    assert path.read_text() == "the file before"
    assert names(tmp_path) == [name]


def test_a_key_is_made_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "keys.json"
    add_key(path, "first", ["predict"], None)
    before = path.read_text()

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", fail)
        with pytest.raises(UserError):
            add_key(path, "second", ["predict"], None)
    assert path.read_text() == before and path.stat().st_mode & 0o777 == 0o600
    assert names(tmp_path) == ["keys.json"]


@pytest.fixture
def model():
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = ModelConfig(vocab_size=10, hidden_size=16, max_position_embeddings=16, **sizes)
    tokenizer = wordpiece_tokenizer(
        {word: i for i, word in enumerate([*SPECIAL_TOKENS, "a"])}, lowercase=True
    )
    return Bert.for_pretraining(config), tokenizer


def test_the_model_folder_before_stays(small_disk, model):
    folder = small_disk / "model"
    save_model_folder(folder, *model, "before")
    whole = names(small_disk)
    fill(small_disk)
    with pytest.raises(DiskFullError, match=f"the disk is full: {folder}"):
        save_model_folder(folder, *model, "after " * 10_000)
    assert names(small_disk) == sorted([*whole, "filler"])
    load_model_folder(folder)
    assert (folder / "README.md").read_text() == "before"
    (small_disk / "filler").unlink()
    save_model_folder(folder, *model, "after")
    assert names(small_disk) == whole and (folder / "README.md").read_text() == "after"


def test_a_first_model_folder_leaves_nothing(small_disk, model):
    fill(small_disk)
    with pytest.raises(DiskFullError):
        save_model_folder(small_disk / "model", *model, "")
    assert names(small_disk) == ["filler"]


def test_a_shard_leaves_nothing_that_counts(small_disk):
    fill(small_disk)
    documents = [[[7] * 1000] * 30]
    with pytest.raises(DiskFullError, match=r"train\.tokens\.npy"):
        write_shard(small_disk, "train", documents, np.uint16)
    assert names(small_disk) == ["filler"]


def test_a_journal_says_so(small_disk):
    journal = Journal(small_disk / "journal.jsonl")
    journal.append(1, {"a": 1.0})
    fill(small_disk, left=0)
    with pytest.raises(Exception, match="cannot write the journal"):
        for step in range(2, 2000):
            journal.append(step, {"a": 1.0})
    assert [record.step for record in journal.records()][:1] == [1]
    assert (small_disk / "journal.jsonl").read_bytes().endswith(b"\n")


def test_a_download_leaves_nothing(small_disk):
    fill(small_disk)

    def download(place):
        (place / "folder").mkdir()
        (place / "folder" / "weights").write_bytes(bytes(BYTES))
        return place / "folder"

    with pytest.raises(DiskFullError, match="or give another --cache"):
        add_folder(small_disk, "m-1", "0" * 64, download)
    assert [name for name in names(small_disk) if not name.endswith(".lock")] == ["filler"]


def test_the_status_of_a_watch_waits_for_room(small_disk):
    fill(small_disk, left=0)
    status = WatchStatus(asked_at=1.0, fault=None)
    said = write_status(small_disk / "pointers" / "a.json", status)
    assert said is not None and "the disk is full" in said
    (small_disk / "filler").unlink()
    assert write_status(small_disk / "pointers" / "a.json", status) is None


def test_features_end_before_the_process_would(small_disk, model):
    class Rows:
        places = np.arange(20_000)
        lengths = np.array([1])

    fill(small_disk)
    with pytest.raises(DiskFullError, match="layer-01"):
        stored_states(
            model[0].encoder, Rows(), small_disk / "kept", [1], device=torch.device("cpu")
        )  # type: ignore[arg-type] # no row is read
    assert names(small_disk) == ["filler", "kept", "kept/lock"]


def test_work_is_kept_for_when_there_is_room(small_disk):
    for error in (DiskFullError, WorkKeptError):
        with pytest.raises(error), work_folder(small_disk / "out", {"settings": {}}) as work:
            (work / "part").write_text("done")
            raise error("the disk is full", "a", "b")
        assert (work / "part").read_text() == "done"


def test_another_error_is_no_full_disk(tmp_path):
    for error in (
        ValueError("5 requested and 4 written"),
        OSError(2, "no such"),
        KeyError("errno 28"),
    ):
        with pytest.raises(type(error)) as caught, atomic_write(tmp_path / "file") as beside:
            beside.write_text("x")
            raise error
        assert not isinstance(caught.value, DiskFullError)
        assert names(tmp_path) == []


def test_texts_and_their_features(small_disk, model):
    from bert_core.features.extractor import Extractor, FeatureChoice
    from bert_core.model.strategies import find_strategy
    from bert_core.text.texts import NamedText

    bert, tokenizer = model
    choice = FeatureChoice(find_strategy("last"), unit="token")
    extractor = Extractor(bert.encoder, tokenizer, torch.device("cpu"), choice)
    texts = [NamedText(str(number), "a a a a a a") for number in range(2000)]
    for form in ("parquet", "npy"):
        fill(small_disk)
        with pytest.raises(DiskFullError, match=r"part\.parquet"):
            write_features(extractor, texts, small_disk / "part.parquet", output_format=form)
        assert names(small_disk) == ["filler"]
        (small_disk / "filler").unlink()
    write_features(extractor, texts[:200], small_disk / "part.parquet", output_format="npy")
    fill(small_disk, left=4096)
    with pytest.raises(DiskFullError, match=r"all\.parquet"):
        join_parts([small_disk / "part.parquet"] * 4, small_disk / "all.parquet")
    assert names(small_disk) == ["filler", "part.npy", "part.parquet"]
