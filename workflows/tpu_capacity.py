"""Whether a cluster has the TPU slices of a run; where not, what Ray sees in their place."""

from importlib.util import find_spec
from typing import Any

import ray
from ray.util.tpu import get_num_tpu_slices

from bert_core.errors import UserError
from workflows.cluster_settings import ClusterSettings

_PACKAGES = ("jax", "optax", "torchax")
_SLICE, _SHAPE = ("ray.io/tpu-slice-name", "ray.io/tpu-topology")
_NAMED_NODES = 8


def refuse_missing_packages() -> None:
    """Raises `UserError` where the extra `tpu` is not installed here.

    Ray would start workers without it again and again; JAX itself is left alone, for it would
    take the TPU away from them.
    """
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise UserError(
            f"training on TPU needs {', '.join(missing)}",
            "not installed here",
            "in the checkout on every machine: pip install -e '.[tpu]'",
        )


def refuse_missing_slices(settings: ClusterSettings) -> None:
    """Raises `UserError` where the cluster lacks whole slices of this kind.

    For a process that has joined the cluster. Whether an autoscaler could bring slices, Ray does
    not say: they have to be there. A job waits for CPUs and GPUs alone.
    """
    wanted, kind = settings.fewest_slices, settings.tpu_slice
    whole = get_num_tpu_slices(kind.topology, kind.accelerator_type)
    if whole >= wanted:
        return
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if not any(node["Resources"].get("TPU") for node in nodes):
        what = "no TPU found"
    else:
        what = f"{whole} whole TPU slices {kind} found, {wanted} needed"
    shown = [described_node(node) for node in nodes[:_NAMED_NODES]]
    rest = [f"{len(nodes) - _NAMED_NODES} more"] if len(nodes) > _NAMED_NODES else []
    raise UserError(
        what,
        f"Ray sees {'; '.join([*shown, *rest])}",
        "join a cluster with TPU nodes with RAY_ADDRESS (docs/tpu.md), or choose another --profile",
    )


def described_node(node: dict[str, Any]) -> str:
    """A node as `ray.nodes` has it, in words: its address, what it has, its place in a slice."""
    kinds = {
        name: amount
        for name, amount in sorted(node["Resources"].items())
        if name in ("CPU", "GPU") or name.startswith(("TPU", "accelerator_type:"))
    }
    parts = [f"{amount:g} {name}" for name, amount in kinds.items()]
    labels = node.get("Labels") or {}
    if _SHAPE in labels:
        parts.append(f"in slice {labels.get(_SLICE, '?')} of {labels[_SHAPE]}")
    return f"{node['NodeManagerAddress']} with {', '.join(parts) or 'nothing'}"
