import pytest
import torch

from bert_core.model.layout import Packed, Padded


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
