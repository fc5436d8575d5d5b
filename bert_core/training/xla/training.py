"""Trains through XLA: compiled steps run on all devices of JAX and yield `StepResult`s.

`XlaTraining.train` has the contract of `train` of `bert_core.training.loop`; the weights stay on
the devices between steps. JAX is the extra `tpu`, loaded within functions alone: importing it takes
the TPU of its host. Legend: M micro-batches, N rows of n slots, K places for predictions of a row.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bert_core.config import IGNORE_INDEX
from bert_core.errors import UserError
from bert_core.model.layout import Padded
from bert_core.text.batches import StepBatches
from bert_core.text.collation import PretrainingBatch
from bert_core.training.loop import ComputeLoss, NonFiniteLossError, StepResult, TrainingState
from bert_core.training.xla.forward import loss_in_jax
from bert_core.training.xla.program import (
    Programs,
    bring_back,
    evaluation,
    mesh_of,
    shardings,
    training_step,
    transformation,
    with_moments,
)

if TYPE_CHECKING:
    import jax
    from jax.sharding import NamedSharding

Arrays = dict[str, npt.NDArray[np.generic]]


def stacked(micro_batches: Sequence[PretrainingBatch], *, count: int, rows_multiple: int) -> Arrays:
    """`arrays_of` of each, with a first dimension of `count`; those that lack carry no label.

    Raises `ValueError` where there are more.
    """
    made = [arrays_of(batch, rows_multiple=rows_multiple) for batch in micro_batches]
    if len(made) > count:
        raise ValueError(f"{len(made)} micro-batches where {count} were to be expected")
    empty = {name: np.full_like(array, _FILL.get(name, 0)) for name, array in made[0].items()}
    made += [empty] * (count - len(made))
    return {name: np.stack([arrays[name] for arrays in made]) for name in empty}


def in_parts(arrays: Arrays, parts: int) -> Arrays:
    """What `stacked` gives, each micro-batch as so many of fewer rows, which must divide its rows.

    [M, N, …] becomes [M * parts, N / parts, …].
    """
    return {
        name: array.reshape(len(array) * parts, array.shape[1] // parts, *array.shape[2:])
        for name, array in arrays.items()
    }


def arrays_of(batch: PretrainingBatch, *, rows_multiple: int) -> Arrays:
    """The rows of a micro-batch, filled up to a multiple of so many by rows without tokens.

    `input_ids` and `token_type_ids` are int32 [N, n], `mask` bool [N, n], `next_sentence` int32
    [N]; `masked_places`, a place within its row, and `masked_ids` are int32 [N, K]: predictions
    stand with their row, so that no device needs what another one holds. The labels and what is
    hidden stay as they are.

    Raises `UserError` for packed rows and `ValueError` for shapes that are not static.
    """
    if not isinstance(batch.layout, Padded):
        raise UserError(
            "XLA trains on rows of one shape", "batch.packed=true", "set --batch.packed false"
        )
    num_rows, length = batch.layout.mask.shape
    places, ids = _by_row(batch, num_rows, length)
    arrays = {
        "input_ids": batch.input_ids.numpy().reshape(num_rows, length),
        "token_type_ids": batch.token_type_ids.numpy().reshape(num_rows, length),
        "mask": batch.layout.mask.numpy(),
        "masked_places": places,
        "masked_ids": ids,
        "next_sentence": batch.next_sentence.numpy(),
    }
    missing = -num_rows % rows_multiple
    return {name: _filled_up(name, array, missing) for name, array in arrays.items()}


def _by_row(
    batch: PretrainingBatch, num_rows: int, length: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Places within rows and labels, both [N, K], the order within a row as it is."""
    positions, labels = batch.masked_positions.numpy(), batch.masked_ids.numpy()
    width, left = divmod(len(positions), num_rows)
    used = labels != IGNORE_INDEX
    row, place = np.divmod(positions[used], length)
    by_row = np.argsort(row, kind="stable")
    counts = np.bincount(row, minlength=num_rows)
    if left or counts.max(initial=0) > width:
        raise ValueError(f"{len(positions)} places for predictions in {num_rows} rows")
    within = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.zeros((num_rows, width), dtype=np.int64)
    ids = np.full((num_rows, width), IGNORE_INDEX, dtype=np.int64)
    places[row[by_row], within] = place[by_row]
    ids[row[by_row], within] = labels[used][by_row]
    return places, ids


_FILL = {"masked_ids": IGNORE_INDEX, "next_sentence": IGNORE_INDEX}


def _filled_up(name: str, rows: npt.NDArray[np.generic], missing: int) -> npt.NDArray[np.generic]:
    width = [(0, missing)] + [(0, 0)] * (rows.ndim - 1)
    filled = np.pad(rows, width, constant_values=_FILL.get(name, 0))
    return filled if filled.dtype == np.bool_ else filled.astype(np.int32)


class Numbers:
    """What one step found, on its way to the host since its program was started."""

    def __init__(self, step: int, arrays: dict[str, "jax.Array"]) -> None:
        self.step = step
        self._arrays = arrays
        for array in arrays.values():
            array.copy_to_host_async()

    @cached_property
    def on_host(self) -> dict[str, Tensor]:
        """`loss`, `gradient_norm` 0-d and `sums` [S] in float64; `tallies` int64 [3]."""
        read = {name: torch.from_numpy(np.array(array)) for name, array in self._arrays.items()}
        self._arrays = {}
        return {
            name: array.long() if name == "tallies" else array.double()
            for name, array in read.items()
        }

    def check(self) -> None:
        """Waits for the step; raises `NonFiniteLossError` where a number is not finite."""
        numbers = self.on_host
        if not all(bool(number.isfinite().all()) for number in numbers.values()):
            raise NonFiniteLossError(
                self.step, float(numbers["loss"]), float(numbers["gradient_norm"])
            )

    @property
    def num_real_tokens(self) -> Tensor:
        """Of all processes, 0-d."""
        return self.on_host["tallies"][0]

    @property
    def num_slots(self) -> Tensor:
        """Of all processes, 0-d."""
        return self.on_host["tallies"][1]

    @property
    def stop(self) -> bool:
        """Whether some process asked to stop."""
        return bool(self.on_host["tallies"][2] > 0)


class LateStepResult(StepResult):
    """A `StepResult` whose tensors are on the CPU, and read when they are asked for."""

    def __init__(
        self, numbers: Numbers, *, learning_rate: float, sum_of_squared_lengths: int, stopped: bool
    ) -> None:
        known = {
            "_numbers": numbers,
            "step": numbers.step,
            "learning_rate": learning_rate,
            "sum_of_squared_lengths": sum_of_squared_lengths,
            "stopped": stopped,
        }
        for name, value in known.items():
            object.__setattr__(self, name, value)  # it is frozen

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """The tensors, which `__init__` has not set."""
        if name in ("loss", "sums", "gradient_norm"):
            return self._numbers.on_host[name]
        if name in ("num_real_tokens", "num_slots"):
            return getattr(self._numbers, name)
        raise AttributeError(name)


_Array = npt.NDArray[np.generic]


class XlaTraining:
    """A `TrainingState` that trains on every device JAX knows, those of all processes together.

    `state` has its model and optimizer (AdamW or LAMB) on the CPU, the same in every process, where
    `jax.distributed` has been initialised if there are several. From here on the weights and
    moments on the devices are the true ones; `current_state` brings them back. `state.step` and
    `state.num_rows_seen` are kept up to date; the tokens seen are by `current_state`.

    Matrix products are in `compute_dtype`, float32 where it is None, on TPU too; weights, moments,
    sums and what `torch.autocast` computes in float32 stay float32.

    A micro-batch for which the devices have no room is computed in equal parts, as few as will do:
    sums are taken in another order, and other places dropped.
    """

    def __init__(
        self,
        state: TrainingState,
        compute_loss: ComputeLoss,
        *,
        max_gradient_norm: float,
        compute_dtype: torch.dtype | None,
        seed: int,
    ) -> None:
        import jax

        self._state = state
        self._seed = seed
        self._pending: Numbers | None = None
        self._stop = False
        self._programs = Programs(in_float32=compute_dtype is None)
        self._num_parts = 1
        mesh, local_mesh = mesh_of(jax.devices()), mesh_of(jax.local_devices())
        self._whole, self._by_device, self._by_row = shardings(mesh)
        self._whole_here, self._by_row_here, _ = shardings(local_mesh)
        self._update = transformation(state.model, state.optimizer)
        self._put_on_devices()

        def loss(training: bool) -> Any:  # noqa: ANN401
            return loss_in_jax(state.model, compute_loss, compute_dtype, training=training)

        self._step = training_step(loss(True), self._update, mesh, max_gradient_norm)
        self._evaluate = evaluation(loss(False), local_mesh)

    def train(
        self,
        steps: Iterator[StepBatches],
        *,
        total_steps: int,
        schedule: Callable[[int], float],
        should_stop: Callable[[], bool] | None = None,
    ) -> Iterator[StepResult]:
        """Trains until `state.step` is `total_steps` or any process's `should_stop` says so.

        A generator. Contract: every process consumes it alike; `steps` starts at the global batch
        `state.step` and gives this process's share (`rank` is `jax.process_index()`, `world_size`
        `jax.process_count()`) in the padded layout with static shapes. What a `StepResult` holds
        is brought to the host when it is read, so unread results keep the devices busy.

        Dropout is drawn from (seed, step, device, micro-batch), so a resumed run repeats one
        that was not stopped; other numbers of devices drop other places.

        Numbers are looked at one step late, the last at once: `NonFiniteLossError` and the stop
        flag come then, as in `train` on an accelerator. Raises `ValueError` for shapes that are not
        static, `UserError` for packed rows and `RuntimeError` when `steps` ends early.
        """
        state, self._stop = self._state, False
        while state.step < total_steps:
            batches = next(steps, None)
            if batches is None:
                raise RuntimeError(f"the data ended after step {state.step}")
            rate = schedule(state.step)
            numbers = self._start(batches, rate, stop=should_stop is not None and should_stop())
            state.step += 1
            state.num_rows_seen += batches.num_rows
            self._settle()
            self._pending = numbers
            if state.step == total_steps:
                self._settle()
            stopped = self._stop
            yield LateStepResult(
                numbers,
                learning_rate=rate,
                sum_of_squared_lengths=batches.sum_of_squared_lengths,
                stopped=stopped,
            )
            if stopped:
                return

    def current_state(self) -> TrainingState:
        """The state with the weights and moments of the last step, the same in every process.

        Waits for the devices and copies; nothing is exchanged between processes, so one of them
        may call it alone before `save_checkpoint`. Raises `NonFiniteLossError`.
        """
        self._settle()
        bring_back(self._weights, self._moments, self._state.model, self._state.optimizer)
        return self._state

    def evaluation_loss(
        self, model: nn.Module, batch: PretrainingBatch, **counts: int
    ) -> tuple[Tensor, Tensor]:
        """`compute_loss` of the weights as they are, for `evaluate_pretraining`; on the CPU again.

        It is a program of its own, without dropout, on this process's devices alone: processes may
        have unequal numbers of batches. `model` must be that of the state; its own weights are
        not read. Call it with `autocast_dtype=None`.
        """
        import jax

        if model is not self._state.model:
            raise ValueError("the model is another than the one that trains")
        weights = jax.tree.map(self._here, {**self._fixed, **self._weights})
        arrays = arrays_of(batch, rows_multiple=jax.local_device_count())
        given = _put(arrays, self._by_row_here), _put(_scalars(counts), self._whole_here)
        program = self._programs.of("evaluation", self._evaluate, weights, *given)
        loss, sums = program(weights, *given)
        return torch.tensor(float(loss)), torch.from_numpy(np.array(sums))

    @property
    def num_compilations(self) -> int:
        """Programs compiled so far: one for each shape of a global batch and of an evaluation."""
        return len(self._programs)

    @property
    def num_parts(self) -> int:
        """The parts in which a device computed its rows of a micro-batch in the newest step."""
        return self._num_parts

    def _put_on_devices(self) -> None:
        """Copies weights, buffers and moments: torch and JAX must never share memory."""
        import jax

        model = self._state.model
        trained, fixed = {}, dict(model.named_buffers())
        for name, parameter in model.named_parameters():
            (trained if parameter.requires_grad else fixed)[name] = parameter.detach()
        weights = {name: tensor.numpy() for name, tensor in trained.items()}
        fresh = jax.tree.map(
            lambda leaf: np.zeros(leaf.shape, leaf.dtype),
            jax.eval_shape(self._update.init, weights),
        )
        moments = with_moments(fresh, model, self._state.optimizer)
        self._weights, self._moments = _put(weights, self._whole), _put(moments, self._whole)
        self._fixed = _put({name: tensor.numpy() for name, tensor in fixed.items()}, self._whole)

    def _start(self, batches: StepBatches, rate: float, *, stop: bool) -> Numbers:
        """Sends a step on its way to the devices; returns at once when its program is there."""
        import jax

        arrays = self._arrays(batches)

        def given(parts: int) -> tuple[Any, ...]:
            return (
                self._weights,
                self._moments,
                self._fixed,
                _put(in_parts(arrays, parts), self._by_row),
                _put(_scalars(batches.counts), self._whole),
                _put(_tallies(batches, stop), self._by_device),
                _put(np.float32(rate), self._whole),
                _put(_draw(self._seed, self._state.step), self._whole),
            )

        shape = arrays["input_ids"].shape
        rows = shape[1] // jax.local_device_count()
        program, arguments, self._num_parts = self._programs.with_room(
            "step", self._step, given, shape=shape, rows=rows
        )
        self._weights, self._moments, numbers = program(*arguments)
        return Numbers(self._state.step + 1, numbers)

    def _arrays(self, batches: StepBatches) -> dict[str, _Array]:
        """This process's micro-batches, as many as any process has."""
        import jax

        if not batches.micro_batches:
            raise ValueError(f"no micro-batch in step {self._state.step + 1}")
        share = -(-batches.num_rows // jax.process_count())  # rows are dealt out like cards
        count = -(-share // len(batches.micro_batches[0].next_sentence))
        return stacked(batches.micro_batches, count=count, rows_multiple=jax.local_device_count())

    def _here(self, array: Any) -> Any:  # noqa: ANN401
        """What this process's devices hold of an array that is whole on each; no copy."""
        import jax

        parts = [shard.data for shard in array.addressable_shards]
        return jax.make_array_from_single_device_arrays(array.shape, self._whole_here, parts)

    def _settle(self) -> None:
        """Looks at the numbers of the step that nobody has looked at.

        A wish to stop that is found here counts in the next step, as in the processes that look
        only then.
        """
        numbers, self._pending = self._pending, None
        if numbers is not None:
            numbers.check()
            self._state.num_tokens_seen += int(numbers.num_real_tokens)
            self._stop = self._stop or numbers.stop


def _put(arrays: Any, sharding: "NamedSharding") -> Any:  # noqa: ANN401
    """Copies of this process's arrays, or of its parts of them, on the devices."""
    import jax

    def put(array: _Array) -> Any:  # noqa: ANN401
        return jax.make_array_from_process_local_data(sharding, np.array(array))

    return jax.tree.map(put, arrays)


def _scalars(counts: Mapping[str, int]) -> dict[str, _Array]:
    return {name: np.array(count, np.int32) for name, count in counts.items()}


def _tallies(batches: StepBatches, stop: bool) -> _Array:
    """Real tokens, slots, the wish to stop: on this process's first device, 0 on its others."""
    import jax

    tallies = np.zeros((jax.local_device_count(), 3), np.int32)
    tallies[0, 0] = sum(batch.num_real_tokens for batch in batches.micro_batches)
    tallies[0, 1] = sum(batch.num_slots for batch in batches.micro_batches)
    tallies[0, 2] = stop
    return tallies


def _draw(seed: int, step: int) -> _Array:
    """The data of a step's random key: neighbouring steps get unrelated ones."""
    text = f"dropout {seed} {step}".encode()
    return np.frombuffer(hashlib.blake2b(text, digest_size=16).digest(), np.uint32)
