"""The header of a safetensors file: types and shapes of its tensors, read before any weight is.

So sizes that only a configuration claims take no memory.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

MOST_HEADER_BYTES = 1 << 24
"""BERT large has 60,000 bytes."""

_LFS = b"version https://git-lfs"
"""The content of a file that was cloned without Git LFS."""


@dataclass(frozen=True)
class TensorHeader:
    """The type, as safetensors names it, and the shape of one tensor."""

    dtype: str
    shape: tuple[int, ...]


def read_weights_header(path: Path) -> dict[str, TensorHeader]:
    """Types and shapes by name; none of the weights is read.

    Raises `ValueError` for what is no whole safetensors file: its tensors have to fill it, without
    holes and without overlaps. `OSError` for what cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        head = file.read(len(_LFS))
        num_bytes = int.from_bytes(head[:8], "little")
    if head == _LFS:
        raise ValueError("a pointer of Git LFS; fetch the file itself with git lfs pull")
    if num_bytes > MOST_HEADER_BYTES:
        raise ValueError(f"a header of {num_bytes:,} bytes")
    try:
        with safe_open(path, framework="pt") as weights:
            slices = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118
            return {
                name: TensorHeader(each.get_dtype(), tuple(each.get_shape()))
                for name, each in slices.items()
            }
    except SafetensorError as error:
        raise ValueError(" ".join(str(error).split())[:200]) from error
