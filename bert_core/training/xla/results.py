"""The numbers of a step as they are on the devices -> a `StepResult` that reads them when asked."""

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bert_core.training.loop import StepResult
from bert_core.training.readings import NonFiniteLossError

if TYPE_CHECKING:
    import jax


class Numbers:
    """What one step found, on its way to the host since its program was started."""

    def __init__(self, step: int, arrays: dict[str, "jax.Array"]) -> None:
        self.step = step
        self._arrays = arrays
        for each in arrays.values():
            each.copy_to_host_async()

    @cached_property
    def on_host(self) -> dict[str, Tensor]:
        """`loss`, `gradient_norm` 0-d and `sums` [S] in float64; `tallies` int64 [3]."""
        read = {name: torch.from_numpy(np.array(each)) for name, each in self._arrays.items()}
        self._arrays = {}
        return {
            name: each.long() if name == "tallies" else each.double() for name, each in read.items()
        }

    def check(self) -> None:
        """Waits for the step; raises `NonFiniteLossError` where a number is not finite."""
        found = self.on_host
        if not all(bool(each.isfinite().all()) for each in found.values()):
            raise NonFiniteLossError(self.step, float(found["loss"]), float(found["gradient_norm"]))

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
        self,
        numbers: Numbers,
        *,
        learning_rate: float,
        sum_of_squared_lengths: int,
        stopped: bool,
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
