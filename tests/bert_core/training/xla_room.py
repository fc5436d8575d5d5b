"""Compiling with and without room, in the process that `xla_runs` sets up.

JAX is loaded within functions: the tests import this module too, and know only its names.
"""

import numpy as np
from xla_runs import ROWS, distance, new_state, read, source, torch_steps, xla, xla_steps

from bert_core.training.xla.program import Programs


class LittleRoom:
    """A jitted step that a compiler has no room for with more than so many rows at once."""

    def __init__(self, step, most_rows):
        self.step, self.most_rows, self.refused = step, most_rows, []

    def lower(self, *arguments):
        import jax

        rows = arguments[3]["input_ids"].shape[1]
        if rows > self.most_rows:
            self.refused.append(rows)
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in hbm")
        return self.step.lower(*arguments)


def with_little_room(most_rows):
    """Three steps by torch and on devices without room for 8 rows at once, and what was refused."""
    by_torch, by_xla = (new_state(num_hidden_layers=1) for _ in range(2))
    training = xla(by_xla)
    training._step = LittleRoom(training._step, most_rows)
    batches = source(ROWS).steps
    ours = read(xla_steps(training, 0, 3, batches(0)))
    theirs = read(torch_steps(by_torch, 3, batches(0)))
    apart = distance(training.current_state(), by_torch)
    return ours, theirs, apart, training._step.refused, training.num_parts


def without_room():
    """What is said where not even one row of a device fits."""
    import jax

    training = xla(new_state(num_hidden_layers=1))
    training._step = LittleRoom(training._step, 1)
    try:
        list(xla_steps(training, 0, 1))
    except jax.errors.JaxRuntimeError as error:
        return str(error), training._step.refused
    return None


def compiled_for_shapes():
    """How many programs there are after each of four calls, two of them of the same shape."""
    import jax
    import jax.numpy as jnp

    programs, double, found = Programs(in_float32=True), jax.jit(lambda given: 2 * given), []
    for kind, size in (("a", 3), ("a", 3), ("a", 4), ("a", 3)):
        assert float(programs.of(kind, double, jnp.ones(size))(jnp.ones(size))[0]) == 2
        found.append(len(programs))
    return found


def failed_compilation():
    """What comes of an error that has nothing to do with room, and the parts that were tried."""
    import jax

    tried = []

    class Crashing:
        def lower(self, *_):
            raise jax.errors.JaxRuntimeError("INTERNAL: a crash")

    def given(parts):
        tried.append(parts)
        return (np.ones(parts),)

    try:
        Programs(in_float32=True).with_room("step", Crashing(), given, shape=(1, 8), rows=8)
    except jax.errors.JaxRuntimeError as error:
        return str(error), tried
    return None
