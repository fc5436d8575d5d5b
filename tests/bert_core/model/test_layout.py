from dataclasses import dataclass, fields

import pytest
import torch

from bert_core.model.layout import Packed, Padded, pinned


def test_packed_knows_where_sequences_begin():
    layout = Packed.from_lengths([3, 3, 5, 0, 2, 0])
    assert layout.cu_seqlens.tolist() == [0, 3, 6, 11, 11, 13, 13]
    assert layout.cu_seqlens.dtype == torch.int32
    assert layout.runs == ((2, 3), (1, 5), (1, 2))
    assert layout.max_length == 5
    assert layout.lengths.tolist() == [3, 3, 5, 0, 2, 0]
    # The empty ones point at some token of the batch.
    assert layout.first_positions.tolist() == [0, 3, 6, 11, 11, 12]
    assert layout.first_positions.dtype == torch.int64


def test_packed_leaves_its_runs_behind_on_another_device():
    layout = Packed.from_lengths([3, 3], 8)
    assert layout.to("cpu").runs == ((2, 3),)
    moved = layout.to("meta")
    assert (moved.runs, moved.max_length, moved.cu_seqlens.device.type) == ((), 8, "meta")


def test_padded_knows_what_is_real():
    layout = Padded.from_lengths([3, 1], 3)
    assert layout.mask.tolist() == [[True, True, True], [True, False, False]]
    assert not layout.is_full
    assert Padded.from_lengths([3, 3], 3).is_full
    assert layout.first_positions.tolist() == [0, 3]
    assert layout.lengths.tolist() == [3, 1]
    assert layout.to("meta").mask.device.type == "meta"


def test_refuses_lengths_out_of_bounds():
    with pytest.raises(ValueError, match=r"0\.\.4"):
        Packed.from_lengths([5], 4)
    with pytest.raises(ValueError, match=r"0\.\.4"):
        Padded.from_lengths([2, 5], 4)
    with pytest.raises(ValueError, match="lengths"):
        Packed.from_lengths([-1])


@dataclass(frozen=True)
class Batch:
    ids: torch.Tensor
    layout: Packed | Padded
    count: int


@pytest.mark.parametrize("layout", [Packed.from_lengths([3, 2], 4), Padded.from_lengths([3, 2], 3)])
def test_every_tensor_is_pinned_and_nothing_else_changes(layout, monkeypatch):
    """Locked memory takes CUDA: here a copy stands for it, whose place tells it apart."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    batch = Batch(torch.arange(5), layout, 5)
    found = pinned(batch)
    assert torch.equal(found.ids, batch.ids) and found.count == 5
    for field in fields(layout):
        before, after = getattr(layout, field.name), getattr(found.layout, field.name)
        if isinstance(before, torch.Tensor):
            assert torch.equal(before, after) and before.data_ptr() != after.data_ptr()
        else:
            assert before == after
    assert found.ids.data_ptr() != batch.ids.data_ptr()
