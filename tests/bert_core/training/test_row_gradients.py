import pytest
import torch
from torch import nn

from bert_core.training.optimization import LARGE_TABLE, RowGradients


class Words(nn.Module):
    """A large table and a small one, and a map that the table may share."""

    def __init__(self, tied):
        super().__init__()
        torch.manual_seed(0)
        self.large = nn.Embedding(LARGE_TABLE, 6)
        self.small = nn.Embedding(20, 6)
        self.tied = tied

    def loss(self, ids):
        states = self.large(ids) + self.small(ids % 20)
        if self.tied:
            states = states @ self.large.weight.T
        return states.square().sum()


def steps_of(model, gradients, max_norm):
    """Three steps of two micro-batches with rows that repeat: norms, gradients, weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        for part in range(2):
            ids = torch.tensor([3, 7, 7, 4000 + step, 100 * step + part])
            with gradients.computing():
                model.loss(ids).backward()
        norm = gradients.clip(max_norm)
        gradients.spread()
        yield norm, model.large.weight.grad.clone(), model.small.weight.grad.clone()
        optimizer.step()
    yield model.large.weight, model.small.weight


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("max_norm", [1.0, 1e6])
def test_steps_are_those_of_whole_tables(tied, max_norm):
    model = Words(tied).double()
    plain = list(steps_of(model, RowGradients(model, wanted=False), max_norm))
    model = Words(tied).double()
    in_rows = list(steps_of(model, RowGradients(model, wanted=True), max_norm))
    torch.testing.assert_close(in_rows, plain, rtol=1e-9, atol=1e-12)


def test_one_table_of_zeros_serves_all_steps():
    model = Words(tied=False)
    gradients = RowGradients(model, wanted=True)
    places = set()
    for step in range(3):
        model.zero_grad()
        with gradients.computing():
            model.loss(torch.tensor([step, 9])).backward()
        assert model.large.weight.grad.is_sparse and not model.small.weight.grad.is_sparse
        gradients.clip(1.0)
        gradients.spread()
        places.add(model.large.weight.grad.data_ptr())
        assert model.large.weight.grad.any(1).nonzero().flatten().tolist() == [step, 9]
    assert len(places) == 1


def test_other_backward_passes_are_as_usual():
    model = Words(tied=False)
    gradients = RowGradients(model, wanted=True)
    with pytest.raises(ZeroDivisionError), gradients.computing():
        raise ZeroDivisionError
    model.loss(torch.tensor([1])).backward()
    assert not model.large.weight.grad.is_sparse
