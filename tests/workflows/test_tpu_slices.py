"""The shapes of TPU slices; the tables are Ray's, the figures here are Google's documentation."""

import pytest
import yaml

from workflows.settings import LAYERS
from workflows.tpu_slices import GENERATIONS, num_chips, tpu_slice


@pytest.mark.parametrize(
    ("generation", "topology", "hosts", "chips_per_host", "accelerator"),
    [
        ("v4", "2x2x2", 2, 4, "TPU-V4"),
        ("v4", "4x4x8", 32, 4, "TPU-V4"),
        ("v5e", "2x4", 1, 8, "TPU-V5LITEPOD"),
        ("v5e", "4x4", 4, 4, "TPU-V5LITEPOD"),
        ("v5p", "2x2x1", 1, 4, "TPU-V5P"),
        ("v6e", "1x1", 1, 1, "TPU-V6E"),
        ("v6e", "16x16", 64, 4, "TPU-V6E"),
        ("v7x", "2x2x2", 2, 4, "TPU-V7X"),
    ],
)
def test_hosts_and_chips_are_those_of_the_machines(
    generation, topology, hosts, chips_per_host, accelerator
):
    found = tpu_slice(generation, topology)
    assert (found.num_hosts, found.chips_per_host) == (hosts, chips_per_host)
    assert found.num_chips == num_chips(topology) == hosts * chips_per_host
    assert found.accelerator_type == accelerator
    assert str(found) == f"{generation} {topology}"


def test_logical_devices_do_not_change_what_a_host_is(monkeypatch):
    monkeypatch.setenv("RAY_TPU_RESOURCE_PER_CHIP", "2")
    assert tpu_slice("v7x", "2x2x2").chips_per_host == 4


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_shape_that_there_is_not_is_refused_with_the_nearest(generation):
    with pytest.raises(
        ValueError, match=f"{generation} has no topology 4x9, did you mean .*it has"
    ):
        tpu_slice(generation, "4x9")
    with pytest.raises(ValueError, match="has no topology 16"):
        tpu_slice(generation, "16")


def test_a_profile_is_called_what_its_slice_is_called():
    """Google counts chips of v5e and v6e, and cores, two a chip, of v4 and v5p."""
    profiles = sorted(LAYERS["profile"].glob("tpu-*.yaml"))
    assert len(profiles) >= 20
    for path in profiles:
        cluster = yaml.safe_load(path.read_text())["cluster"]
        _, generation, size = path.stem.split("-")
        found = tpu_slice(cluster["tpu"], cluster["topology"])
        cores = 1 if generation in ("v5e", "v6e") else 2
        assert (generation, int(size)) == (found.generation, cores * found.num_chips), path.stem
        hosts = "one host" if found.num_hosts == 1 else f"{found.num_hosts} hosts of 4"
        comment = f"# A slice of {found.num_chips} {generation} chips, {hosts}."
        assert path.read_text().splitlines()[0] == comment
