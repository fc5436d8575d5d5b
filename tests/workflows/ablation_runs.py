"""Ablations for tests: tiny encoders of a made-up language, and a task in it."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from finetuning_runs import write_task
from pretraining_runs import REPOSITORY, Run, write_corpus

from workflows.ablations.settings import AblateSettings, parse


def write_inputs(folder: Path) -> Path:
    """Token shards in `corpus`, and in `data` train and dev of a task that can be learned."""
    write_corpus(folder / "corpus")
    write_task(folder / "data", train=300)
    return folder


@dataclass
class AblationCommand(Run):
    """An ablation over what lies in `shards`, as a process; `settings` are options as well.

    Those of several values are tuples.
    """

    program: ClassVar[Path] = REPOSITORY / "workflows" / "ablate.py"

    @property
    def folder(self) -> Path:
        return self.storage / "ablations" / self.name

    def arguments(self) -> list[str]:
        """The command line after the program's name: those of a pre-training run, and more."""
        own = self.settings
        settings: dict[str, object] = {
            "study": "objective",
            "task": f"classification={self.shards / 'data'}",
            "seeds": 2,
            "finetuning.epochs": 2,
            "finetuning.max_length": 32,
            **own,
        }
        of_pretraining = Run(
            self.storage,
            self.name,
            self.shards / "corpus",
            self.steps,
            {"checkpoint.every_steps": 5},
        )
        given = of_pretraining.arguments()
        for name, value in settings.items():
            values = value if isinstance(value, tuple) else (value,)
            given += [f"--{name}", *map(str, values)]
        return given


def ablation_settings(storage: Path, inputs: Path, **changed: object) -> AblateSettings:
    """The settings of a small ablation."""
    options = {name.replace("__", "."): value for name, value in changed.items()}
    return parse(AblationCommand(storage, "ablation", inputs, 8, options).arguments())
