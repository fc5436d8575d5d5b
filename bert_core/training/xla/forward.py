"""Turns a torch model and its loss function into the same loss as a JAX function.

torchax stands behind `loss_in_jax` alone, so that a forward pass in plain JAX over the same weights
could take its place. It runs the torch code on arrays of JAX. A few operations are our own: they
compute in the types that `torch.autocast` uses, which torchax's own autocast does for few products.
Shapes: N sequences, A heads of size D, n slots.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from bert_core.config import IGNORE_INDEX
from bert_core.model.layout import Padded
from bert_core.text.collation import PretrainingBatch
from bert_core.training.loop import ComputeLoss

if TYPE_CHECKING:
    import jax

    Weights = Mapping[str, jax.Array]
    LossInJax = Callable[
        [Weights, Mapping[str, jax.Array], Mapping[str, jax.Array], jax.Array],
        tuple[jax.Array, jax.Array],
    ]


def attention(
    query: "jax.Array",
    key: "jax.Array",
    value: "jax.Array",
    keys: "jax.Array | None",
    *,
    causal: bool,
    dropout: float,
    draw: "jax.Array | None",
) -> "jax.Array":
    """Scaled dot-product attention of [N, A, n, D]; `keys`, bool [N, 1, 1, n], may be attended to.

    Scores and softmax are float32, as in torch's fused kernels, and both products, forward and
    backward, in the type of the operands. `draw` is the random key of `dropout`, unused at 0. For
    the backward pass the operands alone are kept, no [N, A, n, n]: scores, probabilities and what
    is dropped are computed again, which Korthikanti et al. (2022, section 5) found to cost little.
    """
    import jax

    mixed = jax.checkpoint(partial(_mixed, causal=causal, dropout=dropout))
    return mixed(query, key, value, keys, draw)


def _mixed(
    query: "jax.Array",
    key: "jax.Array",
    value: "jax.Array",
    keys: "jax.Array | None",
    draw: "jax.Array | None",
    *,
    causal: bool,
    dropout: float,
) -> "jax.Array":
    import jax
    from jax import numpy as jnp

    scores = _scores(query, key) * query.shape[-1] ** -0.5  # [N, A, n, n]
    if causal:
        seen = jnp.tril(jnp.ones(scores.shape[-2:], dtype=bool))
        keys = seen if keys is None else keys & seen
    if keys is not None:
        scores = jnp.where(keys, scores, -jnp.inf)
    chances = jax.nn.softmax(scores)
    if dropout > 0:
        assert draw is not None
        kept = jax.random.bernoulli(draw, 1 - dropout, chances.shape)
        chances = jnp.where(kept, chances / (1 - dropout), 0)
    return jnp.einsum("nahk,nakd->nahd", chances.astype(value.dtype), value)


def _scores(query: "jax.Array", key: "jax.Array") -> "jax.Array":
    """Products of 16-bit numbers, summed and kept in float32.

    JAX's own gradient of such a product multiplies float32 with 16-bit numbers, at a fraction of
    the speed; here the incoming gradient is rounded first.
    """
    import jax
    from jax import numpy as jnp

    def product(query: "jax.Array", key: "jax.Array") -> "jax.Array":
        return jnp.einsum("nahd,nakd->nahk", query, key, preferred_element_type=jnp.float32)

    def forward(query: "jax.Array", key: "jax.Array") -> tuple[Any, Any]:
        return product(query, key), (query, key)

    def backward(saved: Any, gradient: "jax.Array") -> tuple[Any, Any]:  # noqa: ANN401
        query, key = saved
        gradient = gradient.astype(query.dtype)
        return (
            jnp.einsum("nahk,nakd->nahd", gradient, key),
            jnp.einsum("nahk,nahd->nakd", gradient, query),
        )

    multiplied = jax.custom_vjp(product)
    multiplied.defvjp(forward, backward)
    return multiplied(query, key)


_UNKNOWN = 0
"""How many tokens are real is for the log, which knows it from the host; no loss reads it."""


class _Loss(nn.Module):
    """The loss function as the module's own forward pass, which `functional_call` needs."""

    def __init__(self, model: nn.Module, compute_loss: ComputeLoss) -> None:
        super().__init__()
        self.model = model
        self.compute_loss = compute_loss

    def forward(self, batch: PretrainingBatch, counts: Mapping[str, Any]) -> Any:  # noqa: ANN401
        return self.compute_loss(self.model, batch, **counts)


def loss_in_jax(
    model: nn.Module,
    compute_loss: ComputeLoss,
    compute_dtype: torch.dtype | None,
    *,
    training: bool,
) -> "LossInJax":
    """`loss(weights, batch, counts, key)`: the loss, 0-d, and its sums [S], both float32.

    `weights` are parameters and buffers by their names in `model`, whose own are not read. `batch`
    is what `arrays_of` makes of a micro-batch, or a device's part of it; `counts` are 0-d int32.
    `key` says which places are dropped, where `training`. Matrix products are in `compute_dtype`,
    float32 where it is None. For use within `jax.jit`: a call out of it is slow.
    """
    from jax import numpy as jnp
    from torchax.tensor import Environment

    dtype = jnp.float32 if compute_dtype is None else jnp.dtype(str(compute_dtype).split(".")[1])
    environment = Environment()
    for operation, ours in _operations(environment, dtype).items():
        environment.override_op_definition(operation, ours)
    module = _Loss(model, compute_loss)

    def loss(
        weights: "Weights",
        batch: Mapping[str, "jax.Array"],
        counts: Mapping[str, "jax.Array"],
        key: "jax.Array",
    ) -> tuple["jax.Array", "jax.Array"]:
        was_training = model.training
        model.train(training)
        try:
            with environment, environment.override_property(prng=key):
                named = {f"model.{name}": weight for name, weight in weights.items()}
                views = environment.j2t_iso((named, dict(batch), dict(counts)))
                given = _micro_batch(views[1]), views[2]
                results = torch.func.functional_call(module, views[0], given, strict=True)
                return environment.t2j_iso(results)
        finally:
            model.train(was_training)

    return loss


def _micro_batch(tensors: Mapping[str, torch.Tensor]) -> PretrainingBatch:
    """The batch of `arrays_of`, flat again: places count from the first of these rows."""
    num_rows, length = tensors["input_ids"].shape
    first = torch.arange(num_rows, device="jax").unsqueeze(1) * length
    return PretrainingBatch(
        input_ids=tensors["input_ids"].reshape(-1),
        token_type_ids=tensors["token_type_ids"].reshape(-1),
        position_ids=torch.arange(length, device="jax").repeat(num_rows),
        layout=Padded(tensors["mask"]),
        masked_positions=(tensors["masked_places"] + first).reshape(-1),
        masked_ids=tensors["masked_ids"].reshape(-1),
        next_sentence=tensors["next_sentence"],
        num_real_tokens=_UNKNOWN,
        num_slots=_UNKNOWN,
    )


def _operations(environment: Any, dtype: Any) -> dict[Callable[..., Any], Callable[..., Any]]:  # noqa: ANN401 - torchax and JAX are not loaded here
    """torch's operations whose types matter, over tensors of torchax.

    As in torch, what norms, GELU and attention compute on their way in float32 is computed again
    in the backward pass: JAX would keep four times as much of a layer at 512 tokens a row.
    """
    import jax
    from jax import numpy as jnp

    from bert_core.training.xla.forward import attention

    def linear(rows: Any, weight: Any, bias: Any = None) -> Any:  # noqa: ANN401
        product = rows.astype(dtype) @ weight.astype(dtype).T
        return product if bias is None else product + bias.astype(dtype)

    def layer_norm(states: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:  # noqa: ANN401
        del shape  # the last dimension's
        return normed(states, weight, bias, eps)

    @jax.checkpoint
    def normed(states: Any, weight: Any, bias: Any, eps: float) -> Any:  # noqa: ANN401
        states = states.astype(jnp.float32)
        states = states - states.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt(jnp.square(states).mean(-1, keepdims=True) + eps)
        return states * scale * weight + bias

    @jax.checkpoint
    def gelu(states: Any) -> Any:  # noqa: ANN401
        wide = states.astype(jnp.float32)
        return jax.nn.gelu(wide, approximate=False).astype(states.dtype)

    def cross_entropy(
        logits: Any,  # noqa: ANN401
        labels: Any,  # noqa: ANN401
        *,
        ignore_index: int,
        reduction: str,
        **others: object,
    ) -> Any:  # noqa: ANN401
        assert (ignore_index, reduction, any(others.values())) == (IGNORE_INDEX, "sum", False)
        used = labels != IGNORE_INDEX
        chances = jax.nn.log_softmax(logits.astype(jnp.float32))
        of_labels = jnp.take_along_axis(chances, jnp.where(used, labels, 0)[:, None], axis=1)
        return -jnp.where(used, of_labels[:, 0], 0).sum()

    def scaled_dot_product_attention(
        query: Any,  # noqa: ANN401
        key: Any,  # noqa: ANN401
        value: Any,  # noqa: ANN401
        keys: Any = None,  # noqa: ANN401
        dropout: float = 0.0,
        causal: bool = False,
    ) -> Any:  # noqa: ANN401
        draw = environment.get_and_rotate_prng_key() if dropout > 0 else None
        return attention(query, key, value, keys, causal=causal, dropout=dropout, draw=draw)

    def over_tensors(compute: Callable[..., Any]) -> Callable[..., Any]:
        def with_tensors(*tensors: Any, **options: Any) -> Any:  # noqa: ANN401
            given = environment.t2j_iso((tensors, options))
            return environment.j2t_iso(compute(*given[0], **given[1]))

        return with_tensors

    ours = {
        F.linear: linear,
        F.layer_norm: layer_norm,
        F.gelu: gelu,
        F.cross_entropy: cross_entropy,
        F.scaled_dot_product_attention: scaled_dot_product_attention,
    }
    return {operation: over_tensors(compute) for operation, compute in ours.items()}
