"""A model folder replaces another, and is killed, or fails, at every step that changes the disk."""

import errno
import os
import sys
import threading
import time

import pytest
import torch

from bert_core import disk
from bert_core.config import ModelConfig
from bert_core.errors import UserError
from bert_core.model.bert import Bert
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tokenizer import SPECIAL_TOKENS, wordpiece_tokenizer

TOKENIZER = wordpiece_tokenizer(
    {word: i for i, word in enumerate([*SPECIAL_TOKENS, "a"])}, lowercase=True
)
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "ctypes.dlsym")
KILLED = 9


def model_of(value):
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 2}
    model = Bert.for_pretraining(
        ModelConfig(vocab_size=6, hidden_size=2, max_position_embeddings=4, **sizes)
    )
    with torch.no_grad():
        model.encoder.word_embeddings.fill_(value)
    return model


def save(folder, value):
    save_model_folder(folder, model_of(value), TOKENIZER, f"{value}")


def value_in(folder):
    """Of a folder that is whole, and of one save."""
    _, model, _ = load_model_folder(folder)
    value = int(model.encoder.word_embeddings[0, 0])
    assert (folder / "README.md").read_text() == f"{value}"
    return value


def call_at_step(number, action):
    """Has a process call `action` before its `number`th step that changes the disk."""
    count = 0

    def watch(event, arguments):
        nonlocal count
        changes = event == "open" and isinstance(arguments[2], int)
        changes = changes and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        if changes or event in CHANGES:
            count += 1
            if count == number:
                action()

    sys.addaudithook(watch)


def in_a_child(work):
    """The exit code of a forked process; a hook of it cannot be taken away."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except UserError:
            code = 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture(params=["at once", "in two steps"])
def steps(request, monkeypatch):
    if request.param == "in two steps":  # as on a file system that knows no exchange
        monkeypatch.setattr(disk, "exchange", lambda *_: False)


@pytest.mark.parametrize("is_first", [False, True])
def test_a_kill_at_any_step_leaves_a_whole_folder(tmp_path, steps, is_first):
    torch.set_num_threads(1)
    seen = set()
    for number in range(1, 200):
        folder = tmp_path / str(number) / "model"
        if not is_first:
            save(folder, 1)

        def killed(folder=folder, number=number):
            call_at_step(number, lambda: os._exit(KILLED))
            save(folder, 2)

        code = in_a_child(killed)
        assert code in (0, KILLED)
        try:
            seen.add(value_in(folder))
        except UserError:
            assert is_first
            seen.add(None)
        save(folder, 3)
        assert value_in(folder) == 3
        assert [each.name for each in folder.parent.iterdir()] == ["model"]
        if code == 0:
            break
    assert number > 12  # else no kill fell into the save
    assert seen == ({None, 2} if is_first else {1, 2})


def test_a_save_after_a_kill_that_is_killed_too(tmp_path, steps):
    torch.set_num_threads(1)
    for first in range(8, 20, 2):
        for second in (1, 5, 12, 14):
            folder = tmp_path / f"{first}-{second}" / "model"
            save(folder, 1)
            for number, value in ((first, 2), (second, 3)):

                def killed(folder=folder, number=number, value=value):
                    call_at_step(number, lambda: os._exit(KILLED))
                    save(folder, value)

                in_a_child(killed)
            assert value_in(folder) in (1, 2, 3)


def test_an_error_at_any_step_leaves_a_whole_folder_and_nothing_beside_it(tmp_path, steps):
    torch.set_num_threads(1)

    failures = 0

    def fail():
        raise OSError(errno.ENOSPC, "No space left on device")

    for number in range(1, 25):
        folder = tmp_path / str(number) / "model"
        save(folder, 1)

        def failing(folder=folder, number=number):
            call_at_step(number, fail)
            save(folder, 2)

        code = in_a_child(failing)
        assert code in (0, 2)
        assert value_in(folder) in (1, 2)
        save(folder, 3)
        assert [each.name for each in folder.parent.iterdir()] == ["model"]
        failures += code == 2
    assert failures > 10  # else no error fell into the save


def test_readers_see_one_model_or_the_other(tmp_path):
    folder, ended, found = tmp_path / "model", threading.Event(), []
    save(folder, 1)

    def read():
        while not ended.is_set():
            try:
                found.append(value_in_either(folder))
            except BaseException as error:  # noqa: BLE001 - it is to be seen outside the thread
                found.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for value in range(2, 30):
        save(folder, value)
        time.sleep(0.02)
    ended.set()
    reader.join()
    assert found
    assert [each for each in found if not isinstance(each, int)] == []


def value_in_either(folder):
    _, model, _ = load_model_folder(folder)
    return int(model.encoder.word_embeddings[0, 0])
