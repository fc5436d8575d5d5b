"""The convolution is the linear map, forward and backward, alone and in an encoder."""

import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

from bert_core.config import ModelConfig
from bert_core.model.encoder import Encoder
from bert_core.model.layout import Packed, Padded
from bert_core.model.linear import (
    Linear,
    as_convolution,
    filled_up,
    linear_gradients,
    onednn_is_faster_here,
)


@pytest.fixture
def on_such_a_cpu(monkeypatch):
    """Has this machine compute convolutions, whatever its CPU."""
    monkeypatch.setattr("bert_core.model.linear.onednn_is_faster_here", lambda: True)


@pytest.fixture
def convolved(monkeypatch):
    """Numbers of rows that were computed as convolutions."""
    counts = []

    def counting(rows, weight, bias):
        counts.append(len(rows))
        return as_convolution(rows, weight, bias)

    monkeypatch.setattr("bert_core.model.linear.as_convolution", counting)
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


@pytest.mark.parametrize("count", [*range(1, 700), 2047, 2048, 2049, 5000, 100_000])
def test_numbers_of_rows_are_few_and_little_larger(count):
    filled = filled_up(count)
    assert count <= filled == filled_up(filled)
    assert filled % 16 == 0 or count < 256
    assert filled - count < max(64, count / 31)


def test_there_are_few_numbers_of_rows():
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
    monkeypatch.setattr("bert_core.model.linear.onednn_is_faster_here", lambda: False)
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


def test_processes_of_a_machine_agree():
    """Whoever goes on after a kill computes as before."""
    name = "onednn_is_faster_here"
    code = f"from bert_core.model.linear import {name}; print({name}())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(onednn_is_faster_here())
