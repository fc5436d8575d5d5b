"""Checkpoint folders are whole or absent; a checkpoint continues training bit for bit."""

import errno
import json
import os
import random
import shutil
import signal
import time

import pytest
import torch
from tiny_training import TinyModel, processes, tiny_state, tiny_train
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training_processes import save, save_for_ever, save_with_small_files

from bert_core.errors import UserError
from bert_core.training import checkpoint_folder
from bert_core.training.checkpoint import (
    checkpoint_bytes,
    first_difference,
    load_checkpoint,
    load_moments,
    moments_by_name,
    newest_checkpoint,
    num_bytes,
    read_checkpoint,
    unwrap_model,
    weights_by_name,
)
from bert_core.training.checkpoint_folder import (
    MANIFEST,
    NEEDED,
    checkpoint_name,
    checkpoint_step,
    committed_checkpoints,
    damage,
    keep,
    remove,
    remove_leftovers,
    seal,
    temporary_folder,
)


def test_committed_ones_come_newest_first_by_their_step(tmp_path):
    steps = [99_999_999, 5, 100_000_000]
    assert checkpoint_name(40) == "step-00000040"
    names = [checkpoint_name(step) for step in steps]
    for name in [*names, "step-00000006.tmp-12", "step-00000007.deleting", "step-8", "other"]:
        (tmp_path / name).mkdir()
    assert [checkpoint_step(path) for path in committed_checkpoints(tmp_path)] == sorted(
        steps, reverse=True
    )
    assert committed_checkpoints(tmp_path / "absent") == []


@pytest.fixture
def sealed(tmp_path):
    temporary = temporary_folder(tmp_path / "thing")
    (temporary / "inner").mkdir()
    (temporary / "inner" / "a.bin").write_bytes(bytes(range(200)))
    (temporary / "b.txt").write_text("words")
    for name in NEEDED:
        (temporary / name).touch()
    seal(temporary, tmp_path / "thing")
    return tmp_path / "thing"


def test_a_sealed_folder_is_whole_and_nothing_else_is_left(sealed):
    assert damage(sealed) is None
    assert [path.name for path in sealed.parent.iterdir()] == ["thing"]
    manifest = json.loads((sealed / "manifest.json").read_text())
    assert manifest["files"].keys() == {"inner/a.bin", "b.txt", *NEEDED}
    assert manifest["files"]["b.txt"]["bytes"] == 5


def test_every_single_flipped_byte_is_found(sealed):
    for name in ("inner/a.bin", "b.txt"):
        content = (sealed / name).read_bytes()
        for place in range(len(content)):
            changed = bytearray(content)
            changed[place] ^= 0x80
            (sealed / name).write_bytes(changed)
            assert damage(sealed) == f"{name} does not match its checksum"
        (sealed / name).write_bytes(content)
    assert damage(sealed) is None


def test_a_missing_folder_is_damaged_and_a_removed_one_is_gone(sealed):
    remove(sealed)
    assert list(sealed.parent.iterdir()) == []
    assert damage(sealed) == "manifest.json is missing"


def test_leftovers_of_killed_writers_are_removed_and_named(sealed):
    (sealed.parent / "thing.tmp-123").mkdir()
    (sealed.parent / "old.deleting").mkdir()
    (sealed.parent / "file.tmp-1").write_text("not a folder")
    assert remove_leftovers(sealed.parent) == ["old.deleting", "thing.tmp-123"]
    assert sorted(path.name for path in sealed.parent.iterdir()) == ["file.tmp-1", "thing"]
    assert temporary_folder(sealed).name == f"thing.tmp-{os.getpid()}"


ENTRY = {"sha256": "0" * 64, "bytes": 1}


@pytest.mark.parametrize(
    "files",
    [
        {},
        [],
        None,
        "a",
        {"a": None},
        {"a": {}},
        {"a": {"sha256": "0", "bytes": []}},
        {"a": {"sha256": "0", "bytes": float("nan")}},
        {"../final/a": ENTRY},
        {"/etc/passwd": ENTRY},
        {"below/../a": ENTRY},
        {"a\\b": ENTRY},
        {"nul\0": ENTRY},
        {"": ENTRY},
        {".": ENTRY},
    ],
)
def test_a_manifest_that_is_not_whole_is_damage(sealed, files):
    manifest = sealed / MANIFEST
    if files and isinstance(files, dict):  # all else is right
        files = json.loads(manifest.read_text())["files"] | files
    manifest.write_text(json.dumps({"format_version": 1, "files": files}))
    assert damage(sealed)


@pytest.mark.parametrize("name", NEEDED)
def test_a_manifest_has_to_name_what_a_checkpoint_needs(sealed, name):
    manifest = sealed / MANIFEST
    content = json.loads(manifest.read_text())
    del content["files"]["b.txt"]
    manifest.write_text(json.dumps(content))
    assert damage(sealed) is None
    del content["files"][name]
    manifest.write_text(json.dumps(content))
    assert damage(sealed) == f"manifest.json lacks {name}"


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["folder", "fifo", "endless", "link"])
def test_what_is_no_file_of_the_folder_is_damage(sealed, tmp_path, kind):
    path = sealed / "b.txt"
    path.rename(tmp_path / "outside")
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "endless" else tmp_path / "outside")
    assert damage(sealed) == "b.txt is missing"


def _save_steps(folder, *steps):
    state = tiny_state()
    for step in steps:
        state.step = step
        save(folder, state)
    return state


@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "stableadamw"])
def test_five_steps_saved_and_five_more_are_ten(optimizer, tmp_path):
    whole = tiny_state(optimizer)
    losses = [result.sums.tolist() for result in tiny_train(whole)]

    first = tiny_state(optimizer)
    begun = [result.sums.tolist() for result in tiny_train(first, total_steps=5)]
    path = save(tmp_path, first)
    second = tiny_state(optimizer)
    torch.manual_seed(99)
    for parameter in second.model.parameters():  # nothing of the fresh state may survive
        nn.init.normal_(parameter)
    load_checkpoint(path, second)
    begun += [result.sums.tolist() for result in tiny_train(second)]

    assert begun == losses
    assert (second.step, second.num_rows_seen, second.num_tokens_seen) == (10, 80, 80)
    for name, weight in weights_by_name(whole.model).items():
        assert torch.equal(weight, weights_by_name(second.model)[name]), name
    for one, other in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        for key, moment in whole.optimizer.state[one].items():
            assert torch.equal(moment, second.optimizer.state[other][key]), key


def test_a_checkpoint_says_where_it_stands_and_carries_the_callers_files(tmp_path):
    journal = tmp_path / "journal.jsonl"
    journal.write_text('{"step": 4}\n')
    state = tiny_state()
    list(tiny_train(state, total_steps=4))
    extra = {"phase": 1, "data_hash": "abc", "settings": {"seed": 7, "rate": 1e-4}}
    path = save(tmp_path / "checkpoints", state, extra=extra, files={"journal.jsonl": journal})
    info = read_checkpoint(path)
    assert path.name == "step-00000004"
    assert (info.step, info.num_rows_seen, info.num_tokens_seen) == (4, 32, 32)
    assert (info.world_size, info.num_threads) == (1, torch.get_num_threads())
    assert info.extra == extra
    assert info.files["journal.jsonl"].read_text() == '{"step": 4}\n'
    assert load_checkpoint(path, tiny_state()) == info


def test_a_checkpoint_before_the_first_step(tmp_path):
    state = tiny_state()
    load_checkpoint(save(tmp_path, tiny_state()), state)
    assert state.step == 0
    list(tiny_train(state))


def test_the_newest_are_kept(tmp_path):
    state = tiny_state()
    (tmp_path / "step-00000001.tmp-77").mkdir(parents=True)
    (tmp_path / "step-00000000.deleting").mkdir()
    for step in (1, 2, 30, 100_000_000):
        state.step = step
        save(tmp_path, state, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000030", "step-100000000"]
    assert newest_checkpoint(tmp_path) == (tmp_path / "step-100000000", [])
    assert newest_checkpoint(tmp_path / "absent") == (None, [])


def test_one_that_another_run_begins_with_stays(tmp_path):
    state = tiny_state()
    for step in (1, 2, 3):
        state.step = step
        path = save(tmp_path, state, keep=1)
        if step == 1:
            keep(path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]
    load_checkpoint(tmp_path / "step-00000001", state)
    assert state.step == 1


def test_a_damaged_later_one_that_was_passed_over_displaces_no_whole_one(tmp_path):
    state = tiny_state()
    for step in (10, 20):
        state.step = step
        save(tmp_path, state, keep=2)
    (tmp_path / "step-00000020" / "manifest.json").unlink()
    state.step = 15  # a run that went on from step 10
    written = save(tmp_path, state, keep=1)
    assert newest_checkpoint(tmp_path)[0] == written
    state.step = 20
    save(tmp_path, state, keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000020"]


def test_a_second_save_of_a_step_keeps_the_first_unless_it_is_damaged(tmp_path):
    state = _save_steps(tmp_path, 3)
    path = tmp_path / "step-00000003"
    before = (path / "manifest.json").stat().st_mtime_ns
    assert save(tmp_path, state) == path
    assert (path / "manifest.json").stat().st_mtime_ns == before
    (path / "state.json").unlink()
    assert save(tmp_path, state) == path
    assert newest_checkpoint(tmp_path) == (path, [])


@pytest.mark.parametrize(
    ("name", "damaged", "words"),
    [
        ("model.safetensors", lambda content: content[:100], "has 100 bytes instead of"),
        ("optimizer.safetensors", lambda content: b"\1" + content[1:], "match its checksum"),
        ("state.json", None, "state.json is missing"),
        ("manifest.json", None, "manifest.json is missing"),
        ("manifest.json", lambda content: content[:50], "manifest.json cannot be read"),
        ("manifest.json", lambda _: b"[]", "manifest.json cannot be read"),
        ("manifest.json", lambda content: content.replace(b": 1,", b": 2,"), "version 2, this pro"),
    ],
)
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(
    name, damaged, words, tmp_path
):
    _save_steps(tmp_path, 1, 2)
    file = tmp_path / "step-00000002" / name
    content = file.read_bytes()
    file.unlink()
    if damaged is not None:
        file.write_bytes(damaged(content))
    path, messages = newest_checkpoint(tmp_path)
    assert path == tmp_path / "step-00000001"
    assert len(messages) == 1 and "step-00000002" in messages[0] and words in messages[0]
    with pytest.raises(UserError, match=words):
        load_checkpoint(tmp_path / "step-00000002", tiny_state())
    load_checkpoint(path, tiny_state())


class _WiderModel(TinyModel):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.Linear(16, 9)


def test_another_model_or_optimizer_is_refused_and_the_state_left_alone(tmp_path):
    path = _save_steps(tmp_path, 5) and tmp_path / "step-00000005"
    wide, lamb = tiny_state(), tiny_state("lamb")
    wide.model = _WiderModel()
    before = [parameter.detach().clone() for parameter in wide.model.parameters()]
    with pytest.raises(UserError, match=r"decoder.weight is \(8, 16\) float32, this model's is"):
        load_checkpoint(path, wide)
    with pytest.raises(UserError, match="checkpoint of the optimizer AdamW, not Lamb"):
        load_checkpoint(path, lamb)
    assert wide.step == lamb.step == 0
    for first, second in zip(before, wide.model.parameters(), strict=True):
        assert torch.equal(first, second)


def test_weights_that_are_not_finite_are_never_written(tmp_path):
    state = _save_steps(tmp_path, 1)
    state.step = 2
    with torch.no_grad():
        state.model.dense.bias[3] = float("nan")
    with pytest.raises(UserError, match=r"after step 2, .*dense\.bias"):
        save(tmp_path, state)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_the_estimate_of_a_checkpoints_size_holds(tmp_path):
    state = tiny_state()
    state.model = nn.Linear(600, 700)
    state.optimizer = torch.optim.AdamW(state.model.parameters())
    state.model(torch.ones(1, 600)).sum().backward()
    state.optimizer.step()
    path = save(tmp_path, state)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert size <= checkpoint_bytes(state.model, "adamw") <= size + (1 << 20)


def test_a_file_that_cannot_grow_leaves_the_previous_checkpoint(tmp_path):
    _save_steps(tmp_path, 1)
    context = processes()
    answer = context.SimpleQueue()
    process = context.Process(target=save_with_small_files, args=(tmp_path, answer))
    process.start()
    process.join(60)
    message, number = answer.get()
    assert number == errno.EFBIG
    assert "no room for the checkpoint of step 2" in message and "bytes free" in message
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_a_full_disk_leaves_the_previous_checkpoint(small_disk):
    _save_steps(small_disk, 1)
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free - 12_000))
    state = tiny_state()
    list(tiny_train(state, total_steps=2))
    with pytest.raises(UserError, match="no room for the checkpoint of step 2") as caught:
        save(small_disk, state)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert sorted(path.name for path in small_disk.iterdir()) == ["filler", "step-00000001"]
    assert newest_checkpoint(small_disk) == (small_disk / "step-00000001", [])
    (small_disk / "filler").unlink()
    assert save(small_disk, state).name == "step-00000002"


def test_a_kill_at_any_moment_leaves_the_newest_checkpoint_whole(tmp_path):
    context, moments = processes(), random.Random(20)
    committed = context.Value("q", 0, lock=False)
    leftovers = 0
    for _ in range(12):
        start = committed.value
        process = context.Process(target=save_for_ever, args=(tmp_path, start, committed))
        process.start()
        deadline = time.monotonic() + 30
        while committed.value == start and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.03))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        path, messages = newest_checkpoint(tmp_path)
        assert path is not None and messages == []
        state = tiny_state()
        load_checkpoint(path, state)
        assert state.step in (committed.value, committed.value + 1)  # renamed, not yet told
        assert committed.value > start
        leftovers += any(checkpoint_folder.TEMPORARY in entry.name for entry in tmp_path.iterdir())
        committed.value = state.step
    assert leftovers > 1  # else no kill fell into a write and this test said nothing
    assert checkpoint_folder.remove_leftovers(tmp_path) or leftovers
    assert all(path.name.startswith("step-") for path in tmp_path.iterdir())


def rewritten(path, name, change):
    """The checkpoint with another content of one JSON file, sealed anew."""
    (path / checkpoint_folder.MANIFEST).unlink()
    content = json.loads((path / name).read_text())
    change(content)
    (path / name).write_text(json.dumps(content))
    again = path.with_name("again")
    path.rename(again)
    checkpoint_folder.seal(again, path)
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"step": -1},
        {"step": "5"},
        {"step": 2**63},
        {"step": True},
        {"step": None},
        {"num_threads": 0},
        {"extra": []},
        {"optimizer": 5},
        {"another": 1},
        {"torch_version": {}},
    ],
)
def test_a_state_of_the_wrong_kind_is_damage(tmp_path, changes):
    _save_steps(tmp_path, 1)
    path = rewritten(tmp_path / "step-00000001", "state.json", lambda state: state.update(changes))
    with pytest.raises(UserError, match="damaged checkpoint, state.json"):
        read_checkpoint(path)
    with pytest.raises(UserError, match="damaged checkpoint, state.json"):
        load_checkpoint(path, tiny_state())


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_manifest_without_a_file_of_it_is_not_whole(tmp_path, name):
    _save_steps(tmp_path, 1)
    manifest = tmp_path / "step-00000001" / checkpoint_folder.MANIFEST
    content = json.loads(manifest.read_text())
    for files in ({}, {key: each for key, each in content["files"].items() if key != name}):
        manifest.write_text(json.dumps(content | {"files": files}))
        with pytest.raises(UserError, match="manifest.json"):
            read_checkpoint(tmp_path / "step-00000001")
        assert newest_checkpoint(tmp_path)[0] is None


def test_only_files_of_the_manifest_are_a_checkpoints(tmp_path):
    (tmp_path / "note").write_text("a")
    save(tmp_path / "steps", _save_steps(tmp_path), files={"note": tmp_path / "note"})
    (path,) = (tmp_path / "steps").iterdir()
    (path / "files" / "more").write_text("b")
    assert read_checkpoint(path).files == {"note": path / "files" / "note"}


def test_names_are_the_bare_models_under_any_wrapper(tmp_path):
    model = TinyModel()
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = torch.compile(DistributedDataParallel(torch.compile(model)))
        assert unwrap_model(wrapped) is model
        assert list(weights_by_name(wrapped)) == list(weights_by_name(model))
    finally:
        torch.distributed.destroy_process_group()
    assert "output.weight" not in weights_by_name(model)  # tied: once, as embedding.weight


def test_the_first_difference_is_named():
    ours = {"a": torch.zeros(2), "b": torch.zeros(3)}
    assert first_difference(dict(ours), ours) is None
    assert first_difference({"a": torch.zeros(2)}, ours) == "b is missing"
    assert first_difference({**ours, "c": torch.zeros(1)}, ours) == "c is unknown to this model"
    other = {**ours, "b": torch.zeros(3, dtype=torch.float16)}
    assert first_difference(other, ours) == "b is (3,) float16, this model's is (3,) float32"


@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "stableadamw"])
def test_moments_return_by_name(optimizer):
    trained, fresh = tiny_state(optimizer), tiny_state(optimizer)
    list(tiny_train(trained, total_steps=2))
    moments = moments_by_name(trained.model, trained.optimizer)
    assert {name.rpartition(".")[2] for name in moments} == {"step", "exp_avg", "exp_avg_sq"}
    assert num_bytes([moments["dense.weight.exp_avg"]]) == 16 * 16 * 4
    load_moments(fresh.model, fresh.optimizer, moments)
    again = moments_by_name(fresh.model, fresh.optimizer)
    assert moments.keys() == again.keys()
    assert all(torch.equal(moments[name], again[name]) for name in moments)


def test_moments_of_another_model_are_refused():
    state = tiny_state()
    with pytest.raises(KeyError, match="elsewhere"):
        load_moments(state.model, state.optimizer, {"elsewhere.exp_avg": torch.zeros(3)})
    with pytest.raises(ValueError, match="dense.bias.exp_avg"):
        load_moments(state.model, state.optimizer, {"dense.bias.exp_avg": torch.zeros(3)})
