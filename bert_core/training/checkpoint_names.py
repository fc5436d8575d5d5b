"""What checkpoint folders are called; apart from their content, so that it loads no torch."""

import re
from pathlib import Path

MODEL, OPTIMIZER, STATE, FILES = "model.safetensors", "optimizer.safetensors", "state.json", "files"
NEEDED = (MODEL, OPTIMIZER, STATE)
"""Files that the manifest of every checkpoint names."""

_NAME = re.compile(r"step-\d{8,18}")


def checkpoint_name(step: int) -> str:
    """The name of a step's checkpoint folder."""
    return f"step-{step:08d}"


def checkpoint_step(path: Path) -> int:
    """The step of a checkpoint folder, by its name."""
    return int(path.name.removeprefix("step-"))


def is_checkpoint_name(name: str) -> bool:
    """Whether this is what a whole checkpoint is called, not one that is being written."""
    return _NAME.fullmatch(name) is not None


def committed_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints under their final names, newest first."""
    paths = [path for path in folder.glob("step-*") if is_checkpoint_name(path.name)]
    return sorted(paths, key=checkpoint_step, reverse=True)
