import json

from benchmarks.readme.parts import RESULTS
from benchmarks.readme.serving import overload_block, serving_block, swaps_block

CELL = {"requests_per_second": 120.4, "p50_ms": 8.4, "p99_ms": 1017.5, "cpu_ms": 8.21}
RESULT = {
    "settings": {"seconds": 4.0, "rounds": 3, "threads": None},
    "encoder": {"num_hidden_layers": 6, "hidden_size": 384},
    "surroundings": {"device": "A", "cores": 2, "torch": "2.13"},
    "ready_seconds": {"ours, uvicorn": 2.94, "litserve": 7.2},
    "resident_bytes": {"ours, uvicorn": [1, 348_400_000], "litserve": [2, 1_260_000_000]},
    "cells": {
        "20 tokens, 1 client": {"ours, uvicorn": CELL, "litserve": CELL | {"cpu_ms": 28.6}},
        "10-200 tokens, 8 clients": {"ours, uvicorn": CELL, "litserve": CELL},
    },
}


def write(root, name, result):
    (root / RESULTS).mkdir(parents=True, exist_ok=True)
    (root / RESULTS / f"{name}.json").write_text(json.dumps(result))


def test_nothing_was_measured(tmp_path):
    assert serving_block(tmp_path).startswith("Still to be measured")
    assert "still to be measured" in overload_block(tmp_path)
    assert "still to be measured" in swaps_block(tmp_path)


def test_a_column_for_each_cell_and_the_rates_of_mixed_lengths(tmp_path):
    write(tmp_path, "serving-cpu", RESULT)
    block = serving_block(tmp_path)
    assert "| CPU ms of a request | 20 × 1 | 10-200 × 8 |" in block
    assert "| LitServe | 28.6 | 8.2 |" in block
    assert "| ours, uvicorn | 120 | 8, 1,018 | 2.9 | 348 |" in block
    assert "in turns of 4 s, 3 for each cell" in block and "by default; 2 cores" in block
    write(tmp_path, "serving-cpu", RESULT | {"settings": RESULT["settings"] | {"threads": 1}})
    assert "OMP_NUM_THREADS=1; 2 cores" in serving_block(tmp_path)


def test_overload_has_a_row_for_each_size_of_request(tmp_path):
    of_a_size = {
        "share_of_capacity": 0.957,
        "share_of_capacity_by_server_time": 0.984,
        "capacity": 50.4,
        "offered_per_second": 1504.2,
        "refused_p50_ms": 5.2,
        "refused_p99_ms": 21.4,
        "refused_within_50_ms": 0.9988,
    }
    result = {
        "settings": {"times": 10},
        "surroundings": {"cores": 2},
        "texts_of_a_request": {"8": of_a_size},
    }
    write(tmp_path, "serving-overload-cpu", result)
    block = overload_block(tmp_path)
    assert "Asked 10 times as much as it can, by clients on the same 2 cores" in block
    assert "| 8 | 50 | 1,504 | 96% | 98% | 5, 21 | 99.9% |" in block


def test_swaps_are_a_sentence(tmp_path):
    result = {
        "after": {"5": {"resident_bytes": 440_400_000}, "200": {"resident_bytes": 445_600_000}},
        "growth": 0.0118,
        "switch_seconds": {"median": 2.34, "largest": 7.1},
        "requests": 14082,
        "failures": [],
        "surroundings": {"cores": 2},
        "load_average_before": 1.25,
        "load_average_after": 2.0,
    }
    write(tmp_path, "swaps-cpu", result)
    block = swaps_block(tmp_path)
    assert "440 MB after 5 swaps, 446 MB after 200 (+1.2%)" in block
    assert "2.3 s after the alias moved (7.1 s at most)" in block
    assert "and of 14,082 requests none failed; 2 cores, load average 1.2 before" in block
    write(tmp_path, "swaps-cpu", result | {"failures": ["503"]})
    assert "14,082 requests 1 failed" in swaps_block(tmp_path)
