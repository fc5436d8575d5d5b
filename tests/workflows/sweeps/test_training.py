"""How trials get a place on a cluster; whole sweeps are trained in `test_tune.py`."""

import pytest

from bert_core.errors import UserError
from workflows.clusters.settings import ClusterSettings
from workflows.sweeps.training import TrialPlace, _Order, join_cluster_for


def test_what_a_trial_asks_for():
    assert TrialPlace(2, 0.0).resources == {"cpu": 2}
    assert TrialPlace(1, 0.5).resources == {"cpu": 1, "gpu": 0.5}


def test_a_trial_has_a_thread_and_a_gpu_where_gpus_are_used():
    assert TrialPlace.of(ClusterSettings(), 0.5) == TrialPlace(1, 0.0)
    assert TrialPlace.of(ClusterSettings(use_gpu=True), 0.5) == TrialPlace(1, 0.5)
    assert TrialPlace.of(ClusterSettings(threads_per_worker=4), 1.0) == TrialPlace(4, 0.0)


@pytest.mark.ray
def test_as_many_trials_run_as_there_is_room_for(ray_cluster, monkeypatch):
    del ray_cluster  # of 2 CPUs
    assert join_cluster_for(TrialPlace(1, 0.0)) == 2
    assert join_cluster_for(TrialPlace(2, 0.0)) == 1
    assert join_cluster_for(TrialPlace(1, 0.0), at_once=1) == 1
    assert join_cluster_for(TrialPlace(1, 0.0), at_once=8) == 2
    with pytest.raises(UserError, match="a trial needs 3 CPU: Ray sees 2 on a machine"):
        join_cluster_for(TrialPlace(3, 0.0), at_once=8)
    with pytest.raises(UserError, match="lower --gpus_per_trial"):
        join_cluster_for(TrialPlace(1, 0.5))
    monkeypatch.setenv("RAY_ADDRESS", "a cluster that may grow")
    assert join_cluster_for(TrialPlace(1, 1.0), at_once=8) == 8


def test_no_trial_begins_after_a_wish_to_stop():
    order = _Order(lambda: pytest.fail("it was asked"), 1)
    order.is_stopped = True
    assert order.suggest("id") == "FINISHED"
