"""What the tests of the encoder run read: a made-up text as shards, two small tasks of GLUE."""

from dataclasses import replace
from pathlib import Path

from pretraining_runs import write_corpus
from small_tasks import write_data

from benchmarks.encoder_run.recipe import RECIPES, Clock

RECIPE = replace(RECIPES["tiny"], step_slots=128, sequence_length=32, dropout=0.1)


def write_all(folder: Path) -> tuple[Path, Path]:
    """The folders of the shards and of GLUE."""
    for task, name in (("sst2", "SST-2"), ("mrpc", "MRPC")):
        write_data(task, folder / "glue" / name)
    return write_corpus(folder / "shards"), folder / "glue"


class CountingClock(Clock):
    """A clock whose time is up when it has been looked at so often."""

    def __init__(self, looks: int) -> None:
        super().__init__(60, 60)
        self.looks = looks

    def is_over(self) -> bool:
        """Counts down."""
        self.looks -= 1
        return self.looks < 0
