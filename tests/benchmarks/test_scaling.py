"""The formula behind docs/scaling.md, compared with torch and with MLPerf's published rates."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from kept_bytes import full_rows, kept_bytes, kept_bytes_through_xla

from benchmarks import scaling
from benchmarks.scaling import (
    FAST,
    H200,
    NVLINK,
    PAPER,
    V5E,
    Bucket,
    Fabric,
    activation_bytes,
    all_reduce_seconds,
    device_bytes,
    efficiency,
    exposed_seconds,
    gradient_buckets,
    gradient_tensors,
    known_rates,
    micro_batch_seconds,
    most_rows,
    num_parameters,
    plan,
    row_flops,
    slowest_of,
    step_seconds,
)
from bert_core.config import SIZES, ModelConfig, training_flops
from bert_core.errors import UserError
from bert_core.model.bert import Bert
from workflows.pretraining.settings import PretrainSettings
from workflows.settings import parse_command_line

LOW, AIM, HIGH = (
    scaling.assumed_rate(str(share), share * H200.peak_flops_per_second)
    for share in scaling.ASSUMED_SHARES
)


@pytest.fixture
def copy(repository, tmp_path):
    """The files that the command reads and writes."""
    (tmp_path / "docs").mkdir()
    for name in (scaling.DOCUMENT, scaling.PICTURE):
        shutil.copy(repository / name, tmp_path / name)
    shutil.copytree(repository / "benchmarks/results", tmp_path / "benchmarks/results")
    return tmp_path


def measure(root, device="NVIDIA H200", **tokens_per_second):
    """Writes results as if these models had been measured on a device."""
    for preset, rate in tokens_per_second.items():
        result = {
            "settings": {"preset": preset, "sequence_length": 128},
            "surroundings": {"device": device},
            "model_flops_per_step": 65_536 * {"base": 0.54e9, "large": 1.88e9}[preset],
            "real_tokens_per_step": 65_536,
            "arms": {"ours, fast": {"tokens_per_second": rate}, "transformers": {}},
        }
        path = root / f"benchmarks/results/pretraining-cuda-{preset}-of-a-test.json"
        path.write_text(json.dumps(result))


def test_the_page_and_its_picture_are_as_generated():
    """If this fails: run `python -m benchmarks.scaling --write` and look at what it changed."""
    assert scaling.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (scaling.DOCUMENT, "| large | 8 |", "| large | 9 |"),
        (scaling.PICTURE, "curves ", "curves 0"),
    ],
)
def test_a_change_by_hand_is_reported(copy, capsys, name, old, new):
    (copy / name).write_text((copy / name).read_text().replace(old, new))
    assert scaling.main(["--check"], copy) == 1
    assert name in capsys.readouterr().out


def test_measured_rates_replace_the_assumed_ones(copy):
    for path in (copy / "benchmarks/results").glob("pretraining-cuda-*.json"):
        path.unlink()
    assert len(known_rates(copy)) == 3
    measure(copy, base=800_000)
    assert len(known_rates(copy)) == 3  # the page is about both models
    measure(copy, "NVIDIA H100", large=220_000)
    assert len(known_rates(copy)) == 3  # another card
    measure(copy, large=220_000)
    (rate,) = known_rates(copy)
    assert rate.of("large", 512) == pytest.approx(220_000 * 1.88e9)
    assert scaling.main(["--check"], copy) == 1
    assert scaling.main(["--write"], copy) == 0
    assert scaling.main(["--check"], copy) == 0
    text = (copy / scaling.DOCUMENT).read_text()
    assert "hours, measured" in text and "is an assumption" not in text


# --- a step -----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=("tiny", "base", "large"))
def sized(request):
    """A size's configuration, and its model without memory."""
    config = SIZES[request.param]
    with torch.device("meta"):
        return config, Bert.for_pretraining(config)


def test_gradients_are_those_of_the_model_in_the_buckets_of_torch(sized):
    config, model = sized
    sizes = [size for group in gradient_tensors(config) for size in group]
    assert sorted(sizes) == sorted(parameter.numel() for parameter in model.parameters())
    assert num_parameters(config) == sum(sizes)
    tensors = [torch.empty(size, device="meta") for size in sizes]
    limits = [scaling.FIRST_BUCKET_BYTES, scaling.BUCKET_BYTES]
    indices, _ = dist._compute_bucket_assignment_by_size(tensors, limits)
    buckets = gradient_buckets(config)
    assert [bucket.num_bytes for bucket in buckets] == [
        4 * sum(sizes[index] for index in bucket) for bucket in indices
    ]
    ready = [bucket.ready for bucket in buckets]
    assert ready == sorted(ready) and ready[-1] == pytest.approx(1.0)
    assert buckets[-1].num_bytes >= 4 * config.vocab_size * config.hidden_size  # the words


def test_an_all_reduce_sends_all_but_a_part_twice_and_waits_for_its_hops():
    fabric = Fabric(4, 100.0, 10.0, 0.0, 0.0)
    assert all_reduce_seconds(800.0, fabric, 1) == 0
    assert all_reduce_seconds(800.0, fabric, 4) == pytest.approx(2 * 800 * 3 / 4 / 100)
    # Between two domains a quarter each, over the slower network.
    assert all_reduce_seconds(800.0, fabric, 8) == pytest.approx(2 * 200 * 1 / 2 / 10)
    latency = Fabric(8, 1e9, 1e9, 1.0, 0.5)
    assert all_reduce_seconds(0.0, latency, 8) == 1.0
    assert all_reduce_seconds(0.0, latency, 64) == 1.0 + 2 * 3 * 0.5


def test_the_backward_pass_hides_all_but_the_last_bucket():
    fabric = Fabric(2, 1.0, 1.0, 0.0, 0.0)  # a bucket of b bytes takes b seconds on two devices
    buckets = (Bucket(4.0, 0.0), Bucket(1.0, 1.0))
    assert exposed_seconds(buckets, fabric, 2, 100.0) == 1.0  # the last bucket alone
    assert exposed_seconds(buckets, fabric, 2, 3.0) == 2.0  # the others did not get through
    assert exposed_seconds(buckets, fabric, 2, 0.0) == 5.0  # nothing is hidden
    assert exposed_seconds(buckets, fabric, 1, 3.0) <= 0.0


def test_a_device_reaches_the_measured_rate_and_less_with_fewer_tokens():
    config = SIZES["base"]
    full, few = row_flops(config, 512, 128), row_flops(config, 4, 128)
    assert full / micro_batch_seconds(full, 400e12, full, 7e-3) == pytest.approx(400e12)
    assert few / micro_batch_seconds(few, 400e12, full, 7e-3) < 0.2 * 400e12
    with pytest.raises(ValueError, match="fixed"):
        micro_batch_seconds(few, 400e12, few, 7e-3)


def test_all_wait_for_the_slowest():
    torch.manual_seed(0)
    for devices in (8, 1_024):
        drawn = torch.randn(2_000, devices).amax(1).mean().item()
        assert slowest_of(devices) == pytest.approx(drawn, rel=0.02)
    assert slowest_of(1) == 0


def test_a_step_adds_up():
    buckets = gradient_buckets(SIZES["base"])
    step = step_seconds(buckets, H200, 64, 0.05, 2, 4.3e9)
    assert step.computing == pytest.approx(0.1)
    assert step.optimizer == pytest.approx(1e-3)
    assert step.exposed == exposed_seconds(buckets, NVLINK, 64, scaling.BACKWARD_SHARE * 0.05)
    parts = (step.computing, step.waiting, step.exposed, step.optimizer)
    assert step.total == pytest.approx(sum(parts))
    # The gradients travel behind the last micro-batch alone.
    assert step_seconds(buckets, H200, 64, 2e-3, 2, 0).exposed > step.exposed


MEAN_LENGTH = 254.5  # real tokens of a sequence in MLPerf's data
FP8_RATE, FP8_GAIN = 630e12, 1.15  # FLOP/s with which 8 H100 reach their published rate (v4.1)


@pytest.mark.parametrize(
    ("devices", "sequences", "published", "tolerance"),
    [(512, 6, 272, 0.01), (3_472, 4, 220, 0.15)],
    ids=["fitted", "predicted"],
)
def test_the_fixed_part_of_a_layer_is_that_of_mlperfs_published_rates(
    devices, sequences, published, tolerance
):
    """Sequences a second and GPU of BERT large, NVIDIA's closed division, rounds v3.0 and v4.1.

    Both submissions compute in 16 bits, send 16-bit gradients in five parts behind the backward
    pass and share optimizer states out over 8 GPUs.
    """
    config, device = SIZES["large"], replace(H200, memory_bytes_per_second=3e12)
    tokens = round(sequences * MEAN_LENGTH)
    flops = training_flops(
        config,
        num_tokens=tokens,
        sum_of_squared_lengths=sequences * 1.2 * MEAN_LENGTH**2,
        num_predictions=256 * sequences,
        num_rows=sequences,
        num_read=tokens,
    )
    fixed = scaling.LAYER_SECONDS * config.num_hidden_layers
    weights = num_parameters(config)
    buckets = gradient_buckets(config, 2, 2 * weights / 5)
    seconds = fixed + flops / (FP8_RATE / FP8_GAIN)
    step = step_seconds(buckets, device, devices, seconds, 1, 46 * weights / 8)
    assert sequences / step.total == pytest.approx(published, rel=tolerance)


# --- memory -----------------------------------------------------------------------------------


def a_model(layers, hidden):
    return ModelConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=hidden // 64,
        intermediate_size=4 * hidden,
        vocab_size=1_000,
        attention_probs_dropout_prob=0.0,
    )


def logits_and_casts(config, predictions):
    layers, hidden = config.num_hidden_layers, config.hidden_size
    casts = 2 * (layers * 12 * hidden**2 + 2 * hidden**2 + config.vocab_size * hidden)
    return scaling.KEPT_LOGIT_BYTES * predictions * config.vocab_size + casts


@pytest.mark.parametrize(
    ("layers", "hidden", "rows", "length"), [(1, 128, 4, 64), (3, 128, 8, 64), (2, 192, 4, 128)]
)
def test_the_formula_is_what_torch_keeps(layers, hidden, rows, length):
    config = a_model(layers, hidden)
    batch = full_rows(config, rows, length)
    predictions = len(batch.masked_ids)
    on_cpu = {"embedding_mask": 4, "layer_mask": 2, "head": 8}
    expected = activation_bytes(config, rows * length, predictions, rows, **on_cpu)
    expected += logits_and_casts(config, predictions)
    assert kept_bytes(Bert.for_pretraining(config), batch) == pytest.approx(expected, rel=0.01)


@pytest.mark.slow
def test_through_xla_about_as_much_is_kept_as_on_cuda(in_xla):
    config = a_model(3, 128)
    batch = full_rows(config, 8, 128)
    predictions = len(batch.masked_ids)
    expected = activation_bytes(config, 8 * 128, predictions, 8)
    expected += logits_and_casts(config, predictions)
    found = in_xla(kept_bytes_through_xla, Bert.for_pretraining(config), batch)
    assert found == pytest.approx(expected, rel=0.1)


def test_as_many_rows_as_fit():
    config = SIZES["large"]
    for memory_bytes, length in ((16e9, 512), (141e9, 128)):
        most = most_rows(config, length, memory_bytes)
        assert device_bytes(config, most, length) <= memory_bytes
        assert device_bytes(config, most + 1, length) > memory_bytes
    assert most_rows(config, 512, 4e9) == 0


@pytest.mark.parametrize("preset", ["base-fast", "small"])
def test_packed_presets_fit_a_gpu_in_every_phase(preset):
    """A later phase that does not fit would fail after most of a run."""
    settings = parse_command_line(PretrainSettings, ["--preset", preset])
    assert settings.batch.packed
    config = settings.architecture(settings.vocabulary_size, 0)
    for phase in settings.phases:
        rows = settings.batch.micro_batch_size
        assert device_bytes(config, rows, phase.sequence_length) < 79e9
        # As infra/ has it where GPUs are L4s, of which PyTorch sees 22.5 GB.
        assert device_bytes(config, 64, phase.sequence_length) < 22e9


def test_the_page_names_the_micro_batch_of_the_preset():
    batch = parse_command_line(PretrainSettings, ["--preset", "base-fast"]).batch
    assert batch.micro_batch_size == scaling.PRESET_ROWS
    assert batch.global_batch_size == FAST.rows == 16 * batch.rows_of_a_bin


def test_the_formula_of_the_page():
    config = SIZES["base"]
    hidden, heads, layers = 768, 12, 12
    token = (layers - 1) * (38 * hidden + 4 * heads + 16) + 15 * hidden + 4 * heads + 32
    assert activation_bytes(config, 1_000, 0, 0) == 1_000 * token
    assert activation_bytes(config, 0, 0, 1) == 30 * hidden + 24
    assert activation_bytes(config, 0, 1, 0) == 40 * hidden + 40


# --- whole runs -------------------------------------------------------------------------------


def test_one_device_takes_what_its_rate_says():
    """FLOPs of the run over the rate, besides the optimizer and the loader."""
    assert PAPER.slots == FAST.slots == pytest.approx(42.6e9, rel=2e-3)
    run = plan("base", FAST, H200, 1, AIM)
    config = SIZES["base"]
    flops = sum(steps * row_flops(config, FAST.rows, length) for length, steps in FAST.phases)
    hours = flops / AIM.of("base", 128) / scaling.LOADER_SHARE / 3600
    assert hours < run.hours < 1.01 * hours
    assert run.dollars == pytest.approx(run.hours * H200.dollars_per_hour)


def test_devices_without_a_row_are_neither_used_nor_paid_for():
    few, many = (plan("base", PAPER, H200, devices, AIM) for devices in (256, 1_024))
    assert (many.phases[0].used, many.phases[0].rows) == (256, 1)
    assert few.dollars == many.dollars
    kept = [efficiency("base", PAPER, H200, devices, AIM) for devices in (256, 1_024)]
    assert kept[1] == pytest.approx(kept[0] / 4)


@pytest.mark.parametrize("model", scaling.MODELS)
@pytest.mark.parametrize("devices", [1, 8, 1_024])
def test_every_row_is_computed_in_micro_batches_that_fit(model, devices):
    run = plan(model, FAST, V5E, devices, scaling.assumed_rate("", 90e12))
    for phase in run.phases:
        assert phase.used * phase.rows >= FAST.rows
        assert phase.micro_rows <= phase.rows
        assert phase.memory_bytes <= V5E.memory_bytes


def test_a_device_too_small_for_a_row_is_an_error():
    with pytest.raises(UserError, match="no row fits"):
        plan("large", FAST, replace(V5E, memory_bytes=1e9), 8, AIM)


@pytest.mark.parametrize("model", scaling.MODELS)
def test_more_devices_and_higher_rates_are_faster_and_keep_less_of_ideal(model):
    counts = (1, 8, 64, 1_024)
    kept = [efficiency(model, FAST, H200, devices, AIM) for devices in counts]
    assert kept[0] == 1 and kept == sorted(kept, reverse=True)
    hours = [plan(model, FAST, H200, devices, AIM).hours for devices in counts]
    assert hours == sorted(hours, reverse=True)
    hours = [plan(model, FAST, H200, 8, rate).hours for rate in (LOW, AIM, HIGH)]
    assert hours == sorted(hours, reverse=True)
