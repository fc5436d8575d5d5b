"""Rows in blocks of few sizes: every row once, in its place, and memory that does not grow."""

import subprocess
import sys

import pytest
import torch

from bert_core.model.row_blocks import ROWS_AT_ONCE, in_blocks


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
from bert_core.model.{module} import {name}
torch.set_num_threads(1)
linear = {name}(nn.Linear(384, 1536))
with torch.inference_mode():
    def compute(counts):
        for count in counts:
            linear(torch.randn(count, 384))
        return psutil.Process().memory_info().rss
    before = compute([*range(1, 33), *range(40, 257, 8)])
    print(compute(range(33, 600)) - before)
"""


@pytest.mark.parametrize(
    ("module", "name"), [("prepacked_linear", "PrepackedLinear"), ("int8_linear", "Int8Linear")]
)
def test_other_numbers_of_rows_take_no_more_memory(module, name):
    code = GROWTH.format(module=module, name=name)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 60e6  # ten times that with code for each number
