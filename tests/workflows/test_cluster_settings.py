import subprocess
import sys
from typing import get_args

import pytest
from pydantic import ValidationError

from workflows.cluster_settings import ClusterSettings
from workflows.tpu_slices import GENERATIONS


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
        "import sys; from workflows.cluster_settings import ClusterSettings; "
        "ClusterSettings(num_workers=[1, 2]); sys.exit('ray' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
