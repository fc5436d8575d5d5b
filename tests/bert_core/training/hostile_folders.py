"""`hostile_folders.py FOLDER SEED KIND=COUNT …`: whole folders, changed at random, are opened.

Each kind has a process of its own, for some changes would abort it or take all memory where they
are not refused. Prints how often a changed folder was opened and refused; exits with an error, and
a traceback, for anything else.
"""

import json
import os
import random
import resource
import shutil
import struct
import sys
import time
import traceback
from pathlib import Path

import torch
from synthetic_shards import write_two_shards
from tiny_training import tiny_state, tiny_train

from bert_core.config import ModelConfig
from bert_core.errors import UserError
from bert_core.example import read_example
from bert_core.lineage import read_lineage
from bert_core.model.bert import Bert
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.predictor import load_predictor
from bert_core.quantization import read_precision
from bert_core.special_tokens import SPECIAL_TOKENS
from bert_core.tasks.catalog import TASKS, task_config
from bert_core.tasks.classification import Text
from bert_core.tasks.task import add_task_head
from bert_core.text.shards import open_shards, verify_shards
from bert_core.tokenizer import load_tokenizer, save_tokenizer, wordpiece_tokenizer
from bert_core.training import checkpoint_folder
from bert_core.training.checkpoint import load_checkpoint, save_checkpoint

MOST_BYTES, MOST_SECONDS = 1 << 30, 30
VALUES = [
    *(None, True, False, 0, -1, 1, 7, 2**31, 2**63, -(2**63), 10**400, 0.5, -0.5, 1e308, -1e308),
    *("", "x", "\0", "../x", "/etc/passwd", "..\\x", "\ud800", "a" * 10_000, "NaN"),
    *([], [[]], {}, {"a": {}}, [None], {"": None}, [0] * 10_000),
]
RAW = ["NaN", "Infinity", "1e999", "[" * 100_000, '{"a":' * 100_000, "1" * 10_000, '{"a":1,"a":2}']


def write_tokenizer_only(folder):
    folder.mkdir()
    save_tokenizer(_tokenizer(), folder / "tokenizer.json")


def _tokenizer():
    words = [*SPECIAL_TOKENS, "a", "b", "##b", "hello", "wo", "##rld", ","]
    return wordpiece_tokenizer({word: i for i, word in enumerate(words)}, lowercase=True)


def write_model(folder):
    config = ModelConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    model = Bert.for_pretraining(config)
    task = TASKS["classification"].model_copy(update={"labels": ("no", "yes")})
    add_task_head(model, task)
    extra = task_config("classification", task)
    save_model_folder(folder, model, _tokenizer(), "# A card\n", extra_config=extra)


def write_checkpoint(folder):
    state = tiny_state()
    list(tiny_train(state, total_steps=2))
    note = folder.parent / "note"
    note.write_text("{}")
    made = save_checkpoint(
        folder.parent / "made", state, extra={"a": 1}, files={"note": note}, keep=1
    )
    made.rename(folder)


def open_tokenizer(folder):
    tokenizer = load_tokenizer(folder)
    tokenizer.encode("hello world, " * 50 + "x" * 5000 + "[MASK]", add_special_tokens=False)


def open_model(folder):
    load_model_folder(folder)
    read_precision(folder)
    read_example(folder)
    read_lineage(folder)
    predictor = load_predictor(folder)
    predictor.predict_examples([Text("hello world", None, None)])


def open_all_shards(folder):
    verify_shards(folder)
    open_shards(folder)


def open_checkpoint(folder):
    load_checkpoint(folder, tiny_state())


KINDS = {
    "tokenizer": (write_tokenizer_only, open_tokenizer),
    "model": (write_model, open_model),
    "shards": (write_two_shards, open_all_shards),
    "checkpoint": (write_checkpoint, open_checkpoint),
}


def change(folder, draw):
    """Changes one file of the folder; says how."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    told = [file for file in files if file.name in ("config.json", "state.json", "manifest.json")]
    path = draw.choice(files + 3 * told + 3 * sorted(folder.glob("*.safetensors")))
    kinds = [change_bytes, change_kind]
    if path.suffix == ".json":
        kinds += [change_json] * 6
    if path.suffix == ".safetensors":
        kinds += [change_header] * 4
    kind = draw.choice(kinds)
    return f"{path.name}: {kind.__name__} {kind(path, draw)}"


def change_bytes(path, draw):
    content = bytearray(path.read_bytes())
    place = draw.randrange(len(content) or 1)
    way = draw.choice(["cut", "flip", "add", "empty", "noise"])
    if way == "cut":
        del content[place:]
    elif way == "flip" and content:
        content[place] ^= 1 << draw.randrange(8)
    elif way == "add":
        content += draw.randbytes(100)
    elif way == "empty":
        content.clear()
    elif way == "noise":
        content[place : place + 16] = draw.randbytes(16)
    path.write_bytes(content)
    return f"{way} at {place}"


def change_kind(path, draw):
    path.unlink()
    way = draw.choice(["missing", "folder", "fifo", "endless", "loop", "outside"])
    if way == "folder":
        path.mkdir()
    elif way == "fifo":
        os.mkfifo(path)
    elif way == "endless":
        path.symlink_to("/dev/zero")
    elif way == "loop":
        path.symlink_to(path)
    elif way == "outside":
        path.symlink_to("/etc/passwd")
    return way


def change_json(path, draw):
    text, how = changed_json(json.loads(path.read_text(encoding="utf-8")), draw)
    path.write_bytes(text)
    return how


def change_header(path, draw):
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    text, how = changed_json(json.loads(content[8 : 8 + size]), draw)
    length = draw.choice([len(text)] * 6 + [0, 2**63, len(content) * 2])
    path.write_bytes(struct.pack("<Q", length) + text + content[8 + size :])
    return f"{how}, length {length}"


def changed_json(value, draw):
    """The JSON with one value, at a place drawn, that is another or gone."""
    places = [((), value)]
    for place, each in places:
        inside = each.items() if isinstance(each, dict) else enumerate(each)
        chosen = [(key, part) for key, part in inside] if isinstance(each, dict | list) else []
        places += [((*place, key), part) for key, part in chosen if isinstance(part, dict | list)]
        if len(places) > 2000:
            break
    place, parent = draw.choice(places)
    keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
    key = draw.choice(keys) if keys else None
    way = draw.choice(["value", "value", "value", "gone", "more", "raw", "name"])
    raw = draw.choice(RAW)
    if key is None or way == "more":
        new = draw.choice(VALUES)
        if isinstance(parent, dict):
            parent[draw.choice(["x", "../x", "", "/x"])] = new
        else:
            parent.append(new)
    elif way == "gone":
        del parent[key]
    elif way == "name" and isinstance(parent, dict):
        new = draw.choice(["../x", "/etc/passwd", "a\\b", "nul\0", ""])
        parent[new] = parent.pop(key)
    else:
        new = "@RAW@" if way == "raw" else draw.choice(VALUES)
        parent[key] = new
    text = json.dumps(value).replace('"@RAW@"', raw)
    return text.encode(), f"{way} at {place} {key}: {str(locals().get('new'))[:40]!r} {raw[:10]}"


def seal_anew(folder, draw):
    """Has the lists of checksums agree with a change, half of the time, so that more is read."""
    if draw.random() < 0.5:
        return
    if not (folder / "checksums").is_dir():
        (folder / "checksums").unlink(missing_ok=True)
    manifest = folder / checkpoint_folder.MANIFEST
    if manifest.is_file() and not (manifest.is_symlink() or has_oddities(folder)):
        manifest.unlink()
        again = folder.with_name("again")
        folder.rename(again)
        checkpoint_folder.seal(again, folder)


def has_oddities(folder):
    return any(path.is_symlink() or path.is_fifo() for path in folder.rglob("*"))


def open_changed(kind, folder, seed, count):
    write, read = KINDS[kind]
    whole, changed = folder / "whole", folder / "changed"
    folder.mkdir(exist_ok=True)
    write(whole)
    read(whole)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, used + MOST_BYTES))
    counts = {"opened": 0, "refused": 0}
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        shutil.rmtree(changed, ignore_errors=True)
        shutil.copytree(whole, changed)
        how = change(changed, draw)
        seal_anew(changed, draw)
        sys.stderr.write(f"{number} {how[:300]}\n")
        begun = time.monotonic()
        try:
            read(changed)
            counts["opened"] += 1
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 2500, error
            counts["refused"] += 1
        assert time.monotonic() - begun < MOST_SECONDS
    print(json.dumps({kind: counts}), flush=True)


def in_a_child(*arguments):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            open_changed(*arguments)
            code = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(folder, seed, *kinds):
    torch.set_num_threads(1)
    failed = []
    for each in kinds:
        kind, _, count = each.partition("=")
        if in_a_child(kind, Path(folder) / kind, seed, int(count)):
            failed.append(kind)
    sys.exit(f"failed: {failed}" if failed else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
