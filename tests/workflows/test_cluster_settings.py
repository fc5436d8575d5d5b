import pytest
from pydantic import ValidationError

from workflows.cluster_settings import ClusterSettings


def test_the_number_of_workers_is_one_number_or_a_pair():
    assert ClusterSettings(num_workers=3).fewest_workers == 3
    assert ClusterSettings(num_workers=[3]).num_workers == 3
    assert ClusterSettings(num_workers=[1, 8]).num_workers == (1, 8)
    assert ClusterSettings(num_workers=[1, 8]).fewest_workers == 1
    for wrong in (0, -2, [0, 2], [4, 2], [1, 2, 3]):
        with pytest.raises(ValidationError):
            ClusterSettings(num_workers=wrong)
