"""Audits for tests: made-up tasks with wrong labels, trained in this process without Ray."""

import random
from contextlib import contextmanager
from pathlib import Path

from finetuning_runs import WORDS, write_encoder, write_tagged, write_task
from sweep_runs import train_here

from workflows.audit import KIND, parse
from workflows.audits.settings import sweep_settings, with_dev
from workflows.runs.storage import open_storage
from workflows.sweeps.sweep import opened_sweep

OTHER = {"up": "down", "down": "up"}
HALVES = {"up": WORDS[:5], "down": WORDS[5:]}


class TrainsHere:
    """Trains runs in this process, as `Driver` does on a cluster; `trained` are their names."""

    at_once = 1

    def __init__(self):
        self.trained = []

    def settled(self, run, *, tracked=True):
        """Nothing: no run is tracked."""

    def train(self, _planned, next_run, _table, *, on_end, **_shared):
        while (run := next_run()) is not None:
            train_here(run)
            run.finish()
            on_end(run)
            self.trained.append(run.name)
        return True


def write_flipped(folder: Path, *, train: int = 120, flips: int = 6) -> list[int]:
    """A task of up and down with wrong labels; the lines of those in train.tsv, from 1."""
    write_task(folder, train=train)
    path = folder / "train.tsv"
    lines = path.read_text().splitlines()
    long = [n for n, line in enumerate(lines) if n and len(line.split()) > 8]
    chosen = sorted(random.Random(0).sample(long, flips))
    for number in chosen:
        text, label = lines[number].split("\t")
        lines[number] = f"{text}\t{OTHER[label]}"
    path.write_text("\n".join(lines) + "\n")
    return [number + 1 for number in chosen]


def write_several(folder: Path, *, flips: int = 6) -> list[int]:
    """Up and down, either or both, for each half of the words; some of down are up, too."""
    choose = random.Random(5)
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for name, count in (("train", 180), ("dev", 30)):
        lines = ["text\tlabel"]
        for number in range(count):
            halves = [("up",), ("down",), ("up", "down")][number % 3]
            words = [word for half in halves for word in choose.choices(HALVES[half], k=6)]
            is_wrong = name == "train" and halves == ("down",) and len(found) < flips
            found += [number + 2] if is_wrong else []
            lines.append(f"{' '.join(words)}\t{'up,down' if is_wrong else ','.join(halves)}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return found


def write_wrong_tags(folder: Path, *, flips: int = 6) -> list[int]:
    """Tagged sentences in which some words of a type are outside of it; their lines in train."""
    write_tagged(folder, train=160)
    path = folder / "train.txt"
    lines = path.read_text().splitlines()
    tagged = [n for n, line in enumerate(lines) if line == "keli B-TWO"]
    chosen = sorted(random.Random(1).sample(tagged, flips))
    for number in chosen:
        lines[number] = "keli O"
    path.write_text("\n".join(lines) + "\n")
    return [number + 1 for number in chosen]


def audit_arguments(place: Path, **changed: object) -> list[str]:
    """The command line of a small audit of the data and the encoder in a folder, its storage."""
    if not (place / "encoder").exists():
        write_encoder(place / "encoder")
    settings = {
        "data": place / "data",
        "model": place / "encoder",
        "storage": place,
        "folds": 3,
        "epochs": 4,
        "batch_size": 8,
        "optimizer.peak_learning_rate": 5e-3,
        "options.max_length": 32,
        **{name.replace("__", "."): value for name, value in changed.items()},
    }
    return [text for name, value in settings.items() for text in (f"--{name}", str(value))]


@contextmanager
def opened_audit(place: Path, *more: str, **changed: object):
    """Settings, storage and sweep of an audit, its folds trained here."""
    settings = with_dev(parse([*audit_arguments(place, **changed), *more]))
    storage = open_storage(str(place))
    with opened_sweep(sweep_settings(settings), storage, KIND) as sweep:
        for trial in sweep.left():
            train_here(trial)
            trial.finish()
        sweep.drop_losers()
        yield settings, storage, sweep
