from pathlib import Path

import pytest
import ray

from bert_core.errors import UserError
from workflows import reachable_storage
from workflows.reachable_storage import refuse_folder_out_of_reach

pytestmark = pytest.mark.ray

OF_EACH_PROCESS = Path("/proc/self/cwd")
"""A path that is another folder in each process: to the driver and to a node as on two machines."""


@pytest.fixture(autouse=True)
def another_node(monkeypatch, ray_cluster, tmp_path):
    """The cluster's one node counts as another than the driver's."""
    own = reachable_storage._own_node()
    monkeypatch.setattr(reachable_storage, "_own_node", lambda: "another")
    monkeypatch.chdir(tmp_path)
    return next(node for node in ray.nodes() if node["NodeID"] == own)


def test_a_shared_folder_passes_and_is_left_as_it_was(tmp_path):
    refuse_folder_out_of_reach(tmp_path, {"CPU": 1})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_one_machine_is_refused_with_the_node_that_lacks_it(another_node, tmp_path):
    address = another_node["NodeManagerAddress"]
    with pytest.raises(UserError) as error:
        refuse_folder_out_of_reach(OF_EACH_PROCESS, {"CPU": 1, "GPU": 0, "TPU": 0})
    line = str(error.value)
    assert line.startswith("1 of 1 other nodes cannot reach the folder: ")
    assert f"{OF_EACH_PROCESS} at {address}" in line
    assert "--storage" in line
    assert "\n" not in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("needs", [{"CPU": 3}, {"CPU": 1, "GPU": 1}, {"TPU": 1}])
def test_a_node_that_is_too_small_for_a_worker_need_not_see_it(needs):
    refuse_folder_out_of_reach(OF_EACH_PROCESS, needs)


def test_the_drivers_own_node_is_not_asked(monkeypatch):
    monkeypatch.undo()
    refuse_folder_out_of_reach(OF_EACH_PROCESS, {"CPU": 1})


def test_a_node_that_goes_meanwhile_is_not_waited_for(tmp_path):
    gone = {"ab" * 28: "10.0.0.7"}
    assert reachable_storage._without(tmp_path / "marker", gone) == []
