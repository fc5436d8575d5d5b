"""What is said where a cluster has no TPU; simulated nodes stand in test_pretrain_tpu.py."""

import pytest

from bert_core.errors import UserError
from workflows import tpu_capacity
from workflows.cluster_settings import ClusterSettings

HEAD = {
    "Alive": True,
    "NodeManagerAddress": "10.0.0.1",
    "Resources": {"CPU": 8.0, "memory": 1e9, "node:10.0.0.1": 1.0},
    "Labels": {},
}
HOST = {
    "Alive": True,
    "NodeManagerAddress": "10.0.0.2",
    "Resources": {"CPU": 24.0, "TPU": 4.0, "TPU-v4-16-head": 1.0, "accelerator_type:TPU-V4": 1.0},
    "Labels": {
        "ray.io/tpu-slice-name": "slice-0",
        "ray.io/tpu-worker-id": "0",
        "ray.io/tpu-pod-type": "v4-16",
        "ray.io/tpu-topology": "2x2x2",
    },
}
SECOND = HOST | {
    "NodeManagerAddress": "10.0.0.3",
    "Resources": {"CPU": 24.0, "TPU": 4.0, "accelerator_type:TPU-V4": 1.0},
    "Labels": HOST["Labels"] | {"ray.io/tpu-worker-id": "1"},
}


@pytest.fixture
def cluster(monkeypatch):
    """Makes Ray say that it has these nodes."""
    monkeypatch.setattr(tpu_capacity.ray, "is_initialized", lambda: True)

    def of(*nodes):
        monkeypatch.setattr(tpu_capacity.ray, "nodes", lambda: list(nodes))

    return of


def wanted(num_slices=1):
    return ClusterSettings(tpu="v4", topology="2x2x2", num_slices=num_slices)


def test_without_a_tpu_it_is_said_what_ray_sees(cluster):
    cluster(HEAD, HOST | {"Alive": False})
    with pytest.raises(UserError, match=r"^no TPU found: Ray sees 10\.0\.0\.1 with 8 CPU \(join"):
        tpu_capacity.refuse_missing_slices(wanted())


def test_part_of_a_slice_is_none(cluster):
    cluster(HEAD, HOST)
    with pytest.raises(UserError, match="0 whole TPU slices v4 2x2x2 found, 1 needed") as caught:
        tpu_capacity.refuse_missing_slices(wanted())
    assert caught.value.where == (
        "Ray sees 10.0.0.1 with 8 CPU; 10.0.0.2 with 24 CPU, 4 TPU, 1 TPU-v4-16-head, "
        "1 accelerator_type:TPU-V4, in slice slice-0 of 2x2x2"
    )
    other = HOST["Labels"] | {"ray.io/tpu-slice-name": "slice-1"}
    cluster(HEAD, HOST, SECOND | {"Labels": other})
    with pytest.raises(UserError, match="0 whole TPU slices"):
        tpu_capacity.refuse_missing_slices(wanted())


def test_as_many_slices_as_are_needed_are_enough(cluster):
    cluster(HEAD, HOST, SECOND)
    tpu_capacity.refuse_missing_slices(wanted())
    tpu_capacity.refuse_missing_slices(wanted([1, 2]))
    with pytest.raises(UserError, match="1 whole TPU slices v4 2x2x2 found, 2 needed"):
        tpu_capacity.refuse_missing_slices(wanted(2))


def test_a_large_cluster_is_not_listed_to_the_end(cluster):
    cluster(*[HEAD] * 20)
    with pytest.raises(UserError) as caught:
        tpu_capacity.refuse_missing_slices(wanted())
    assert caught.value.where.count("10.0.0.1") == 8 and caught.value.where.endswith("12 more")


def test_a_missing_extra_is_named_before_anything_starts(monkeypatch):
    monkeypatch.setattr(
        tpu_capacity, "find_spec", lambda name: None if name == "optax" else object()
    )
    with pytest.raises(UserError, match=r"needs optax: .*pip install -e '\.\[tpu\]'"):
        tpu_capacity.refuse_missing_packages()
    monkeypatch.setattr(tpu_capacity, "find_spec", lambda _: object())
    tpu_capacity.refuse_missing_packages()
