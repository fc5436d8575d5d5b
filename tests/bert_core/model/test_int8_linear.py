"""The linear map in 8 bits: close to float32, and for each row alone."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from bert_core.model.int8_linear import Int8Linear, weight_levels


def linear_map(inputs=384, outputs=96, *, bias=True):
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)


def some_rows(count, inputs=384):
    """Rows of very different sizes, as hidden states have."""
    random = torch.Generator().manual_seed(1)
    sizes = torch.logspace(-3, 3, count).unsqueeze(1)
    return torch.randn(count, inputs, generator=random) * sizes


def relative_error(found, wanted):
    return ((found - wanted).norm(dim=1) / wanted.norm(dim=1)).max().item()


@pytest.mark.parametrize(("inputs", "outputs"), [(384, 1152), (1536, 384), (31, 7)])
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_close_to_float32_in_every_row(inputs, outputs, bias):
    linear = linear_map(inputs, outputs, bias=bias)
    rows = some_rows(40, inputs)
    if bias:
        linear.bias *= 1e-3  # or it hides the smallest rows
    assert relative_error(Int8Linear(linear)(rows), linear(rows)) < 0.03


def test_values_on_one_side_of_zero_use_the_whole_range():
    linear, rows = linear_map(), some_rows(1) + torch.randn(40, 384)
    quantized = Int8Linear(linear)
    rounded = quantized.weight * quantized.scale.unsqueeze(1)
    found, wanted = quantized(rows + 100) - linear.bias, (rows + 100) @ rounded.T
    assert relative_error(found - wanted + rows @ rounded.T, rows @ rounded.T) < 0.02


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_has_the_same_outputs_alone_and_in_any_company(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        quantized, rows = Int8Linear(linear_map(384, 383)), some_rows(1000)
        together = quantized(rows)
        for number in (0, 1, 255, 256, 500, 999):
            assert torch.equal(quantized(rows[number : number + 1])[0], together[number])
        for count in (2, 17, 255, 257, 640):
            assert torch.equal(quantized(rows[-count:]), together[-count:])
    finally:
        torch.set_num_threads(before)


def test_rows_without_a_range_are_exact():
    linear = linear_map()
    rows = torch.tensor([[0.0], [1e-30], [5.0], [1000.0]]).expand(-1, 384).contiguous()
    found, quantized = Int8Linear(linear)(rows), Int8Linear(linear)
    rounded = quantized.weight * quantized.scale.unsqueeze(1)
    torch.testing.assert_close(found, rows @ rounded.T + linear.bias, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(found[0], linear.bias)


def test_values_far_from_zero_do_not_leave_the_range():
    quantized = Int8Linear(linear_map())
    rounded = quantized.weight * quantized.scale.unsqueeze(1)
    for size in (1e-4, 1e-3, 1.0):  # the first is near what float32 tells apart there
        rows = 1000 + size * torch.randn(64, 384)
        wanted = rows.double() @ rounded.double().T
        assert (quantized(rows) - quantized.bias - wanted).abs().max() < 0.02 + 0.05 * size


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_stays_so_and_leaves_the_others(value):
    quantized, rows = Int8Linear(linear_map()), some_rows(6)
    wanted = quantized(rows)
    rows[2, 100] = value
    found = quantized(rows)
    assert not found[2].isfinite().any()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(found[others], wanted[others])


def test_no_rows_have_no_outputs():
    assert Int8Linear(linear_map())(torch.empty(0, 384)).shape == (0, 96)


def test_half_precision_rows_are_taken():
    linear, rows = linear_map(), some_rows(9).bfloat16()
    found = Int8Linear(linear)(rows)
    assert found.dtype == torch.float32
    assert relative_error(found, linear(rows.float())) < 0.03


def test_gradients_are_those_of_the_weights():
    linear, rows = linear_map(), some_rows(5).requires_grad_()
    quantized = Int8Linear(linear)
    (found,) = torch.autograd.grad(quantized(rows)[:, 3].sum(), rows)
    wanted = linear.weight[3].expand_as(found)
    assert relative_error(found, wanted) < 0.01


def test_it_holds_a_quarter_of_the_bytes():
    linear = linear_map(1536, 384)
    held = sum(each.nbytes for each in Int8Linear(linear).buffers())
    assert held < 0.27 * linear.weight.nbytes
    assert not list(Int8Linear(linear).parameters())


OTHER_CPU = """
import torch
from bert_core.model.int8_linear import Int8Linear, weight_levels
torch.manual_seed(0)
linear = torch.nn.Linear(384, 96).requires_grad_(False)
linear.weight.copy_(linear.weight.abs())
rows = torch.rand(40, 384) * torch.randint(0, 2, (40, 384))
found, wanted = Int8Linear(linear)(rows), linear(rows)
print(weight_levels(), ((found - wanted).norm() / wanted.norm()).item())
"""


@pytest.mark.parametrize("instructions", ["AVX512_CORE", "AVX2", "SSE41"])
def test_products_are_exact_on_older_cpus_too(instructions):
    """There pairs of products overflow 16 bits: with weights of 8 bits this is off by much."""
    done = subprocess.run(
        [sys.executable, "-c", OTHER_CPU],
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": instructions},
        capture_output=True,
        text=True,
        check=True,
    )
    levels, error = done.stdout.split()
    assert int(levels) in (63, weight_levels())
    assert float(error) < 0.01
