"""Attention in JAX: queries, keys and values go in, mixed values come out.

Shapes: N sequences, A heads of size D, n slots.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax


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
    """Forward pass of `attention`."""
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
