"""The part of docs/scaling.md that holds the model against something else.

MLPerf's published rates, a simulation, and two processes of the machine that it was written on.
"""

import json
import math
from pathlib import Path

from benchmarks.readme.parts import Results, results_path, table
from benchmarks.scaling.hardware import H200
from benchmarks.scaling.mlperf import (
    CALIBRATED_ON,
    FIXED_FROM,
    FP8_GAIN,
    ROWS,
    TENSORRT_FIXED_SECONDS,
    TOLERANCE,
    fixed_seconds_of_a_layer,
    predicted,
)
from benchmarks.scaling.model import (
    BACKWARD_SHARE,
    STRAGGLER_SHARE,
    exposed_seconds,
    gradient_buckets,
    slowest_of,
)
from benchmarks.scaling.runs import DEVICES, FAST, MODELS, Rate, percent, plan_phase
from benchmarks.scaling.simulation import simulated_seconds
from bert_core.config import SIZES

HERE = "scaling-gloo-cpu"
FROM_HERE = f"../benchmarks/results/{HERE}.json"
SIMULATED_WITHIN = 0.05
"""How far the simulation may be from the closed formula, as a share of it; a test holds it."""


def mlperf_section() -> str:
    """Published and predicted rates, and what the model misses."""
    fixed = fixed_seconds_of_a_layer()
    rows = []
    for name, row in ROWS.items():
        calibrated = {CALIBRATED_ON: "calibrates the rate", FIXED_FROM: "calibrates the fixed part"}
        ours = predicted(name, fixed)
        apart = predicted(name, TENSORRT_FIXED_SECONDS) / row.sequences_per_second
        cells = [f"{row.sequences}", f"{row.sequences_per_second:,}", f"{ours:,.0f}"]
        ratio = f"{ours / row.sequences_per_second:.2f}"
        rows.append([name, row.round, *cells, ratio, f"{apart:.2f}", calibrated.get(name, "")])
    header = ["GPUs", "round", "sequences each", "published", "predicted"]
    header += ["predicted / published", "with TensorRT's fixed part", ""]
    return (
        "## Checked against MLPerf\n\n"
        "BERT large, sequences a second and GPU, NVIDIA's closed division. Batch sizes are those of"
        " the submissions' configurations as published with rounds v3.0 to v4.0 (48 packs of two, "
        "72 sequences, 3 and 2 packs of two a GPU); v4.1's are taken to be the same, for the "
        "figures are. The rate is calibrated on 8 H100 alone; how long a layer takes however few "
        f"its tokens, {1e6 * fixed:.0f} us, on 512 alone. The other rows are predictions, and a "
        f"test holds them to {percent(TOLERANCE)}.\n\n"
        + table(header, rows, right=range(2, len(header) - 1))
        + "\nWhat it misses: 64 GPUs are slower than predicted; their sequences are unpacked and "
        "of unequal length, and the seconds of warming up count. 3,472 are faster; switches that "
        "add gradients up were asked for there, which a ring knows nothing of. Whether these are "
        "the reasons was not tested. From 512 to 3,472 a GPU's own work changes little (6 and 4 "
        "sequences), so that row tries the links more than the rate. The fixed part that "
        f"TensorRT's latency of one row suggests, {1e6 * TENSORRT_FIXED_SECONDS:.0f} us a layer, "
        "is far too small: predictions for 512 and more are nearly twice what was published. So "
        "one more published row was needed than that of 8 GPUs. Taken for granted: FP8 is "
        f"{FP8_GAIN} times as fast as 16 bits (the two largest rows do not use it, and compute "
        "logits at all positions), gradients are 16-bit, and travel behind the backward pass only "
        "where the configuration says so.\n"
    )


def simulation_section(rate: Rate) -> str:
    """The closed formula beside the simulation, and what stragglers cost."""
    rows = []
    for model in MODELS:
        buckets = gradient_buckets(SIZES[model])
        for devices in DEVICES[1:]:
            phase = plan_phase(model, FAST, H200, devices, rate, phase=0)
            micro = phase.seconds.computing / math.ceil(phase.rows / phase.micro_rows)
            behind = exposed_seconds(buckets, H200.fabric, devices, BACKWARD_SHARE * micro)
            run = [
                simulated_seconds(buckets, H200.fabric, devices, micro, straggler_share=share)
                for share in (0.0, STRAGGLER_SHARE, 5 * STRAGGLER_SHARE)
            ]
            cells = [f"{1e3 * seconds:.2f}" for seconds in (micro + behind, run[0])]
            cells += [f"{100 * (seconds / run[0] - 1):.1f} %" for seconds in run[1:]]
            rows.append([model, f"{devices:,}", *cells])
    header = ["model", "H200", "formula, ms", "simulated, ms"]
    header += [
        f"{percent(share)} of spread costs" for share in (STRAGGLER_SHARE, 5 * STRAGGLER_SHARE)
    ]
    return (
        "## Simulated\n\n"
        "A micro-batch of 128 tokens a row with its all-reduce as discrete events: DDP's buckets "
        "become ready in backward order (the table of words, "
        f"{4e-6 * SIZES['base'].hidden_size * SIZES['base'].vocab_size:.0f} MB for base, last of "
        "all, so that it cannot be hidden), are cut into chunks and wait for links and network. "
        "The closed formula of the tables stays within "
        f"{percent(SIMULATED_WITHIN)} of it (a test). Where devices' times spread by 1 % "
        f"or 5 %, all wait for the slowest: {slowest_of(1_024):.1f} standard deviations above the "
        "mean among 1,024.\n\n" + table(header, rows, right=range(1, len(header)))
    )


def here_section(root: Path) -> str:
    """What `--here` measured, as soon as it has."""
    path = results_path(root, HERE)
    begin = "## Measured: two processes over gloo\n\n"
    if not path.exists():
        return begin + "Still to be measured: `python -m benchmarks.scaling --here --write`.\n"
    result: Results = json.loads(path.read_text(encoding="utf-8"))
    seconds, foreseen = result["measured_seconds"], result["predicted_seconds"]
    ratio = foreseen["hidden"] / seconds["parallel"]
    return (
        f"{begin}`{result['model']}`, {result['rows_of_a_process']} rows of "
        f"{result['sequence_length']} each, on {result['device']}, torch {result['torch']}, "
        f"{result['date']} (`--here`; [figures]({FROM_HERE})). "
        f"Gradients of {result['gradient_bytes'] / 1e6:.0f} MB; gloo alone "
        f"{result['all_reduce_bytes_per_second'] / 1e9:.2f} GB/s; forward and backward pass alone "
        f"{1e3 * seconds['computing']:.0f} ms. Under `data_parallel`: predicted "
        f"{1e3 * foreseen['hidden']:.0f} ms ({1e3 * foreseen['one_by_one']:.0f} with nothing "
        f"hidden), measured **{1e3 * seconds['parallel']:.0f} ms**: predicted / measured "
        f"{ratio:.2f}. The cores that compute the backward pass also add up the gradients, and "
        "other programs ran beside it (load average "
        f"{result['load_average']:.1f} on {result['cores']} cores): one check of the arithmetic, "
        "no more.\n"
    )
