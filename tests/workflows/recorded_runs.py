"""Finished runs as the commands leave them, tracked and all; trained here, without Ray."""

from pathlib import Path

from finetuning_runs import arguments, finetune_here
from pretraining_runs import Run, train_here
from tracked_runs import sending_here

from bert_core.text.shards import read_index, write_index
from workflows import finetune, pretrain
from workflows.reproduction.run_origin import CODE, note_code

SOURCES = [
    {"text": "docs://numpy", "num_documents": 200, "num_bytes": 150_000, "sha256": "ab" * 32}
    | {"version": "numpy 2.4.6"},
    {"text": "/data/my/wiki/*.txt", "num_documents": 120, "num_bytes": 90_000, "sha256": "cd" * 32},
]


def name_sources(shards: Path) -> None:
    """Writes into the index of shards of which text they are."""
    index = read_index(shards)
    settings = {"text": [source["text"] for source in SOURCES], "language": "en"}
    write_index(shards, index.model_copy(update={"sources": SOURCES, "settings": settings}))


def finish_pretraining(run: Run) -> None:
    """Trains the run and calls the command, which finds it trained, tracks and registers it."""
    train_here(run)
    _note_code(run.folder)
    with sending_here():
        assert pretrain.main(run.arguments()) == 0


def finish_finetuning(storage: Path, *options: str, encoder: Path | None = None, **changed) -> Path:
    """The same with a fine-tuning run; `encoder` is the folder where `model` is an address."""
    here = changed | ({} if encoder is None else {"model": encoder})
    run, _, _ = finetune_here(storage, **here)
    _note_code(run.folder.path)
    with sending_here():
        assert finetune.main([*arguments(storage, **changed), *options]) == 0
    return run.folder.path


def _note_code(folder: Path) -> None:
    (folder / "artifacts").mkdir(exist_ok=True)
    note_code(folder / "artifacts" / CODE)
