"""Linear maps on CPUs: as convolutions, over blocks of rows, prepacked and in 8 bits."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bert_core.config import ModelConfig
from bert_core.model.cpu import linear as cpu_linear
from bert_core.model.cpu.linear import (
    ROWS_AT_ONCE,
    Int8Linear,
    PrepackedLinear,
    as_convolution,
    filled_up,
    in_blocks,
    linear_gradients,
    onednn_is_faster_here,
    weight_levels,
)
from bert_core.model.encoder import Encoder
from bert_core.model.layout import Packed, Padded
from bert_core.model.operations import Linear


@pytest.fixture
def on_such_a_cpu(monkeypatch):
    """Has this machine compute convolutions, whatever its CPU."""
    monkeypatch.setattr("bert_core.model.cpu.linear.onednn_is_faster_here", lambda: True)


@pytest.fixture
def convolved(monkeypatch):
    """Numbers of rows that were computed as convolutions."""
    counts = []

    def counting(rows, weight, bias):
        counts.append(len(rows))
        return as_convolution(rows, weight, bias)

    monkeypatch.setattr("bert_core.model.cpu.linear.as_convolution", counting)
    return counts


def value_and_gradients(compute, rows, linear):
    rows = rows.detach().clone().requires_grad_()
    torch.manual_seed(1)
    found = compute(rows, linear.weight, linear.bias)
    parameters = [p for p in (linear.weight, linear.bias) if p is not None]
    return found, *torch.autograd.grad(found, [rows, *parameters], torch.randn_like(found))


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("count", [256, 320, 4224])
def test_the_same_as_a_linear_map_to_rounding(count, threads, has_bias):
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        linear, rows = Linear(48, 80, bias=has_bias), torch.randn(count, 48)
        found = value_and_gradients(as_convolution, rows, linear)
        for value, wanted in zip(found, value_and_gradients(F.linear, rows, linear), strict=True):
            assert value.shape == wanted.shape and value.is_contiguous()
            torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-5 * count**0.5)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("count", [256, 300])
@pytest.mark.usefixtures("on_such_a_cpu")
def test_gradients_without_autograd(count):
    torch.manual_seed(0)
    linear, rows = Linear(48, 80, bias=False), torch.randn(count, 48)
    found, *wanted = value_and_gradients(F.linear, rows, linear)
    torch.manual_seed(1)
    whole = torch.zeros(90, 48)
    of_rows = linear_gradients(torch.randn_like(found), rows, linear.weight.detach(), whole[5:85])
    for value, expected in zip((of_rows, whole[5:85]), wanted, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=2e-4)
    assert not whole[:5].any() and not whole[85:].any()


def test_rows_that_do_not_lie_end_to_end():
    linear, rows = Linear(48, 80), torch.randn(48, 256).t()
    found = as_convolution(rows, linear.weight, linear.bias)
    torch.testing.assert_close(found, linear(rows), rtol=1e-5, atol=1e-5)


def test_numbers_of_rows_are_few_and_little_larger():
    for count in [*range(1, 700), 2047, 2048, 2049, 5000, 100_000]:
        filled = filled_up(count)
        assert count <= filled == filled_up(filled)
        assert filled % 16 == 0 or count < 256
        assert filled - count < max(64, count / 31)
    assert len({filled_up(count) for count in range(256, 8193)}) < 100


@pytest.mark.usefixtures("on_such_a_cpu")
def test_what_is_a_convolution(convolved):
    linear = Linear(8, 8)
    for count in (255, 256, 257, 320, 2112, 4160):
        assert linear(torch.randn(count, 8)).shape == (count, 8)
    assert convolved == [256, 320, 2112]
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(torch.randn(256, 8)).dtype == torch.bfloat16
    linear.double()(torch.randn(256, 8, dtype=torch.float64))
    assert len(convolved) == 3


CONFIG = ModelConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=64,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def states_and_gradients(layout, places):
    torch.manual_seed(0)
    encoder = Encoder(CONFIG)
    count = int(layout.lengths.sum()) if isinstance(layout, Packed) else layout.mask.numel()
    ids, types, positions = torch.randint(50, (count,)), torch.zeros(count).long(), torch.arange(64)
    positions = positions.repeat(count // 64 + 1)[:count]
    states = encoder(ids, types, positions, layout, places)
    every = encoder.hidden_states(ids, types, positions, layout, layers=[0, 1, 2], places=places)
    parameters = dict(encoder.named_parameters())
    gradients = torch.autograd.grad(states.square().sum(), list(parameters.values()))
    return states, *every, *gradients


@pytest.mark.parametrize("places", [None, torch.arange(0, 300)], ids=["all", "some"])
@pytest.mark.parametrize(
    "layout",
    [
        Packed.from_lengths([60] * 8 + [21]),  # 501 tokens, filled up to 512
        Packed.from_lengths([64] * 8),
        Padded.from_lengths([60, 3, 64, 20, 9, 30], 64),
    ],
    ids=["filled up", "full", "padded"],
)
@pytest.mark.parametrize("attention_dropout", [False, True])
def test_an_encoder_is_the_same_to_rounding(
    request, monkeypatch, convolved, layout, places, attention_dropout
):
    if attention_dropout:  # its own code, which with so little drops nothing
        rare = CONFIG.model_copy(update={"attention_probs_dropout_prob": 1e-9})
        monkeypatch.setattr(f"{__name__}.CONFIG", rare)
    monkeypatch.setattr("bert_core.model.cpu.linear.onednn_is_faster_here", lambda: False)
    wanted = states_and_gradients(layout, places)
    assert not convolved
    request.getfixturevalue("on_such_a_cpu")
    found = states_and_gradients(layout, places)
    # Two passes, of two layers of four maps each.
    assert len(convolved) == 16 and set(convolved) <= {320, 384, 512}
    for value, expected in zip(found, wanted, strict=True):
        assert value.shape == expected.shape
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=2e-4)


@pytest.mark.usefixtures("on_such_a_cpu")
def test_few_tokens_are_left_as_they_are(convolved):
    states_and_gradients(Packed.from_lengths([60, 21]), None)
    assert not convolved


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 40, 255, 256, 257, 300, 1000])
def test_every_row_is_computed_once_and_in_its_place(count):
    rows, sizes = torch.randn(count, 3), []

    def compute(some):
        sizes.append(len(some))
        return torch.cat([some * 2, some[:, :1]], 1)

    found = in_blocks(compute, rows, 4)
    assert found.shape == (count, 4)
    assert torch.equal(found[:, :3], rows * 2) and torch.equal(found[:, 3], rows[:, 0])
    assert all(size <= 32 or (size % 8 == 0 and size <= ROWS_AT_ONCE) for size in sizes)
    assert sum(sizes) < count + 8


GROWTH = """
import psutil, torch
from torch import nn
from bert_core.model.cpu.linear import Int8Linear, PrepackedLinear, onednn_is_faster_here
torch.set_num_threads(1)

def compute(linear, counts):
    for count in counts:
        linear(torch.randn(count, 384))
    return psutil.Process().memory_info().rss

for kind in (PrepackedLinear, Int8Linear):
    with torch.inference_mode():
        linear = kind(nn.Linear(384, 1536))
        before = compute(linear, [*range(1, 33), *range(40, 257, 8)])
        print(compute(linear, range(33, 600, 3)) - before)
print(onednn_is_faster_here())
"""


@pytest.mark.slow
def test_in_another_process_other_numbers_of_rows_take_no_more_memory():
    command = [sys.executable, "-c", GROWTH]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert max(map(int, found[:2])) < 60e6  # several times that with code for each number
    # Processes of a machine agree: whoever goes on after a kill computes as before.
    assert found[2] == str(onednn_is_faster_here())


@pytest.fixture
def fixed_linear():
    torch.manual_seed(0)
    return nn.Linear(96, 160)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("num_rows", [0, 1, 64, 300])
def test_prepacked_is_the_same_to_rounding(fixed_linear, num_rows, has_bias):
    if not has_bias:
        fixed_linear.bias = None
    rows = torch.randn(96, num_rows).t()  # they do not lie end to end
    with torch.inference_mode():
        found, wanted = PrepackedLinear(fixed_linear)(rows), fixed_linear(rows)
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("can_be_laid_out", [cpu_linear._can_be_laid_out(torch.bfloat16), False])
def test_prepacked_is_as_autocast_has_it(fixed_linear, monkeypatch, can_be_laid_out):
    monkeypatch.setattr(cpu_linear, "_can_be_laid_out", lambda _: can_be_laid_out)
    packed, rows = PrepackedLinear(fixed_linear), torch.randn(33, 96)
    for _ in range(2):  # laid out once, and kept
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            found, wanted = packed(rows), fixed_linear(rows)
        assert found.dtype == wanted.dtype == torch.bfloat16
        torch.testing.assert_close(found.float(), wanted.float(), atol=0.02, rtol=0)
    torch.testing.assert_close(packed(rows), fixed_linear(rows), atol=1e-5, rtol=0)  # float32 again


def test_gradients_of_what_goes_in(fixed_linear):
    first, second = (torch.randn(4, 96).requires_grad_() for _ in range(2))
    second.data.copy_(first.data)
    PrepackedLinear(fixed_linear)(first).square().sum().backward()
    fixed_linear(second).square().sum().backward()
    torch.testing.assert_close(first.grad, second.grad)


def test_the_state_of_a_prepacked_map_is_that_of_a_linear_map(fixed_linear):
    state = PrepackedLinear(fixed_linear).state_dict()
    assert state.keys() == fixed_linear.state_dict().keys()
    for name, value in fixed_linear.state_dict().items():
        assert torch.equal(state[name], value)


def test_the_private_operation_is_what_torch_computes(fixed_linear):
    """Torch's own names for it begin with an underscore: a version without them fails here."""
    rows = torch.randn(3, 96)
    packed = torch.ops.mkldnn._reorder_linear_weight(fixed_linear.weight.detach(), None)
    found = torch.ops.mkldnn._linear_pointwise(rows, packed, fixed_linear.bias, "none", [], "")
    torch.testing.assert_close(
        found, F.linear(rows, fixed_linear.weight, fixed_linear.bias), atol=1e-5, rtol=0
    )


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
def test_int8_is_close_to_float32_in_every_row(inputs, outputs, bias):
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


def test_int8_gradients_are_those_of_the_weights():
    linear, rows = linear_map(), some_rows(5).requires_grad_()
    quantized = Int8Linear(linear)
    (found,) = torch.autograd.grad(quantized(rows)[:, 3].sum(), rows)
    wanted = linear.weight[3].expand_as(found)
    assert relative_error(found, wanted) < 0.01


def test_int8_holds_a_quarter_of_the_bytes():
    linear = linear_map(1536, 384)
    quantized = Int8Linear(linear)
    held = sum(each.nbytes for each in (quantized.weight, *quantized.buffers()))
    assert held < 0.27 * linear.weight.nbytes
    assert not list(Int8Linear(linear).parameters())


OTHER_CPU = """
import torch
from bert_core.model.cpu.linear import Int8Linear, weight_levels
torch.manual_seed(0)
linear = torch.nn.Linear(384, 96).requires_grad_(False)
linear.weight.copy_(linear.weight.abs())
rows = torch.rand(40, 384) * torch.randint(0, 2, (40, 384))
found, wanted = Int8Linear(linear)(rows), linear(rows)
print(weight_levels(), ((found - wanted).norm() / wanted.norm()).item())
"""


@pytest.mark.parametrize(
    "instructions",
    [
        "AVX2",
        pytest.param("AVX512_CORE", marks=pytest.mark.slow),
        pytest.param("SSE41", marks=pytest.mark.slow),
    ],
)
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


def test_without_onednn_products_are_the_same(monkeypatch):
    weight = torch.randint(-63, 64, (40, 384), dtype=torch.int8)
    scale = torch.rand(40)
    rows = torch.randint(0, 255, (9, 384)).float()
    found = cpu_linear.WholeWeight(weight, scale)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    plain = cpu_linear.WholeWeight(weight, scale)
    assert torch.equal(found.dense, weight) and torch.equal(plain.dense, weight)
    assert torch.equal(found.products(rows), plain.products(rows))
    assert torch.equal(found.products(rows), ((rows - 127) @ weight.float().T) * scale)
