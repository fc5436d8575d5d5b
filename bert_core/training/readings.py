"""A step's totals on the device go in; a decision on the host comes out: go on, stop or fail."""

import torch
from torch import Tensor

from bert_core.errors import UserError

LOSS, FIRST_SUM, REAL_TOKENS, SLOTS, STOP = 0, 1, -3, -2, -1
"""Places in a step's totals: the loss, the loss function's sums, two counts, the stop flag."""

LOWER_THE_LEARNING_RATE = (
    "train again under another --name with a lower --optimizer.peak_learning_rate or a longer"
    " warm-up"
)
"""A run continues under the same settings alone, so that it needs another name."""


class NonFiniteLossError(UserError):
    """The loss or the gradient norm of `step` was infinite or not a number."""

    def __init__(self, step: int, loss: float, gradient_norm: float) -> None:
        super().__init__(
            "training stopped on a number that is not finite",
            f"step {step}: loss {loss}, gradient norm {gradient_norm}",
            f"{LOWER_THE_LEARNING_RATE}; the last checkpoint is intact",
        )
        self.step, self.loss, self.gradient_norm = step, loss, gradient_norm

    def __reduce__(self) -> tuple[type["NonFiniteLossError"], tuple[int, float, float]]:  # pyright: ignore[reportIncompatibleMethodOverride] - rebuilt from its own three parts
        """Lets the error cross process borders."""
        return type(self), (self.step, self.loss, self.gradient_norm)


class Readings:
    """Brings each step's totals and gradient norm to the host, at once or one step late."""

    def __init__(self, *, late: bool) -> None:
        self._late = late
        self._pending: tuple[int, Tensor, torch.cuda.Event | None] | None = None

    def take(self, step: int, totals: Tensor, gradient_norm: Tensor, *, last: bool) -> bool:
        """Whether to stop after this step. Raises `NonFiniteLossError` for what has been read.

        Late, the answer is the previous step's: every rank reads the same reduced values at the
        same step, so all stop together.
        """
        values = torch.cat([totals, gradient_norm.detach().to(totals).reshape(1)])
        stop = self._read()
        self._pending = step, *_copy_to_host(values)
        if last or not self._late:
            stop = self._read() or stop
        return stop

    def _read(self) -> bool:
        if self._pending is None:
            return False
        step, values, copied = self._pending
        self._pending = None
        if copied is not None:
            copied.synchronize()
        if not bool(values.isfinite().all()):
            raise NonFiniteLossError(step, float(values[LOSS]), float(values[-1]))
        return bool(values[:-1][STOP] > 0)


def _copy_to_host(values: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """A host copy, and on CUDA the event after which it may be read."""
    if values.device.type != "cuda":
        return values.cpu(), None
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()
    return host, copied
