"""Compiles a loss in JAX and an optimizer's update into the program of a whole step on all devices.

Also compiles programs once per shape, in parts where a device lacks memory: a TPU's compiler knows
what a program takes before anything runs.
Legend: M micro-batches; D devices, those of all processes; the axis of the mesh is `data`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from bert_core.pretraining import SUM_NAMES
from bert_core.training.checkpoint import load_moments, moments_by_name
from bert_core.training.optimization import Lamb

if TYPE_CHECKING:
    import jax
    import optax
    from jax.sharding import Mesh, NamedSharding

    from bert_core.training.xla.forward import LossInJax


def transformation(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> "optax.GradientTransformation":
    """What makes an update of the gradients, by parameter name, at a learning rate of 1.

    Groups, betas, epsilon and weight decay are those of `optimizer`, AdamW or `Lamb`. Raises
    `TypeError` for another and `ValueError` for groups that differ in more than weight decay.
    """
    import optax

    if not isinstance(optimizer, torch.optim.AdamW | Lamb):
        raise TypeError(f"no update in optax for {type(optimizer).__name__}")
    (beta1, beta2), epsilon = _shared(optimizer, "betas"), _shared(optimizer, "eps")
    decays = {group["weight_decay"] for group in optimizer.param_groups} - {0.0}
    if len(decays) > 1:
        raise ValueError(f"several weight decays: {sorted(decays)}")
    names = {parameter: name for name, parameter in model.named_parameters()}
    decayed = {
        names[parameter]: group["weight_decay"] != 0
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    parts = [
        optax.scale_by_adam(beta1, beta2, epsilon),
        optax.add_decayed_weights(decays.pop() if decays else 0.0, mask=decayed),
    ]
    if isinstance(optimizer, Lamb):
        parts.append(optax.masked(optax.scale_by_trust_ratio(), decayed))
    return optax.chain(*parts)


def with_moments(fresh: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:  # noqa: ANN401
    """The fresh state of `transformation`, numbers of the host, with torch's moments in it.

    Raises `ValueError` where parameters have made different numbers of steps.
    """
    moments = moments_by_name(model, optimizer)
    if not moments:
        return fresh
    adam = fresh[0]
    steps = {int(value) for name, value in moments.items() if name.endswith(".step")}
    if len(moments) != 3 * len(adam.mu) or len(steps) != 1:
        raise ValueError("parameters have made different numbers of steps")
    return (
        adam._replace(
            count=np.int32(steps.pop()),
            mu={name: moments[f"{name}.exp_avg"].numpy() for name in adam.mu},
            nu={name: moments[f"{name}.exp_avg_sq"].numpy() for name in adam.nu},
        ),
        *fresh[1:],
    )


def bring_back(
    weights: Mapping[str, Any],
    moments: Any,  # noqa: ANN401
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Copies weights and moments, arrays of JAX, into a torch model and its optimizer."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in weights.items():
            parameters[name].copy_(_tensor(weight))
    adam = moments[0]
    if count := int(adam.count):
        found = {f"{name}.step": torch.tensor(float(count)) for name in weights}
        found |= {f"{name}.exp_avg": _tensor(value) for name, value in adam.mu.items()}
        found |= {f"{name}.exp_avg_sq": _tensor(value) for name, value in adam.nu.items()}
        load_moments(model, optimizer, found)


def _tensor(array: Any) -> torch.Tensor:  # noqa: ANN401
    """A copy on the CPU, of what this process holds of the array: all of it."""
    return torch.from_numpy(np.array(array))


def _shared(optimizer: torch.optim.Optimizer, name: str) -> Any:  # noqa: ANN401
    values = [group[name] for group in optimizer.param_groups]
    if any(value != values[0] for value in values):
        raise ValueError(f"groups of different {name}: {values}")
    return values[0]


class Programs:
    """What has been compiled so far.

    With `in_float32` a TPU is kept from rounding the factors of float32 products to bfloat16.
    """

    def __init__(self, *, in_float32: bool) -> None:
        self._in_float32 = in_float32
        self._compiled: dict[tuple[Any, ...], Any] = {}
        self._parts: dict[tuple[int, ...], int] = {}

    def __len__(self) -> int:
        return len(self._compiled)

    def of(self, kind: str, function: Any, *arguments: Any) -> Any:  # noqa: ANN401
        """The function compiled for arguments of these shapes, once."""
        import jax

        shapes = kind, *(each.shape for each in jax.tree.leaves(arguments))
        if shapes not in self._compiled:
            with _products_in_float32(wanted=self._in_float32):
                self._compiled[shapes] = function.lower(*arguments).compile()
        return self._compiled[shapes]

    def with_room(
        self,
        kind: str,
        function: Any,  # noqa: ANN401
        given: Callable[[int], tuple[Any, ...]],
        *,
        shape: tuple[int, ...],
        rows: int,
    ) -> tuple[Any, tuple[Any, ...], int]:
        """A program, its arguments and the number of parts: the fewest that devices have room for.

        `given` makes the arguments of a number of parts, of which each has as many of a device's
        `rows` in a micro-batch. What was found is kept for the next arguments of this `shape`.
        Processes with the same devices find the same. Raises JAX's error where one row at a time
        is too much.
        """
        import jax

        while True:
            parts = self._parts.get(shape, 1)
            arguments = given(parts)
            try:
                return self.of(kind, function, *arguments), arguments, parts
            except jax.errors.JaxRuntimeError as error:
                more = more_parts(rows, parts)
                if more is None or not lacks_memory(error):
                    raise
                self._parts[shape] = more


def more_parts(rows: int, parts: int) -> int | None:
    """The next larger number of equal parts of so many rows; None where each has one row."""
    return next((each for each in range(parts + 1, rows + 1) if rows % each == 0), None)


def lacks_memory(error: Exception) -> bool:
    """Whether an error of JAX's says that a device has no room."""
    return "RESOURCE_EXHAUSTED" in str(error)


def _products_in_float32(*, wanted: bool) -> AbstractContextManager[object]:
    import jax

    return jax.default_matmul_precision("float32") if wanted else nullcontext()


AXIS = "data"


def mesh_of(devices: Sequence[Any]) -> "Mesh":
    """The devices of JAX in a row, those of a process side by side."""
    import numpy as np
    from jax.sharding import Mesh

    in_order = sorted(devices, key=lambda each: (each.process_index, each.id))
    return Mesh(np.array(in_order), (AXIS,))


def shardings(mesh: "Mesh") -> tuple["NamedSharding", "NamedSharding", "NamedSharding"]:
    """Where arrays are: whole on each device; divided by their first dimension; by their second."""
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    return (
        NamedSharding(mesh, P()),
        NamedSharding(mesh, P(AXIS)),
        NamedSharding(mesh, P(None, AXIS)),
    )


def training_step(
    loss: "LossInJax",
    update: "optax.GradientTransformation",
    mesh: "Mesh",
    max_gradient_norm: float,
) -> Callable[..., Any]:
    """`step(weights, moments, fixed, batch, counts, tallies, rate, draw)`, jitted.

    Gives new weights and moments and the numbers of the step: `loss`, `sums`, `gradient_norm`
    before clipping, `tallies`. `batch` is [M, rows, …], divided by rows: every device adds up the
    gradients of its rows by itself, and they meet once a step. `counts` are those of the global
    batch, so that the sum over devices is the loss. `tallies` int32 [D, 3] are of each device; they
    come back added up. `fixed` are buffers, and parameters that are not trained. `draw` is the
    data of a random key, uint32 [4].
    """
    import jax
    import optax
    from jax import numpy as jnp
    from jax.sharding import PartitionSpec as P

    def gradients(weights: Any, fixed: Any, batch: Any, counts: Any, draw: Any) -> Any:  # noqa: ANN401
        key = jax.random.fold_in(_key(draw), jax.lax.axis_index(AXIS))

        def loss_of(weights: Any, micro_batch: Any, key: Any) -> Any:  # noqa: ANN401
            return loss({**fixed, **weights}, micro_batch, counts, key)

        def add(total: Any, given: Any) -> Any:  # noqa: ANN401
            found = jax.value_and_grad(loss_of, has_aux=True)(weights, *given)
            return jax.tree.map(jnp.add, total, found), None

        num_micro_batches = len(batch["input_ids"])
        nothing = (jnp.zeros(()), jnp.zeros(len(SUM_NAMES))), jax.tree.map(jnp.zeros_like, weights)
        given = batch, jax.random.split(key, num_micro_batches)
        return jax.lax.psum(jax.lax.scan(add, nothing, given)[0], AXIS)

    on_all_devices = jax.shard_map(
        gradients,
        mesh=mesh,
        in_specs=(P(), P(), P(None, AXIS), P(), P()),
        out_specs=P(),
        check_vma=False,  # with it, JAX would add up the gradients after each micro-batch
    )

    def step(
        weights: Any,  # noqa: ANN401
        moments: Any,  # noqa: ANN401
        fixed: Any,  # noqa: ANN401
        batch: Any,  # noqa: ANN401
        counts: Any,  # noqa: ANN401
        tallies: Any,  # noqa: ANN401
        rate: Any,  # noqa: ANN401
        draw: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        (found, sums), summed = on_all_devices(weights, fixed, batch, counts, draw)
        norm = optax.global_norm(summed)
        scale = jnp.minimum(1.0, max_gradient_norm / (norm + 1e-6))  # as torch clips
        clipped = jax.tree.map(lambda each: each * scale, summed)
        updates, moments = update.update(clipped, moments, weights)
        weights = jax.tree.map(lambda weight, change: weight - rate * change, weights, updates)
        numbers = {"loss": found, "sums": sums, "gradient_norm": norm, "tallies": tallies.sum(0)}
        return weights, moments, numbers

    whole, _, _ = shardings(mesh)
    return jax.jit(step, donate_argnums=(0, 1), out_shardings=whole)


def evaluation(loss: "LossInJax", mesh: "Mesh") -> Callable[..., Any]:
    """`evaluate(weights, batch, counts)`, jitted: the loss and its sums, `batch` [rows, …]."""
    import jax
    from jax import numpy as jnp
    from jax.sharding import PartitionSpec as P

    def share(weights: Any, batch: Any, counts: Any) -> Any:  # noqa: ANN401
        key = _key(jnp.zeros(4, jnp.uint32))  # nothing is dropped
        return jax.lax.psum(loss(weights, batch, counts, key), AXIS)

    specs = P(), P(AXIS), P()
    divided = jax.shard_map(share, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
    return jax.jit(divided)


def _key(draw: "jax.Array") -> "jax.Array":
    """A key of the generator that costs least on a TPU."""
    import jax

    return jax.random.wrap_key_data(draw, impl="rbg")
