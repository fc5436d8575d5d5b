"""Trains on global batches and yields one `StepResult` per step.

`train` is a generator: logging, evaluation and checkpoints stand in the caller's `for`, in order.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bert_core.errors import UserError
from bert_core.training.optimization import RATE_SHARE, RowGradients
from bert_core.training.ranks import data_parallel, rank, world_size

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


__all__ = ["NonFiniteLossError", "StepResult", "TrainingState", "train"]


class MicroBatch(Protocol):
    """What one forward pass reads; the counts are this micro-batch's own."""

    @property
    def num_real_tokens(self) -> int:
        """Tokens that are not padding."""
        ...

    @property
    def num_slots(self) -> int:
        """Places for tokens, padding included."""
        ...

    def to(self, device: torch.device, non_blocking: bool = False) -> Any:  # noqa: ANN401
        """The same micro-batch on `device`."""
        ...


class StepBatches(Protocol):
    """One rank's share of a global batch, with the denominators of the whole of it."""

    @property
    def micro_batches(self) -> Sequence[MicroBatch]:
        """At least one, if need be one whose labels are all ignored."""
        ...

    @property
    def counts(self) -> Mapping[str, int]:
        """What the loss function divides by, by its names: those of all ranks together."""
        ...

    @property
    def num_rows(self) -> int:
        """Rows of the global batch, all ranks together."""
        ...

    @property
    def sum_of_squared_lengths(self) -> int:
        """Over the rows of the global batch, all ranks together."""
        ...


ComputeLoss = Callable[..., tuple[Tensor, Tensor]]
"""`compute_loss(model, micro_batch, **counts)`: the micro-batch's loss over the counts of the
global batch, and its detached sums [S]. `model` is the bare module, whatever the number of ranks.
"""


@dataclass
class TrainingState:
    """All that changes while training, and so all that a checkpoint holds.

    `model` is the bare module, on its device: `train` makes it data parallel by itself where there
    is a process group. `step` counts finished steps. The rows and tokens seen are those of all
    ranks; `num_tokens_seen` becomes a 0-d tensor on an accelerator, so that counting never waits
    for it: `int()` reads both forms.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: int = 0
    num_rows_seen: int = 0
    num_tokens_seen: int | Tensor = 0


@dataclass(frozen=True)
class StepResult:
    """What one step did, over all ranks; tensors stay on the device until somebody reads them.

    `step` is the number of finished steps, this one included. `sums` are those of the loss
    function, float64 [S]; `loss`, `gradient_norm` (before clipping), `num_real_tokens` and
    `num_slots` are 0-d. `sum_of_squared_lengths` is known to the host. `stopped` says that this is
    the last result because some rank asked to stop.
    """

    step: int
    loss: Tensor
    sums: Tensor
    gradient_norm: Tensor
    learning_rate: float
    num_real_tokens: Tensor
    num_slots: Tensor
    sum_of_squared_lengths: int
    stopped: bool


def train(
    state: TrainingState,
    steps: Iterator[StepBatches],
    compute_loss: ComputeLoss,
    *,
    total_steps: int,
    schedule: Callable[[int], float],
    max_gradient_norm: float,
    device: torch.device,
    autocast_dtype: torch.dtype | None,
    seed: int,
    should_stop: Callable[[], bool] | None = None,
) -> Iterator[StepResult]:
    """Trains until `state.step` is `total_steps` or any rank's `should_stop` says so.

    A generator. Contract: every rank consumes it alike, and `steps` starts at the global batch
    `state.step`. `schedule(step)` is the learning rate itself, given the finished steps.

    Nothing random is stored: torch's generators are seeded before each forward pass by a pure
    function of (seed, step, rank, micro-batch), so a resumed run repeats an uninterrupted one.
    The losses carry global denominators and data-parallel training averages over ranks, so each
    rank's loss is multiplied by their number: unequal shares give one rank's gradient.

    One small all-reduce a step carries sums, counts and the stop flag. On CPU its result is read
    at once, so `NonFiniteLossError` comes before the optimizer touches a weight. On an accelerator
    it is read one step late, behind the next step's kernels, so the device never runs dry; the
    last step is read at once. There a bad step may have touched the weights in memory, never a
    checkpoint: `save_checkpoint` refuses weights that are not finite. Raises `ValueError` for a
    share without micro-batches and `RuntimeError` when `steps` ends early.
    """
    several = world_size() > 1
    forward = (
        data_parallel(state.model, compute_loss) if several else partial(compute_loss, state.model)
    )
    readings = Readings(late=device.type != "cpu")
    in_rows = device.type == "cpu" and not several  # data parallelism exchanges whole gradients
    gradients = RowGradients(state.model, wanted=in_rows)
    while state.step < total_steps:
        batches = _next_share(steps, state.step)
        state.model.train()  # here, because the consumer may have evaluated
        state.optimizer.zero_grad(set_to_none=True)
        with gradients.computing():
            totals = _accumulate_gradients(
                forward,
                batches,
                step=state.step,
                device=device,
                autocast_dtype=autocast_dtype,
                seed=seed,
            )
        totals[STOP] = float(should_stop is not None and should_stop())
        if several:
            dist.all_reduce(totals)
        gradient_norm = gradients.clip(max_gradient_norm)
        number = state.step + 1
        stopped = readings.take(number, totals, gradient_norm, last=number == total_steps)

        learning_rate = schedule(state.step)
        gradients.spread()
        _step_optimizer(state.optimizer, learning_rate)
        state.step = number
        state.num_rows_seen += batches.num_rows
        seen = state.num_tokens_seen + totals[REAL_TOKENS]
        state.num_tokens_seen = int(seen) if device.type == "cpu" else seen
        yield StepResult(
            step=number,
            loss=totals[LOSS],
            sums=totals[FIRST_SUM:REAL_TOKENS],
            gradient_norm=gradient_norm,
            learning_rate=learning_rate,
            num_real_tokens=totals[REAL_TOKENS],
            num_slots=totals[SLOTS],
            sum_of_squared_lengths=batches.sum_of_squared_lengths,
            stopped=stopped,
        )
        if stopped:
            return


def _next_share(steps: Iterator[StepBatches], step: int) -> StepBatches:
    batches = next(steps, None)
    if batches is None:
        raise RuntimeError(f"the data ended after step {step}")
    if not batches.micro_batches:
        raise ValueError(f"rank {rank()} has no micro-batch in step {step + 1}")
    return batches


def _step_optimizer(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get(RATE_SHARE, 1.0)
    optimizer.step()


def _accumulate_gradients(
    forward: Callable[..., tuple[Tensor, Tensor]],
    batches: StepBatches,
    *,
    step: int,
    device: torch.device,
    autocast_dtype: torch.dtype | None,
    seed: int,
) -> Tensor:
    """This rank's gradients into `.grad`; its totals, float64 (places: `LOSS`, `FIRST_SUM`, …)."""
    totals = torch.zeros((), dtype=torch.float64, device=device)
    last = len(batches.micro_batches) - 1
    for index, micro_batch in enumerate(batches.micro_batches):
        torch.manual_seed(dropout_seed(seed, step, rank(), index))
        with _gradient_sync(forward, wanted=index == last):
            with autocast(device, autocast_dtype):
                loss, sums = forward(micro_batch.to(device, non_blocking=True), **batches.counts)
            (loss * world_size()).backward()
        totals = totals + torch.cat([loss.detach().reshape(1), sums, sums.new_zeros(3)]).double()
    totals[REAL_TOKENS] = sum(batch.num_real_tokens for batch in batches.micro_batches)
    totals[SLOTS] = sum(batch.num_slots for batch in batches.micro_batches)
    return totals


def dropout_seed(seed: int, step: int, rank: int, micro_batch: int) -> int:
    """Seeds torch before the forward pass of a micro-batch; `step` counts finished steps.

    A 63-bit hash: neighbouring steps and ranks get unrelated streams.
    """
    text = f"dropout {seed} {step} {rank} {micro_batch}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def _gradient_sync(
    forward: Callable[..., object], *, wanted: bool
) -> AbstractContextManager[object]:
    """Keeps data-parallel ranks from exchanging gradients before the last micro-batch."""
    parallel = isinstance(forward, DistributedDataParallel)
    return forward.no_sync() if parallel and not wanted else nullcontext()


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Runs matrix products in `dtype`; None leaves everything in float32."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


_SPARE_SHAPES = 8
"""So many shapes more than are expected are compiled: as many as torch allows by default."""


def compiled(
    compute_loss: ComputeLoss,
    *,
    num_shapes: int = 1,
    backend: str | Callable[..., Any] = "inductor",
) -> Any:  # noqa: ANN401 - called as `compute_loss` is
    """`compute_loss` as one program, forward and backward, for each shape of a micro-batch.

    What cannot be in one program is an error, and so are many more shapes than `num_shapes`. The
    counts of the global batch change from step to step, and each number would be a program of its
    own: they come as 0-d int64 tensors instead, filled on the device, so that nobody waits for a
    copy.
    """
    from torch._dynamo import config  # takes a second

    config.recompile_limit = max(config.recompile_limit, _SPARE_SHAPES + num_shapes)
    program = torch.compile(compute_loss, fullgraph=True, dynamic=False, backend=backend)

    def with_counts(model: nn.Module, *batch: Any, **counts: int) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        device = next(model.parameters()).device
        filled = {
            name: torch.full((), count, dtype=torch.int64, device=device)
            for name, count in counts.items()
        }
        return program(model, *batch, **filled)

    return with_counts
