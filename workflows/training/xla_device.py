"""The chips that XLA computes on, of which a worker has all of its host: name, peak, memory.

JAX is loaded within the functions: it belongs to the extra `tpu`, and takes the chips when it is.
"""

import time

import psutil


def kind() -> str:
    """What the chips are: `tpu`, or `cpu` where JAX_PLATFORMS says so."""
    import jax

    return jax.default_backend()


def name() -> str:
    """What a chip calls itself, such as `TPU v5 lite`."""
    import jax

    return jax.local_devices()[0].device_kind


def peak_flops() -> float:
    """FLOP/s of a large product of matrices on all chips of this worker, the best of a few.

    In bfloat16 on TPU, in float32 on CPU, as `throughput.peak_flops`.
    """
    import jax
    import jax.numpy as jnp

    on_cpu = kind() == "cpu"
    size, dtype = (1024, jnp.float32) if on_cpu else (8192, jnp.bfloat16)
    chip = jax.local_devices()[0]
    numbers = jax.random.normal(jax.random.key(0), (2, size, size), dtype)
    left, right = jax.device_put(numbers, chip)
    product = jax.jit(jnp.matmul)
    product(left, right).block_until_ready()
    best = float("inf")
    for _ in range(8):
        begin = time.perf_counter()
        product(left, right).block_until_ready()
        best = min(best, time.perf_counter() - begin)
    # Devices that are made of one CPU share its cores.
    return 2 * size**3 / best * (1 if on_cpu else jax.local_device_count())


def memory_bytes() -> int:
    """The most memory that a chip has had in use; where it does not say, that of this process."""
    import jax

    used = jax.local_devices()[0].memory_stats() or {}
    return int(used.get("peak_bytes_in_use", psutil.Process().memory_info().rss))
