"""LAMB, the optimizer of large batches: each weight's step is scaled to the weight's own norm."""

# pyright: reportPrivateImportUsage=false
# torch's operations on lists of tensors have no public names; its own optimizers use these.

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch
from torch import Tensor


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2019, arXiv 1904.00962, algorithm 2), with phi the identity.

    Groups without weight decay (biases, layer norms) take the plain Adam update with no trust
    ratio, as in the authors' released code and NVIDIA's; the paper's algorithm makes no such
    exception. The global gradient norm is clipped by the loop, as NVIDIA's version does inside.
    All arithmetic stays on the device: a step never waits for it. On an accelerator an operation
    is one kernel for all tensors of a group, but for the last, in which each weight has a ratio of
    its own.
    """

    def __init__(
        self,
        params: Any,  # noqa: ANN401 - torch's ParamsT: parameters or group dictionaries
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Makes one update of every parameter that has a gradient."""
        loss = closure() if closure is not None else None
        with torch.no_grad():
            for group in self.param_groups:
                trained = [each for each in group["params"] if each.grad is not None]
                for parameters in updated_at_once(trained):
                    self._update(parameters, group)
        return loss

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [each.grad for each in parameters if each.grad is not None]
        states = [self._state_of(each) for each in parameters]
        means = [state["exp_avg"] for state in states]
        squares = [state["exp_avg_sq"] for state in states]
        for state in states:
            state["step"] += 1
        steps = [int(state["step"]) for state in states]
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
        roots = torch._foreach_div(squares, [1 - beta2**step for step in steps])
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, group["eps"])
        updates = torch._foreach_div(means, [1 - beta1**step for step in steps])
        torch._foreach_div_(updates, roots)
        if not group["weight_decay"]:
            torch._foreach_add_(parameters, updates, alpha=-group["lr"])
            return
        torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
        ratios = _trust_ratios(parameters, updates)
        torch._foreach_addcmul_(parameters, updates, ratios, value=-group["lr"])

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:  # the names torch.optim.AdamW uses, so that one checkpoint format serves both
            state["step"] = torch.tensor(0.0)  # on the host: reading it waits for no device
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


def updated_at_once(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    """The parameters in the lists in which they are updated.

    On a CPU each stands alone: nothing is saved by fewer calls, and a tensor that has just been
    written is still in the cache for the next operation.
    """
    on_cpu = [[each] for each in parameters if each.device.type == "cpu"]
    others = [each for each in parameters if each.device.type != "cpu"]
    return [*on_cpu, others] if others else on_cpu


def _trust_ratios(parameters: list[Tensor], updates: Sequence[Tensor]) -> list[Tensor]:
    """Norm of each weight over the norm of its update, 0-d; 1 where either norm is 0."""
    weights = torch.stack(list(torch._foreach_norm(parameters)))
    changes = torch.stack(list(torch._foreach_norm(tuple(updates))))
    known = (weights > 0) & (changes > 0)
    return list(torch.where(known, weights / changes, torch.ones_like(weights)).unbind())
