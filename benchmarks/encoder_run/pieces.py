"""A model folder in half precision, cut into files that can be brought from machine to machine."""

import hashlib
import json
import re
import struct
import tempfile
from pathlib import Path

from safetensors.torch import load, load_file, save, save_file

from bert_core.errors import UserError
from bert_core.model_folder import CONFIG, WEIGHTS, load_model_folder, save_model_folder

PIECE_BYTES = 15_000_000
_NAME = re.compile(r"encoder-(\w+)-(\d+)-of-(\d+)")
_WITH_THE_WEIGHTS = (CONFIG, "tokenizer.json", "README.md")


def write_pieces(model: Path, folder: Path, piece_bytes: int = PIECE_BYTES) -> list[Path]:
    """Writes the encoder of a model folder as files of at most so many bytes; returns them.

    Weights are rounded to float16. Pieces of another encoder in `folder` are deleted.
    """
    weights = {name: each.half() for name, each in load_file(model / WEIGHTS).items()}
    texts = {name: (model / name).read_text(encoding="utf-8") for name in _WITH_THE_WEIGHTS}
    content = save(weights, metadata=texts)
    folder.mkdir(parents=True, exist_ok=True)
    for path in _pieces(folder):
        path.unlink()
    count = -(-len(content) // piece_bytes)
    digest = hashlib.sha256(content).hexdigest()[:16]
    paths = [folder / f"encoder-{digest}-{number}-of-{count}" for number in range(1, count + 1)]
    for number, path in enumerate(paths):
        path.write_bytes(content[number * piece_bytes : (number + 1) * piece_bytes])
    return paths


def join_pieces(folder: Path, model: Path) -> bool:
    """Writes the model folder that pieces make; False where there are none.

    Raises `UserError` where one is missing or damaged.
    """
    paths = _pieces(folder)
    if not paths:
        return False
    content = b"".join(path.read_bytes() for path in paths)
    match = _NAME.fullmatch(paths[0].name)
    if match is None or hashlib.sha256(content).hexdigest()[:16] != match[1]:
        raise UserError("pieces of an encoder that are damaged or not all there", str(folder),
                        "bring them again, or leave them out and pre-train")  # fmt: skip
    (length,) = struct.unpack("<Q", content[:8])
    texts = json.loads(content[8 : 8 + length])["__metadata__"]
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(temporary)
        for name in _WITH_THE_WEIGHTS:
            (whole / name).write_text(texts[name], encoding="utf-8")
        save_file({name: each.float() for name, each in load(content).items()}, whole / WEIGHTS)
        _, loaded, tokenizer = load_model_folder(whole)
    save_model_folder(model, loaded, tokenizer, texts["README.md"])
    return True


def _pieces(folder: Path) -> list[Path]:
    """The pieces in a folder, in their order."""
    found = {path: _NAME.fullmatch(path.name) for path in folder.glob("encoder-*-of-*")}
    numbers = {path: int(match[2]) for path, match in found.items() if match}
    return sorted(numbers, key=numbers.__getitem__)
