"""Fine-tuning runs for tests: a task in a made-up language, an encoder that knows nothing.

As a program it trains several of them in one group of workers; `---` divides their arguments.
"""

import random
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import ClassVar

import torch
from pretraining_runs import REPOSITORY, Channel, Run, StoppingWorker, worker_threads

from bert_core.config import ModelConfig
from bert_core.model.bert import Bert
from bert_core.model_folder import save_model_folder
from bert_core.tokenizer_training import train_wordpiece
from workflows.command import run_command
from workflows.finetune import opened_job, parse
from workflows.finetuning.results import write_results
from workflows.finetuning.worker import finetuning_parts
from workflows.runs.storage import open_storage
from workflows.training.job import train_and_register
from workflows.training.run import TrainingRun

WORDS = ["ba", "keli", "monu", "rashi", "to", "vuza", "bali", "shito", "noka", "rume"]
VOCABULARY = 120


def write_task(folder: Path, *, train: int = 90, dev: int = 40, inverted: bool = False) -> Path:
    """Train and dev of a task that can be learned: which half of the words a text is made of.

    `inverted` dev labels make a model that learns look worse with every epoch.
    """
    choose = random.Random(3)
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", train), ("dev", dev)):
        lines = ["text\tlabel"]
        for _ in range(count):
            label = choose.choice(["up", "down"])
            words = WORDS[:5] if (label == "up") != (inverted and name == "dev") else WORDS[5:]
            lines.append(f"{' '.join(choose.choices(words, k=choose.randint(2, 14)))}\t{label}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def write_tagged(folder: Path, *, train: int = 90, dev: int = 40) -> Path:
    """Train and dev of tags that can be learned: each of the first three words has its own."""
    choose = random.Random(3)
    tags = {"ba": "B-ONE", "keli": "B-TWO", "monu": "B-TWO"}
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", train), ("dev", dev)):
        drawn = [choose.choices(WORDS, k=choose.randint(2, 14)) for _ in range(count)]
        sentences = ["".join(f"{word} {tags.get(word, 'O')}\n" for word in each) for each in drawn]
        (folder / f"{name}.txt").write_text("\n".join(sentences))
    return folder


def write_encoder(
    folder: Path,
    *,
    vocab_size: int = VOCABULARY,
    positions: int = 32,
    layers: int = 1,
    kind: type[ModelConfig] = ModelConfig,
) -> Path:
    """A fresh encoder of one layer, or more, as a pre-training run leaves it."""
    tokenizer = train_wordpiece([" ".join(WORDS)] * 3, VOCABULARY, lowercase=True)
    config = kind(
        vocab_size=vocab_size,
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=positions,
        pad_token_id=0,
    )
    torch.manual_seed(4)
    model = Bert.for_pretraining(config, next_sentence=kind is ModelConfig)
    save_model_folder(folder, model, tokenizer, card="")
    return folder


def arguments(storage: Path, **changed: object) -> list[str]:
    """The command line of a small run: 3 epochs of 12 steps."""
    settings = {
        "data": storage / "data",
        "model": storage / "encoder",
        "storage": storage,
        "name": "run",
        "batch_size": 8,
        "options.max_length": 32,
        "optimizer.peak_learning_rate": 3e-3,
        "cluster.threads_per_worker": 1,
        **{name.replace("__", "."): value for name, value in changed.items()},
    }
    return [text for name, value in settings.items() for text in (f"--{name}", str(value))]


def finetune_here(storage: Path, stop_after: int = -1, **changed: object):
    """One start of a worker, in this process without Ray: the run, its outcome, its progress."""
    settings = parse(arguments(storage, **changed))
    worker = StoppingWorker(0, 1, torch.device("cpu"), Channel())
    worker.steps_left = stop_after
    folder = storage / "runs" / str(changed.get("name", "run"))
    folder.mkdir(parents=True, exist_ok=True)
    with worker_threads():
        encoder = Path(settings.model)
        features = storage / "features"
        parts = finetuning_parts(settings, encoder, worker, folder, features=features)
        run = TrainingRun(parts, worker, folder)
        outcome = run.train()
    return run, outcome, worker._channel.progress


@dataclass
class FineTuning(Run):
    """A fine-tuning run by its settings, on the data and the encoder in `shards`."""

    program: ClassVar[Path] = REPOSITORY / "workflows" / "finetune.py"

    def arguments(self) -> list[str]:
        """The command line after the program's name."""
        places = {"data": self.shards / "data", "model": self.shards / "encoder"}
        return arguments(self.storage, **places, name=self.name, **self.settings)


@dataclass
class FineTunings(Run):
    """Several of them, one after the other in one group of workers; `name` is only its own."""

    program: ClassVar[Path] = Path(__file__)

    jobs: list[FineTuning] = field(default_factory=list)

    def arguments(self) -> list[str]:
        """The command lines of all, divided."""
        return [text for job in self.jobs for text in ("---", *job.arguments())][1:]


@dataclass
class Demo(Run):
    """The demo of the encoder in `shards`, on little of what there is."""

    program: ClassVar[Path] = REPOSITORY / "workflows" / "demo.py"

    def arguments(self) -> list[str]:
        """The command line after the program's name."""
        option = self.settings.get("encoder_as", "model")
        given = ["--storage", str(self.storage), f"--{option}", str(self.shards / "encoder")]
        return [*given, "--data", "docs://numpy,scipy", "--max_examples", "200"]

    def newest(self, prefix: str) -> Run:
        """The fine-tuning run whose name begins so, or one that never was."""
        folders = self.storage.glob(f"runs/{prefix}-*/")
        name = next((folder.name for folder in folders), prefix)
        return Run(self.storage, name, self.shards, 0)


def train_all(given: list[str]) -> bool:
    """Trains and registers what stands between the dividers."""
    lines = [list(line) for divides, line in groupby(given, "---".__eq__) if not divides]
    with ExitStack() as opened:
        jobs = []
        for line in lines:
            settings = parse(line)
            jobs.append(opened.enter_context(opened_job(settings, open_storage(settings.storage))))
            jobs[-1].title = f"{len(jobs)} of {len(lines)} {settings.name}"
        return train_and_register(jobs, write_results)


if __name__ == "__main__":
    sys.exit(run_command(lambda: train_all(sys.argv[1:])))
