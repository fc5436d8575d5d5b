"""The parts of a step through XLA beside torch's, in the process that `xla_runs` sets up.

JAX is loaded within functions: the tests import this module too, and know only its names.
"""

import numpy as np
import torch
import torch.nn.functional as F
from xla_runs import distance, moment_distance, new_state, source

from bert_core.pretraining import compute_loss
from bert_core.settings import OptimizerSettings
from bert_core.training.loop import TrainingState
from bert_core.training.optimization import create_optimizer
from bert_core.training.xla.forward import attention, loss_in_jax
from bert_core.training.xla.program import (
    bring_back,
    mesh_of,
    shardings,
    training_step,
    transformation,
    with_moments,
)
from bert_core.training.xla.training import arrays_of, stacked


def one_micro_batch(dtype):
    """A loss in JAX, its weights, and a micro-batch with its counts and a key."""
    import jax
    import jax.numpy as jnp

    state = new_state(dropout=0.1, num_layers=2)
    loss = loss_in_jax(state.model, compute_loss, dtype, training=True)
    step = source().step(0)
    weights = {
        name: jnp.array(each.detach().numpy()) for name, each in state.model.named_parameters()
    }
    batch = in_jax(arrays_of(step.micro_batches[0], rows_multiple=1))
    counts = {name: jnp.int32(count) for name, count in step.counts.items()}
    return loss, weights, batch, counts, jax.random.key(0)


def kinds_of_products(dtype):
    """The types of the operands of all products, forward and backward, and those of gradients."""
    import jax

    loss, *given = one_micro_batch(dtype)
    both = jax.value_and_grad(loss, has_aux=True)
    traced, shapes = jax.make_jaxpr(both, return_shape=True)(*given)
    kinds = [[str(each.aval.dtype) for each in found.invars] for found in products_in(traced.jaxpr)]
    return kinds, {str(each.dtype) for each in jax.tree.leaves(shapes)}


def products_in(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation
        for value in equation.params.values():
            inside = getattr(value, "jaxpr", value)
            if hasattr(inside, "eqns"):
                yield from products_in(inside)


def in_jax(arrays):
    import jax.numpy as jnp

    return {name: jnp.array(each) for name, each in arrays.items()}


def updated(name, with_decay=True):
    """Weights and moments after three updates by torch and by optax, the third after a transfer."""
    import jax
    import optax

    def new():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.LayerNorm(7))
        decay = {"weight_decay": 0.1 if with_decay else 0.0}
        settings = OptimizerSettings(name=name, peak_learning_rate=1e-2, **decay)
        return TrainingState(model, create_optimizer(model, settings))

    def gradients(step):
        generator = torch.Generator().manual_seed(step)
        return {
            n: torch.randn(p.shape, generator=generator) for n, p in new().model.named_parameters()
        }

    def by_torch(state, step):
        for name, parameter in state.model.named_parameters():
            parameter.grad = gradients(step)[name]
        state.optimizer.step()

    def by_optax(state, steps):
        update = transformation(state.model, state.optimizer)
        weights = {n: p.detach().numpy().copy() for n, p in state.model.named_parameters()}
        moments = with_moments(update.init(weights), state.model, state.optimizer)
        for step in steps:
            given = {n: each.numpy() for n, each in gradients(step).items()}
            changes, moments = update.update(given, moments, weights)
            weights = optax.apply_updates(weights, jax.tree.map(lambda each: -1e-2 * each, changes))
        bring_back(jax.tree.map(np.asarray, weights), moments, state.model, state.optimizer)

    first, second = new(), new()
    for step in range(3):
        by_torch(first, step)
    by_torch(second, 0)
    by_optax(second, [1])
    by_torch(second, 2)
    return distance(first, second), moment_distance(first, second)


def attended(causal, dropout=0.0):
    """Mixed values and the gradient of queries, by torch and by JAX."""
    import jax
    import jax.numpy as jnp

    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(2, 3, 5, 4, generator=generator, requires_grad=True) for _ in range(3)]
    keys = None if causal else torch.tensor([[True] * 5, [True] * 2 + [False] * 3])[:, None, None]
    mixed = F.scaled_dot_product_attention(*given, keys, 0.0, causal)
    mixed.sin().sum().backward()

    def total(*arrays):
        there = None if keys is None else jnp.array(keys.numpy())
        options = {"causal": causal, "dropout": dropout, "draw": jax.random.key(0)}
        found = attention(*arrays, there, **options)
        return jnp.sin(found).sum(), found

    arrays = [jnp.array(each.detach().numpy()) for each in given]
    found, ours = jax.grad(total, argnums=(0, 1, 2), has_aux=True)(*arrays)
    expected = [each.grad.numpy() for each in given]
    return mixed.detach().numpy(), np_of(ours), expected, [np_of(each) for each in found]


def np_of(array):
    return np.array(array)


def exchanged(num_devices, micro_batch, dropout=0.0):
    """Loss and gradient norm of a step on so many devices, and where its program exchanges what.

    With dropout each device has the same row, once.
    """
    import jax
    import jax.numpy as jnp

    state = new_state(dropout=dropout)
    mesh = mesh_of(jax.devices()[:num_devices])
    whole, by_first, by_second = shardings(mesh)
    update = transformation(state.model, state.optimizer)
    loss = loss_in_jax(state.model, compute_loss, None, training=True)
    step = training_step(loss, update, mesh, 1.0)
    weights = {n: each.detach().numpy().copy() for n, each in state.model.named_parameters()}
    batches = source(micro_batch).step(0)
    batch = stacked(
        batches.micro_batches, count=len(batches.micro_batches), rows_multiple=num_devices
    )
    if dropout:
        batch = {name: np.repeat(each[:1, :1], num_devices, axis=1) for name, each in batch.items()}
    given = [
        jax.device_put(weights, whole),
        jax.device_put(update.init(weights), whole),
        {},
        jax.device_put(batch, by_second),
        jax.device_put({name: jnp.int32(count) for name, count in batches.counts.items()}, whole),
        jax.device_put(np.ones((num_devices, 3), np.int32), by_first),
        jax.device_put(np.float32(1e-3), whole),
        jax.device_put(np.zeros(4, np.uint32), whole),
    ]
    program = step.lower(*given).compile()
    numbers = program(*given)[2]
    exchanges = [line for line in program.as_text().splitlines() if " all-reduce(" in line]
    return (float(numbers["loss"]), float(numbers["gradient_norm"])), exchanges


def attention_dropped(dropout):
    """The share of probabilities that is kept, and their mean sum, where all were the same."""
    import jax
    import jax.numpy as jnp

    flat = jnp.zeros((8, 4, 32, 32))
    one = jnp.broadcast_to(jnp.eye(32), flat.shape)  # values that show the probabilities
    options = {"causal": False, "dropout": dropout, "draw": jax.random.key(0)}
    chances = attention(flat, flat, one, None, **options)
    return float((chances > 0).mean()), float(chances.sum(-1).mean())


def refused_optimizers():
    """What is said of optimizers that have no counterpart."""
    model = torch.nn.Linear(2, 2)
    weight, bias = model.parameters()

    def adamw(of_weight, of_bias):
        return torch.optim.AdamW([{"params": [weight]} | of_weight, {"params": [bias]} | of_bias])

    uneven = torch.optim.AdamW(model.parameters())
    weight.grad = torch.ones_like(weight)
    uneven.step()
    said = []
    for optimizer in (
        torch.optim.SGD(model.parameters()),
        adamw({"weight_decay": 0.1}, {"weight_decay": 0.2}),
        adamw({"betas": (0.9, 0.999)}, {"betas": (0.8, 0.999)}),
        uneven,
    ):
        try:
            update = transformation(model, optimizer)
            fresh = update.init({n: each.detach().numpy() for n, each in model.named_parameters()})
            with_moments(fresh, model, optimizer)
        except (TypeError, ValueError) as error:
            said.append(str(error))
    return said


def losses_of_models():
    """Loss by JAX and by torch, and the largest difference of gradients, of kinds of models."""
    import jax

    found = {}
    kinds = {
        "with sinusoids": {"position_embedding": "sinusoidal"},
        "decoder": {"is_decoder": True},
    }
    for name, changes in kinds.items():
        state = new_state(**changes)
        decoder = changes.get("is_decoder", False)
        step = source(objective="left_to_right" if decoder else "mlm_nsp").step(0)
        loss, _ = compute_loss(state.model, step.micro_batches[0], **step.counts)
        loss.backward()
        ours = loss_in_jax(state.model, compute_loss, None, training=True)
        weights = {n: each.detach().numpy() for n, each in state.model.named_parameters()}
        fixed = in_jax({n: each.numpy() for n, each in state.model.named_buffers()})
        batch = in_jax(arrays_of(step.micro_batches[0], rows_multiple=1))
        counts = {name: jax.numpy.int32(count) for name, count in step.counts.items()}

        def of_weights(weights, fixed=fixed, ours=ours, batch=batch, counts=counts):
            return ours({**weights, **fixed}, batch, counts, jax.random.key(0))

        (value, _), gradients = jax.jit(jax.value_and_grad(of_weights, has_aux=True))(weights)
        differences = [
            float((torch.from_numpy(np_of(gradients[n])) - each.grad).abs().max())
            for n, each in state.model.named_parameters()
        ]
        found[name] = float(value), float(loss), max(differences)
    return found


def losses_of_keys():
    """Losses of a key twice and of another; whether the model is left as it was."""
    import jax

    loss, weights, batch, counts, _ = one_micro_batch(None)
    compiled = jax.jit(loss)
    return [float(compiled(weights, batch, counts, jax.random.key(n))[0]) for n in (0, 0, 1)]


def kept_for_backward(dtype):
    """Shape and type of all that is kept of a loss for its gradient, and the number of tokens.

    With dropout on hidden states and attention probabilities.
    """
    import jax

    loss, weights, batch, counts, key = one_micro_batch(dtype)

    def backward(weights):
        return jax.vjp(lambda given: loss(given, batch, counts, key), weights, has_aux=True)[1]

    kept = jax.tree.leaves(jax.eval_shape(backward, weights))
    return [(each.shape, str(each.dtype)) for each in kept], batch["input_ids"].size
