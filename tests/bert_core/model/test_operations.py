import pytest
import torch

from bert_core.model.bert import Bert
from bert_core.model.cpu.dropout import add_dropout, dropout, keep_mask, keep_probability
from bert_core.model.cpu.operations import CpuOperations
from bert_core.model.operations import OnDevice, TorchOperations, use_operations


@pytest.mark.parametrize("probability", [0.1, 0.25, 0.5])
def test_drops_the_share_that_was_asked_for(probability):
    torch.manual_seed(0)
    places = 4_000_000
    mask = keep_mask((places // 4, 4), probability, torch.float32)
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    assert keep_probability(probability) == pytest.approx(1 - probability, abs=1e-5)
    deviation = (probability * (1 - probability) / places) ** 0.5
    assert mask.mean().item() == pytest.approx(1 - probability, abs=5 * deviation)
    columns = mask.mean(0) - (1 - probability)
    assert columns.abs().max() < 10 * deviation
    # Neighbours, in either direction, are independent.
    for left, right in ((mask[:, 0], mask[:, 1]), (mask[:-1, 0], mask[1:, 0])):
        assert torch.corrcoef(torch.stack([left, right]))[0, 1].abs() < 5e-3


def test_scales_what_it_keeps_and_its_gradient_alike():
    torch.manual_seed(0)
    states = torch.rand(64, 33, dtype=torch.float64).add_(1).requires_grad_()
    dropped = dropout(states, 0.1, training=True)
    scale = 1 / keep_probability(0.1)
    kept = dropped != 0
    assert torch.equal(dropped[kept], (states * scale)[kept])
    dropped.sum().backward()
    assert torch.equal(states.grad, kept * torch.tensor(scale, dtype=torch.float64))


def test_adding_is_the_sum():
    residual, states = torch.randn(2, 40, 8).unbind()
    torch.manual_seed(5)
    added = add_dropout(residual, states, 0.3, training=True)
    torch.manual_seed(5)
    torch.testing.assert_close(added, residual + dropout(states, 0.3, training=True))
    assert torch.equal(add_dropout(residual, states, 0.3, training=False), residual + states)


def test_does_nothing_when_not_training_or_at_zero():
    states = torch.randn(4, 4)
    assert dropout(states, 0.5, training=False) is states
    assert dropout(states, 0.0, training=True) is states


def test_the_seed_alone_decides_whatever_the_threads():
    before, masks = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(7)
        keep_mask((3,), 0.5, torch.float32)
        masks.append(keep_mask((1000, 333), 0.1, torch.float32))
    torch.set_num_threads(before)
    assert torch.equal(*masks)


def operations_of(model):
    return [part.operations for part in model.modules() if isinstance(part, OnDevice)]


def test_moving_a_model_chooses_its_operations(small_config):
    """No CUDA here: a device without values stands for it."""
    model = Bert.for_pretraining(small_config)
    assert len(operations_of(model)) > 10
    assert all(isinstance(each, CpuOperations) for each in operations_of(model))
    inference = CpuOperations(keeps_rows_apart=True)
    use_operations(model, inference)
    assert all(each is inference for each in operations_of(model.to("cpu")))
    assert all(isinstance(each, TorchOperations) for each in operations_of(model.to("meta")))
    back = operations_of(model.to_empty(device="cpu"))
    assert all(isinstance(each, CpuOperations) for each in back)


@pytest.mark.parametrize("operations", [CpuOperations(), TorchOperations()])
def test_operations_agree_without_dropout(small_config, operations, some_rows):
    rows = some_rows([9, 5, 5, 2], vocab_size=small_config.vocab_size)
    model = Bert.for_pretraining(small_config).eval()
    expected = rows.loss(model, packed=False)
    use_operations(model, operations)
    for value, wanted in zip(rows.loss(model, packed=False), expected, strict=True):
        torch.testing.assert_close(value, wanted)
