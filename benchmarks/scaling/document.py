"""docs/scaling.md, written from the model: tables, checks, and what is taken for granted."""

import textwrap
from dataclasses import replace
from pathlib import Path

from benchmarks.readme.parts import table
from benchmarks.scaling.checks import here_section, mlperf_section, simulation_section
from benchmarks.scaling.hardware import H200, LOOKED_UP, SOURCES, V5E, V6E, Device
from benchmarks.scaling.memory import (
    CAST_BYTES,
    FRAMEWORK_BYTES,
    WEIGHT_BYTES,
    activation_bytes,
    device_bytes,
    logit_bytes,
    most_rows,
)
from benchmarks.scaling.mlperf import TENSORRT_FIXED_SECONDS, fixed_seconds_of_a_layer
from benchmarks.scaling.model import STRAGGLER_SHARE
from benchmarks.scaling.runs import (
    ASSUMED_SHARES,
    DEVICES,
    FAST,
    LOADER_SHARE,
    MICRO_BATCH_TOKENS,
    MODELS,
    PAPER,
    TPU_SHARE,
    Rate,
    Recipe,
    assumed_rates,
    efficiency,
    measured_rate,
    most_devices,
    percent,
    plan,
    same_share,
)
from bert_core.config import SIZES

PICTURE = "scaling.svg"


def rates_of(root: Path) -> list[Rate]:
    """The measured rate alone, or the three that are assumed while there is none."""
    measured = measured_rate(root)
    return [measured] if measured else assumed_rates()


def chosen(rates: list[Rate]) -> Rate:
    """The rate that single figures are told for: the middle one."""
    return rates[len(rates) // 2]


def document(root: Path) -> str:
    """The whole text."""
    rates = rates_of(root)
    parts = [
        _beginning(rates),
        _gpu_section(rates),
        _tpu_section(),
        _memory_section(),
        mlperf_section(),
        simulation_section(chosen(rates)),
        here_section(root),
        _assumptions_section(),
    ]
    return "\n\n".join(_wrapped(block) for block in "\n".join(parts).strip().split("\n\n")) + "\n"


def _wrapped(block: str) -> str:
    """A paragraph in lines of at most 110 characters; tables, titles and pictures as they are."""
    if block.startswith(("|", "#", "!")):
        return block
    return textwrap.fill(block, 110, break_long_words=False, break_on_hyphens=False)


def _beginning(rates: list[Rate]) -> str:
    middle = chosen(rates)
    fast = {n: percent(efficiency("large", FAST, H200, n, middle)) for n in (8, 64, 1_024)}
    if len(rates) == 1:
        said = (
            "The rate of one H200 is the one that `benchmarks.pretraining` measured (`ours, fast`;"
            " benchmarks/results). "
        )
    else:
        shares = ", ".join(f"{percent(share)}" for share in ASSUMED_SHARES)
        said = (
            "**The rate of one H200 is an assumption here**: nothing is measured yet, so there are "
            f"three cases, {shares} of the 788 TFLOP/s of a large matrix product. Once "
            "`benchmarks.pretraining` has run on an H200, the command below writes these tables "
            "anew with what it measured. "
        )
    quick = replace(middle, layer_seconds=TENSORRT_FIXED_SECONDS)
    less = {n: percent(efficiency("large", FAST, H200, n, quick)) for n in (64, 1_024)}
    lamb = plan("large", FAST, H200, 1, middle).phases[0].seconds.optimizer
    most = {model: most_devices(model, FAST, H200, middle, 0.8) for model in MODELS}
    return (
        "# Scaling: time, cost and memory on many devices\n\n"
        "Written by `python -m benchmarks.scaling --write`; do not edit. Paper and simulation: "
        "nothing here ran on more than one accelerator.\n\n"
        f"{said}What else is assumed stands at the end.\n\n"
        f"In short: with `base-fast`'s 4,096 rows a step BERT large keeps {fast[8]} of ideal on 8 "
        f"H200, {fast[64]} on 64 and {fast[1_024]} on 1,024, where a device has 4 rows. Not the "
        "links are in the way but the few rows: a device that is not full computes slowly. How "
        "slowly is the least certain of all that is assumed; by TensorRT's latency (below) it "
        f"would be {less[64]} and {less[1_024]}, and what remains is LAMB, whose {1e3 * lamb:.1f} "
        "ms a step are the same on any number of devices. At least 80 % are kept on up to "
        f"{most['base']} devices for base and {most['large']} for large; beyond, take larger "
        "batches. With the paper's 256 rows more than 8 devices hardly pay.\n\n"
        f"![Efficiency over the number of H200]({PICTURE})\n"
    )


def _gpu_section(rates: list[Rate]) -> str:
    middle = chosen(rates)
    return "\n".join(
        [
            "## H200\n",
            f"`base-fast`'s recipe: {FAST.rows:,} rows a step, LAMB, {FAST.slots / 1e9:.1f} billion"
            " slots, all of them real tokens (packed).\n",
            _run_table(FAST, rates),
            _step_note(middle),
            f"The paper's recipe: {PAPER.rows} rows a step, AdamW, 1,000,000 steps, "
            f"{PAPER.slots / 1e9:.1f} billion slots. More than {PAPER.rows} devices have no row; "
            "only those with work are paid for. Its attention dropout, which costs time, is left "
            "out.\n",
            _run_table(PAPER, rates),
        ]
    )


def _step_note(rate: Rate) -> str:
    return (
        f"Steps, dollars and efficiency are those of {_case(rate)}. `step` is one of 128 and one "
        "of 512 tokens a row; `of it` is what all-reduce, optimizer and waiting for the slowest "
        "add at 128. Gradients are float32, as DDP sends ours. `--batch.micro_batch_size` is "
        "lowered with the devices, which else find fewer bins than there are of them (8 a step as "
        "the preset has it); that a step has whole bins, and not the same number for each device, "
        "is left out.\n"
    )


def _case(rate: Rate) -> str:
    return "the measured rate" if rate.label == "measured" else f"the {rate.label} case"


def _run_table(recipe: Recipe, rates: list[Rate]) -> str:
    middle = chosen(rates)
    header = ["model", "H200", "rows each", "step, ms", "of it, ms", "efficiency"]
    header += [f"hours, {rate.label}" for rate in rates] + ["dollars", "GB"]
    rows = []
    for model in MODELS:
        for devices in DEVICES:
            run = plan(model, recipe, H200, devices, middle)
            first, second = run.phases
            besides = first.seconds.total - first.seconds.computing
            used = f"{devices:,}" if first.used == devices else f"{first.used} of {devices:,}"
            rows.append(
                [
                    model,
                    used,
                    f"{first.rows:,}",
                    f"{1e3 * first.seconds.total:,.1f} / {1e3 * second.seconds.total:,.1f}",
                    f"{1e3 * besides:.1f}",
                    percent(efficiency(model, recipe, H200, devices, middle)),
                    *[_hours(plan(model, recipe, H200, devices, rate).hours) for rate in rates],
                    f"{run.dollars:,.0f}",
                    f"{max(phase.memory_bytes for phase in run.phases) / 1e9:.0f}",
                ]
            )
    return table(header, rows, right=range(1, len(header)))


def _hours(hours: float) -> str:
    return f"{hours:.1f}" if hours >= 1 else f"{hours:.2f}"


def _tpu_section() -> str:
    header = ["model", "chips", "v5e: hours", "dollars", "efficiency", "GB"]
    header += ["v6e: hours", "dollars", "efficiency", "GB"]
    rows = [
        [model, f"{chips:,}", *_tpu_cells(model, V5E, chips), *_tpu_cells(model, V6E, chips)]
        for model in MODELS
        for chips in DEVICES
    ]
    return (
        "## TPU slices\n\n"
        f"`base-fast`'s recipe. The rate is **assumed**: {percent(TPU_SHARE)} of the data sheet's. "
        "1,024 chips are 4 slices of 256 over the data-centre network. On TPU the recipe's rows "
        "are padded (docs/tpu.md), so some of the slots hold no token; as much is kept for the "
        "backward pass as on CUDA (within 10 %, a test).\n\n"
        + table(header, rows, right=range(1, len(header)))
    )


def _tpu_cells(model: str, device: Device, chips: int) -> list[str]:
    rate = same_share(device.name, TPU_SHARE * device.peak_flops_per_second)
    run = plan(model, FAST, device, chips, rate)
    return [
        _hours(run.hours),
        f"{run.dollars:,.0f}",
        percent(efficiency(model, FAST, device, chips, rate)),
        f"{max(phase.memory_bytes for phase in run.phases) / 1e9:.0f}",
    ]


def _memory_section() -> str:
    rows = []
    for model in MODELS:
        config, per = SIZES[model], 1_000_000
        predictions = round(0.15 * per)
        activations = activation_bytes(config, per, predictions, per // 128) / per
        logits = logit_bytes(config, predictions) / per
        fixed = device_bytes(config, 0, 128) - FRAMEWORK_BYTES
        most = [most_rows(config, 512, device.memory_bytes) for device in (V5E, V6E, H200)]
        cells = [f"{fixed / 1e9:.2f}", f"{activations / 1e3:.0f}", f"{logits / 1e3:.0f}"]
        rows.append([model, *cells, *[f"{count:,}" for count in most]])
    header = ["model", "weights, GB", "activations, kB a token", "logits, kB a token"]
    header += ["rows of 512: v5e, 16 GB", "v6e, 32 GB", "H200, 141 GB"]
    return (
        "## Memory of a device\n\n"
        f"Weights: {WEIGHT_BYTES} bytes each (float32 weight, gradient, two moments; DDP's buckets "
        f"are the gradients) and {CAST_BYTES} for autocast's copy. Activations of L layers "
        "uncompiled, per token: `(L - 1)(38H + 4A + 16) + 15H + 4A + 32`, and `30H + 24` for each "
        "place that a head reads, the only ones for which the last layer is finished, `10H + 16` "
        "for each prediction. Logits: 12 bytes a word of the vocabulary and prediction. "
        f"{FRAMEWORK_BYTES / 1e9:.0f} GB are set aside for CUDA and NCCL (assumed). A test "
        "compares the formula with what torch "
        "keeps (within 1 %). Micro-batches above have at most "
        f"{MICRO_BATCH_TOKENS:,} tokens, so nothing is sharded and nothing computed twice.\n\n"
        + table(header, rows, right=range(1, len(header)))
    )


def _assumptions_section() -> str:
    own = (
        ("masked positions are 15 % of tokens", "the paper's recipe"),
        (f"the loader reaches {percent(LOADER_SHARE)} of batches that are ready", "the least that "
         "it must"),
        (f"a device computes {1e6 * fixed_seconds_of_a_layer():.0f} us a layer and micro-batch "
         "besides what grows with tokens, on every device", "MLPerf's row of 512 GPUs; assumed "
         "for base and for TPUs"),
        (f"devices' computing times spread by {percent(STRAGGLER_SHARE)}", "assumed"),
        ("bytes an optimizer moves for each weight: AdamW 40, LAMB 120", "counted from the fused "
         "kernel's and the foreach version's operations"),
        (f"TPUs reach {percent(TPU_SHARE)} of their data sheet", "assumed; MaxText tells of 55 % "
         "and more for far larger models on v5e"),
        ("evaluation, checkpoints, compiling and failures take no time", "left out"),
    )  # fmt: skip
    header = ["taken for granted", "from"]
    rows = [list(pair) for pair in (*SOURCES, *own)]
    return f"## Assumptions\n\nLooked up in {LOOKED_UP}.\n\n" + table(header, rows, right=())
