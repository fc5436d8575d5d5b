import json
import subprocess
import sys

import pytest
import torch
from small_pretraining import without_compiler

from benchmarks.pretraining import __main__ as pretraining
from benchmarks.pretraining import arms as pretraining_arms
from benchmarks.pretraining import rounds as pretraining_rounds
from bert_core.config import SIZES

SMALL = "--preset tiny --vocab 500 --batch 3 --sequence_length 24 --rounds 2 --steps 1 --warmup 1"
PEAKS = {
    "matmul_flops_per_second": 1e12,
    "copy_bytes_per_second": 1e10,
    "data_sheet_flops_per_second": 2e12,
}
ARMS = ["ours", "transformers, sdpa", "transformers, eager"]


@pytest.fixture
def known_peaks(monkeypatch):
    monkeypatch.setattr(pretraining, "measured_peaks", lambda *_: PEAKS)


@pytest.mark.parametrize("lengths", ["full", "natural"])
def test_runs_ours_beside_transformers_and_writes_json(tmp_path, capsys, known_peaks, lengths):
    path = tmp_path / "folder" / "results.json"
    assert pretraining.main([*SMALL.split(), "--lengths", lengths, "--json", str(path)]) == 0
    results = json.loads(path.read_text())
    arms = results["arms"]
    assert list(arms) == ARMS
    assert all(arm["tokens_per_second"] > 0 and arm["mfu"] > 0 for arm in arms.values())
    assert [name for name, arm in arms.items() if "ratio" in arm] == list(arms)[1:]
    tokens = results["real_tokens_per_step"]
    assert tokens == 72 if lengths == "full" else tokens < 72
    assert results["rounds_done"] == 2 and "unfinished" not in results
    assert results["peaks"] == PEAKS
    said = capsys.readouterr().out
    assert "real tokens/s" in said and "left out" not in said


def test_a_run_that_is_killed_leaves_what_it_measured(tmp_path, monkeypatch, known_peaks):
    path = tmp_path / "results.json"
    states = []
    times_called = iter(range(100))
    timed_calls = pretraining_rounds.timed_calls

    def killed(*values):
        states.append(json.loads(path.read_text()))
        if next(times_called) == 4:  # the second arm of the second round
            raise KeyboardInterrupt
        return timed_calls(*values)

    monkeypatch.setattr(pretraining_rounds, "timed_calls", killed)
    with pytest.raises(KeyboardInterrupt):
        pretraining.main([*SMALL.split(), "--json", str(path)])
    left = json.loads(path.read_text())
    assert left["unfinished"] and left["rounds_done"] == 1
    assert [len(arm["step_seconds_of_rounds"]) for arm in left["arms"].values()] == [1, 1, 1]
    assert states[0]["peaks"] == PEAKS
    assert list(states[0]["arms"]) == ARMS  # prepared, and not timed
    assert all("loss" in arm and "mfu" not in arm for arm in states[0]["arms"].values())


def test_what_there_is_no_time_for_is_named(tmp_path, capsys, known_peaks):
    path = tmp_path / "results.json"
    command = [*SMALL.split(), "--rounds", "9", "--budget_seconds", "0", "--json", str(path)]
    assert pretraining.main(command) == 0
    results = json.loads(path.read_text())
    assert results["left_out"] == ["transformers, sdpa", "transformers, eager"]
    assert results["rounds_done"] == 1
    said = capsys.readouterr().out
    assert "ended after 1 rounds" in said
    assert "no time for it: transformers, sdpa, transformers, eager" in said


def test_an_arm_that_computes_something_else_is_named_and_not_timed(
    tmp_path, monkeypatch, capsys, known_peaks
):
    """The others are timed: their figures are not lost with it."""
    their_model = pretraining_arms.their_model

    def wrong(config, attention, device):
        model = their_model(config, attention, device)
        if attention == "eager":
            torch.nn.init.ones_(model.cls.predictions.transform.LayerNorm.bias)
        return model

    monkeypatch.setattr(pretraining_arms, "their_model", wrong)
    path = tmp_path / "results.json"
    assert pretraining.main([*SMALL.split(), "--json", str(path)]) == 1
    results = json.loads(path.read_text())
    assert list(results["arms"]) == ARMS[:2]
    assert "but" in results["failed"]["transformers, eager"]
    assert "failed: transformers, eager: AssertionError" in capsys.readouterr().out


def test_a_peer_that_did_not_fit_whole_is_not_tried_whole_by_the_next(monkeypatch, known_peaks):
    prepare, asked = pretraining_rounds.prepare, {}

    def noting(contestant, device, *, parts, **values):
        asked[contestant.name] = parts
        fits = 2 if contestant.is_peer else 1
        return prepare(contestant, device, parts=max(parts, fits), **values)

    monkeypatch.setattr(pretraining_rounds, "prepare", noting)
    assert pretraining.main([*SMALL.split(), "--batch", "4"]) == 0
    assert list(asked.values()) == [1, 1, 2]


def test_without_transformers_ours_is_measured_alone(monkeypatch, capsys, known_peaks):
    monkeypatch.setattr(pretraining_arms, "find_spec", lambda _: None)
    monkeypatch.setattr(
        pretraining, "surroundings", lambda _: {"device": "x", "transformers": "absent"}
    )
    assert pretraining.main(SMALL.split()) == 0
    said = capsys.readouterr().out
    assert "transformers is not installed: its arms" in said and "\nours " in said


def test_the_whole_run_of_cuda_computes_on_a_cpu(tmp_path, monkeypatch, known_peaks):
    """All but the kernels: the device is a CPU that is asked for what CUDA is asked for."""
    without_compiler(monkeypatch)
    task = pretraining.make_task(
        pretraining.parse_arguments([*SMALL.split(), "--attention_dropout", "0"]),
        torch.device("cpu"),
    )
    monkeypatch.setattr(pretraining, "make_task", lambda *_: task)
    monkeypatch.setattr(pretraining_arms, "_on_cpu", pretraining_arms._on_cuda)
    path = tmp_path / "results.json"
    command = [*SMALL.split(), "--paper_recipe", "--max_autotune", "--json", str(path)]
    assert pretraining.main(command) == 0
    arms = json.loads(path.read_text())["arms"]
    assert len(arms) == 8
    assert [name for name, arm in arms.items() if arm["compile_seconds"] is None] == [
        "ours, plain",
        "transformers, sdpa",
        "ours, attention dropout",
        "transformers, attention dropout",
    ]


def test_a_machine_without_a_gpu_says_so_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pretraining.main(["--device", "cuda"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "no GPU" in said


@pytest.mark.parametrize(
    "command",
    ["--clock cpu --device cuda", "--device cuda --attention_dropout 0.1", "--ablation packing"],
)
def test_what_cannot_be_measured_is_refused(command):
    with pytest.raises(SystemExit):
        pretraining.parse_arguments(command.split())


def test_defaults_are_those_of_the_device():
    cuda = pretraining.parse_arguments(["--device", "cuda", "--rounds", "5"])
    assert (cuda.rounds, cuda.steps, cuda.attention_dropout) == (5, 20, 0.0)
    cpu = pretraining.parse_arguments([])
    assert (cpu.rounds, cpu.steps, cpu.attention_dropout) == (15, 2, 0.1)


@pytest.mark.parametrize(("lengths", "rows"), [("full", 128), ("natural", 256)])
def test_a_step_on_cuda_has_as_many_tokens_as_asked_for(lengths, rows):
    command = f"--device cuda --preset base --sequence_length 512 --lengths {lengths}"
    task = pretraining.make_task(pretraining.parse_arguments(command.split()), torch.device("cuda"))
    assert len(task.rows.lengths) == rows
    assert task.rows.num_tokens == pytest.approx(65_536, rel=0.02)
    assert task.autocast_dtype == torch.bfloat16
    assert task.config.attention_probs_dropout_prob == 0


def test_flops_are_those_of_real_tokens_alone():
    rows = pretraining.make_rows(30_522, 128, 512, natural=False)
    whole = pretraining.step_flops(SIZES["base"], rows)
    # The reference counts the whole last layer, which nobody reads: 0.5879 GFLOP a token.
    assert whole / rows.num_tokens == pytest.approx(0.5879e9, rel=0.07)
    natural = pretraining.make_rows(30_522, 256, 512, natural=True)
    per_token = pretraining.step_flops(SIZES["base"], natural) / natural.num_tokens
    assert per_token < whole / rows.num_tokens


def test_nothing_of_the_cluster_is_imported():
    program = (
        "import sys, benchmarks.pretraining; "
        "print({'ray', 'mlflow', 'pyarrow', 'sentencex', 'matplotlib', 'transformers', 'yaml'}"
        " & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said.stdout.strip() == "set()", said.stderr
