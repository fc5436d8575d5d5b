"""A loss in JAX and an update go in; the program of a whole step on all devices comes out.

Legend: M micro-batches; D devices, those of all processes; the axis of the mesh is `data`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bert_core.pretraining import SUM_NAMES

if TYPE_CHECKING:
    import jax
    import optax
    from jax.sharding import Mesh, NamedSharding

    from bert_core.training.xla.forward import LossInJax

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
