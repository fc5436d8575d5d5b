"""Tensors by name: the bare model's names, tied weights once, moments back where they were."""

import pytest
import torch
from tiny_training import TinyModel, tiny_state, tiny_train
from torch.nn.parallel import DistributedDataParallel

from bert_core.training.checkpoint import (
    first_difference,
    load_moments,
    moments_by_name,
    num_bytes,
    unwrap_model,
    weights_by_name,
)


def test_names_are_the_bare_models_under_any_wrapper(tmp_path):
    model = TinyModel()
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = torch.compile(DistributedDataParallel(torch.compile(model)))
        assert unwrap_model(wrapped) is model
        assert list(weights_by_name(wrapped)) == list(weights_by_name(model))
    finally:
        torch.distributed.destroy_process_group()
    assert "output.weight" not in weights_by_name(model)  # tied: once, as embedding.weight


def test_the_first_difference_is_named():
    ours = {"a": torch.zeros(2), "b": torch.zeros(3)}
    assert first_difference(dict(ours), ours) is None
    assert first_difference({"a": torch.zeros(2)}, ours) == "b is missing"
    assert first_difference({**ours, "c": torch.zeros(1)}, ours) == "c is unknown to this model"
    other = {**ours, "b": torch.zeros(3, dtype=torch.float16)}
    assert first_difference(other, ours) == "b is (3,) float16, this model's is (3,) float32"


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_moments_return_by_name(optimizer):
    trained, fresh = tiny_state(optimizer), tiny_state(optimizer)
    list(tiny_train(trained, total_steps=2))
    moments = moments_by_name(trained.model, trained.optimizer)
    assert {name.rpartition(".")[2] for name in moments} == {"step", "exp_avg", "exp_avg_sq"}
    assert num_bytes([moments["dense.weight.exp_avg"]]) == 16 * 16 * 4
    load_moments(fresh.model, fresh.optimizer, moments)
    again = moments_by_name(fresh.model, fresh.optimizer)
    assert moments.keys() == again.keys()
    assert all(torch.equal(moments[name], again[name]) for name in moments)


def test_moments_of_another_model_are_refused():
    state = tiny_state()
    with pytest.raises(KeyError, match="elsewhere"):
        load_moments(state.model, state.optimizer, {"elsewhere.exp_avg": torch.zeros(3)})
    with pytest.raises(ValueError, match="dense.bias.exp_avg"):
        load_moments(state.model, state.optimizer, {"dense.bias.exp_avg": torch.zeros(3)})
