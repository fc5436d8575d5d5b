from itertools import accumulate

import pytest
import torch
import torch.distributed as dist

from benchmarks.scaling.hardware import H200, NVLINK, Fabric
from benchmarks.scaling.model import (
    BACKWARD_SHARE,
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    Bucket,
    all_reduce_seconds,
    exposed_seconds,
    gradient_buckets,
    gradient_tensors,
    num_parameters,
    row_flops,
    slowest_of,
    speed_from,
    step_seconds,
)
from bert_core.config import SIZES
from bert_core.model.bert import Bert


@pytest.fixture(scope="module", params=("tiny", "base", "large"))
def sized(request):
    """A size's configuration, and its model without memory."""
    config = SIZES[request.param]
    with torch.device("meta"):
        return config, Bert.for_pretraining(config)


def test_every_tensor_of_the_model_is_counted(sized):
    config, model = sized
    sizes = sorted(each.numel() for each in model.parameters())
    assert sorted(size for group in gradient_tensors(config) for size in group) == sizes
    assert num_parameters(config) == sum(sizes)


def test_buckets_are_those_of_torch(sized):
    config, _ = sized
    sizes = [size for group in gradient_tensors(config) for size in group]
    tensors = [torch.empty(size, device="meta") for size in sizes]
    limits = [FIRST_BUCKET_BYTES, BUCKET_BYTES]
    indices, _ = dist._compute_bucket_assignment_by_size(tensors, limits)
    found = gradient_buckets(config)
    assert [bucket.num_bytes for bucket in found] == [
        4 * sum(sizes[index] for index in bucket) for bucket in indices
    ]


def test_the_table_of_words_is_sent_last_when_all_is_computed(sized):
    config, _ = sized
    buckets = gradient_buckets(config)
    ready = [bucket.ready for bucket in buckets]
    assert ready == sorted(ready) and ready[-1] == pytest.approx(1.0)
    assert buckets[-1].num_bytes >= 4 * config.vocab_size * config.hidden_size


def test_an_all_reduce_sends_all_but_a_part_twice():
    fabric = Fabric(4, 100.0, 10.0, 0.0, 0.0)
    assert all_reduce_seconds(800.0, fabric, 1) == 0
    assert all_reduce_seconds(800.0, fabric, 4) == pytest.approx(2 * 800 * 3 / 4 / 100)
    # Between two domains a quarter each, over the slower network.
    assert all_reduce_seconds(800.0, fabric, 8) == pytest.approx(2 * 200 * 1 / 2 / 10)


def test_hops_are_a_trees():
    fabric = Fabric(8, 1e9, 1e9, 1.0, 0.5)
    assert all_reduce_seconds(0.0, fabric, 8) == 1.0
    assert all_reduce_seconds(0.0, fabric, 64) == 1.0 + 2 * 3 * 0.5


def test_what_is_exposed():
    fabric = Fabric(2, 1.0, 1.0, 0.0, 0.0)  # a bucket of b bytes takes b seconds on two devices
    buckets = (Bucket(4.0, 0.0), Bucket(1.0, 1.0))
    assert exposed_seconds(buckets, fabric, 2, 100.0) == 1.0  # the last bucket alone
    assert exposed_seconds(buckets, fabric, 2, 3.0) == 2.0  # the others did not get through
    assert exposed_seconds(buckets, fabric, 2, 0.0) == 5.0  # nothing is hidden
    assert exposed_seconds(buckets, fabric, 1, 3.0) <= 0.0


def test_a_device_reaches_the_rate_that_was_measured_and_less_with_fewer_tokens():
    config = SIZES["base"]
    full, few = row_flops(config, 512, 128), row_flops(config, 4, 128)
    speed = speed_from(400e12, full, 7e-3)
    assert full / speed.seconds(full) == pytest.approx(400e12)
    assert few / speed.seconds(few) < 0.2 * 400e12
    with pytest.raises(ValueError, match="fixed"):
        speed_from(400e12, few, 7e-3)


def test_flops_of_a_token_are_those_of_the_reference():
    """0.5463 and 1.9921 GFLOP a token, less what the last layer leaves out for unread tokens."""
    for model, length, predictions, expected in (
        ("base", 128, 19, 0.5463),
        ("large", 512, 77, 1.9921),
    ):
        config = SIZES[model]
        unread = 3 * (2 * config.hidden_size**2 + 4 * config.hidden_size * config.intermediate_size)
        left_out = unread * (length - predictions - 1) / length
        per_token = (row_flops(config, 1, length) / length + left_out) / 1e9
        assert per_token == pytest.approx(expected, rel=5e-3)


def test_waiting_is_for_the_slowest_of_all():
    torch.manual_seed(0)
    for devices in (8, 1_024):
        drawn = torch.randn(2_000, devices).amax(1).mean().item()
        assert slowest_of(devices) == pytest.approx(drawn, rel=0.02)
    assert slowest_of(1) == 0


def test_a_step_adds_up():
    buckets = gradient_buckets(SIZES["base"])
    step = step_seconds(buckets, H200, 64, 0.05, micro_batches=2, optimizer_bytes=4.3e9)
    assert step.computing == pytest.approx(0.1)
    assert step.optimizer == pytest.approx(1e-3)
    assert step.exposed == exposed_seconds(buckets, NVLINK, 64, BACKWARD_SHARE * 0.05)
    parts = (step.computing, step.waiting, step.exposed, step.optimizer)
    assert step.total == list(accumulate(parts))[-1]
    short = step_seconds(buckets, H200, 64, 2e-3, micro_batches=2, optimizer_bytes=0)
    assert short.exposed == exposed_seconds(buckets, NVLINK, 64, BACKWARD_SHARE * 2e-3)
    assert short.exposed > step.exposed  # behind the last micro-batch alone
    behind = step_seconds(buckets, H200, 64, 0.05, optimizer_bytes=0, overlaps=False).exposed
    assert behind == pytest.approx(
        sum(all_reduce_seconds(bucket.num_bytes, NVLINK, 64) for bucket in buckets)
    )
