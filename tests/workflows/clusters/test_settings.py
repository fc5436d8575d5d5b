"""Cluster settings and the shapes of TPU slices: Ray's tables against Google's documentation."""

import subprocess
import sys
from typing import get_args

import pytest
import yaml
from pydantic import ValidationError

from workflows.clusters.settings import GENERATIONS, ClusterSettings, num_chips, tpu_slice
from workflows.settings import LAYERS


def test_the_number_of_workers_is_one_number_or_a_pair():
    assert ClusterSettings(num_workers=3).fewest_workers == 3
    assert ClusterSettings(num_workers=[3]).num_workers == 3
    assert ClusterSettings(num_workers=[1, 8]).num_workers == (1, 8)
    assert ClusterSettings(num_workers=[1, 8]).fewest_workers == 1
    for wrong in (0, -2, [0, 2], [4, 2], [1, 2, 3]):
        with pytest.raises(ValidationError):
            ClusterSettings(num_workers=wrong)


def test_a_tpu_has_a_worker_on_each_host_of_its_slices():
    one = ClusterSettings(tpu="v5e", topology="4x4")
    assert (one.num_workers, one.fewest_slices) == (4, 1)
    assert ClusterSettings(tpu="v5e", topology="4x4", num_slices=2).num_workers == 8
    elastic = ClusterSettings(tpu="v4", topology="2x2x2", num_slices=[1, 3])
    assert (elastic.num_workers, elastic.fewest_workers) == ((2, 6), 2)
    assert elastic.fewest_slices == 1
    for settings in (one, elastic):
        assert ClusterSettings.model_validate(settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"topology": "4x4", "num_workers": 3}, "3 workers do not fit 1 slice, 4 would"),
        ({"topology": "4x4", "num_workers": 4, "num_slices": 2}, "do not fit 2 slices, 8 would"),
        ({"topology": "4x4", "num_workers": [4, 6]}, "4 to 6 workers do not fit"),
        ({"topology": "2x4", "num_workers": 2}, "has 1 host with one worker each"),
        ({"topology": "2x2x2"}, "v5e has no topology 2x2x2"),
        ({}, "set --cluster.topology"),
        ({"topology": "4x4", "use_gpu": True}, "set --cluster.use_gpu false"),
        ({"topology": "4x4", "num_slices": 0}, "num_slices"),
        ({"topology": "4x4", "num_slices": [2, 1]}, "num_slices"),
        ({"tpu": None, "topology": "4x4"}, "set --cluster.tpu"),
        ({"tpu": None, "num_slices": 2}, "set --cluster.tpu"),
        ({"tpu": "v5"}, "'v4', 'v5e'"),
    ],
)
def test_a_tpu_that_there_is_not_is_refused(settings, said):
    with pytest.raises(ValidationError, match=said):
        ClusterSettings(**({"tpu": "v5e"} | settings))


def test_every_generation_can_be_asked_for():
    annotation = ClusterSettings.model_fields["tpu"].annotation
    named = {name for each in get_args(annotation) for name in get_args(each)}
    assert named == GENERATIONS.keys()


def test_without_a_tpu_settings_are_read_without_ray():
    program = (
        "import sys; from workflows.clusters.settings import ClusterSettings; "
        "ClusterSettings(num_workers=[1, 2]); sys.exit('ray' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


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
