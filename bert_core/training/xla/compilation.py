"""Jitted functions -> programs, compiled once for the shapes of their arguments, with room to run.

A TPU's compiler knows what memory a program takes, and says so before anything runs.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any


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
