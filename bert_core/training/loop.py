"""Global batches go in; optimizer steps happen; one `StepResult` a step comes out.

`train` is a generator: what follows from a step stands in the caller's `for`, in plain sight.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bert_core.errors import UserError

NUM_SUMS = 6
"""How many sums a loss function returns; see `bert_core.tasks.pretraining.SUM_NAMES`."""
_STOP = NUM_SUMS + 2  # the place of the stop flag in a step's totals, after the two counts


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
    def num_predictions(self) -> int:
        """Masked tokens to predict in the global batch, all ranks together."""
        ...

    @property
    def num_rows(self) -> int:
        """Rows of the global batch, all ranks together."""
        ...


class ComputeLoss(Protocol):
    """Loss of one micro-batch over the global denominators, and its detached sums [6]."""

    def __call__(
        self,
        model: nn.Module,
        batch: Any,  # noqa: ANN401 - each task has its own batch
        /,
        *,
        num_predictions: int,
        num_rows: int,
    ) -> tuple[Tensor, Tensor]:
        """Calls `model` itself, not a part of it, so that a data-parallel wrapper takes part."""
        ...


@dataclass
class TrainingState:
    """All that changes while training, and so all that a checkpoint holds.

    `model` may be wrapped (data parallel, compiled). `step` counts finished steps. The rows and
    tokens seen are those of all ranks; `num_tokens_seen` becomes a 0-d tensor on an accelerator,
    so that counting never waits for it: `int()` reads both forms.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: int = 0
    num_rows_seen: int = 0
    num_tokens_seen: int | Tensor = 0


@dataclass(frozen=True)
class StepResult:
    """What one step did, over all ranks; tensors stay on the device until somebody reads them.

    `step` is the number of finished steps, this one included. `sums` is [6] float64 in the order
    of `SUM_NAMES`; `gradient_norm` (before clipping), `num_real_tokens` and `num_slots` are 0-d.
    `stopped` says that this is the last result because some rank asked to stop.
    """

    step: int
    sums: Tensor
    gradient_norm: Tensor
    learning_rate: float
    num_real_tokens: Tensor
    num_slots: Tensor
    stopped: bool


class NonFiniteLossError(UserError):
    """The loss or the gradient norm of `step` was infinite or not a number."""

    def __init__(self, step: int, loss: float, gradient_norm: float) -> None:
        super().__init__(
            "training stopped on a number that is not finite",
            f"step {step}: loss sum {loss}, gradient norm {gradient_norm}",
            "lower the peak learning rate or lengthen the warm-up; the last checkpoint is intact",
        )
        self.step, self.loss, self.gradient_norm = step, loss, gradient_norm

    def __reduce__(self) -> tuple[type["NonFiniteLossError"], tuple[int, float, float]]:  # pyright: ignore[reportIncompatibleMethodOverride] - rebuilt from its own three parts
        """Lets the error cross process borders."""
        return type(self), (self.step, self.loss, self.gradient_norm)


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
    readings = _Readings(late=device.type != "cpu")
    while state.step < total_steps:
        batches = next(steps, None)
        if batches is None:
            raise RuntimeError(f"the data ended after step {state.step} of {total_steps}")
        if not batches.micro_batches:
            raise ValueError(f"rank {_rank()} has no micro-batch in step {state.step + 1}")
        state.model.train()  # here, because the consumer may have evaluated
        state.optimizer.zero_grad(set_to_none=True)
        totals = _accumulate_gradients(
            state, batches, compute_loss, device=device, autocast_dtype=autocast_dtype, seed=seed
        )
        totals[_STOP] = float(should_stop is not None and should_stop())
        if _world_size() > 1:
            dist.all_reduce(totals)
        gradient_norm = nn.utils.clip_grad_norm_(state.model.parameters(), max_gradient_norm)
        number = state.step + 1
        stopped = readings.take(number, totals, gradient_norm, last=number == total_steps)

        learning_rate = schedule(state.step)
        for group in state.optimizer.param_groups:
            group["lr"] = learning_rate
        state.optimizer.step()
        state.step = number
        state.num_rows_seen += batches.num_rows
        seen = state.num_tokens_seen + totals[NUM_SUMS]
        state.num_tokens_seen = int(seen) if device.type == "cpu" else seen
        yield StepResult(
            step=number,
            sums=totals[:NUM_SUMS],
            gradient_norm=gradient_norm,
            learning_rate=learning_rate,
            num_real_tokens=totals[NUM_SUMS],
            num_slots=totals[NUM_SUMS + 1],
            stopped=stopped,
        )
        if stopped:
            return


def _accumulate_gradients(
    state: TrainingState,
    batches: StepBatches,
    compute_loss: ComputeLoss,
    *,
    device: torch.device,
    autocast_dtype: torch.dtype | None,
    seed: int,
) -> Tensor:
    """This rank's gradients into `.grad`; its totals [6 sums, real tokens, slots, 0] float64."""
    totals = torch.zeros(_STOP + 1, dtype=torch.float64, device=device)
    last = len(batches.micro_batches) - 1
    for index, micro_batch in enumerate(batches.micro_batches):
        torch.manual_seed(_dropout_seed(seed, state.step, _rank(), index))
        with _gradient_sync(state.model, wanted=index == last):
            with _autocast(device, autocast_dtype):
                loss, sums = compute_loss(
                    state.model,
                    micro_batch.to(device, non_blocking=True),
                    num_predictions=batches.num_predictions,
                    num_rows=batches.num_rows,
                )
            (loss * _world_size()).backward()
        totals[:NUM_SUMS] += sums
    totals[NUM_SUMS] = sum(batch.num_real_tokens for batch in batches.micro_batches)
    totals[NUM_SUMS + 1] = sum(batch.num_slots for batch in batches.micro_batches)
    return totals


class _Readings:
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
            raise NonFiniteLossError(step, float(values[0] + values[3]), float(values[-1]))
        return bool(values[_STOP] > 0)


def _copy_to_host(values: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """A host copy, and on CUDA the event after which it may be read."""
    if values.device.type != "cuda":
        return values.cpu(), None
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()
    return host, copied


def _dropout_seed(seed: int, step: int, rank: int, micro_batch: int) -> int:
    """A 63-bit hash: neighbouring steps and ranks get unrelated streams."""
    text = f"dropout {seed} {step} {rank} {micro_batch}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def _gradient_sync(model: nn.Module, *, wanted: bool) -> AbstractContextManager[object]:
    """Keeps a data-parallel model from exchanging gradients before the last micro-batch."""
    no_sync = getattr(model, "no_sync", nullcontext)  # a plain module has nothing to hold back
    return nullcontext() if wanted else no_sync()


def _autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def _world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
