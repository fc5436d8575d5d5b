"""The pre-training benchmark: its command, and rounds of steps."""

import json
import statistics
import subprocess
import sys

import pytest
import torch
from small_pretraining import without_compiler
from torch import nn

from benchmarks.pretraining import __main__ as pretraining
from benchmarks.pretraining import arms as pretraining_arms
from benchmarks.pretraining import rounds as pretraining_rounds
from benchmarks.pretraining.arms import Contestant, Trial
from benchmarks.pretraining.rounds import (
    TrainingArm,
    assert_equal,
    figures,
    prepare,
    run_rounds,
    summary,
)
from bert_core.config import SIZES
from bert_core.errors import UserError

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
    assert "lack of time: transformers, sdpa, transformers, eager" in said


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


@pytest.mark.slow
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
    assert "transformers, which is not installed" in said and "\nours " in said


@pytest.mark.slow
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


@pytest.mark.slow
def test_nothing_of_the_cluster_is_imported():
    packages = ("pretraining", "encoder_run", "gpu")
    modules = ", ".join(f"benchmarks.{package}.__main__" for package in packages)
    program = (
        f"import sys, {modules}; "
        "print({'ray', 'mlflow', 'pyarrow', 'sentencex', 'matplotlib', 'transformers', 'yaml'}"
        " & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said.stdout.strip() == "set()", said.stderr


CPU = torch.device("cpu")
AT_PEAK = {"matmul_flops_per_second": 8e12, "data_sheet_flops_per_second": 10e12}


def contestant(error=None, fits_from=1):
    """A model of one weight; `error` is raised unless the step is cut into enough parts."""
    asked = []

    def build(parts):
        asked.append(parts)
        if parts < fits_from:
            raise error
        model = nn.Linear(1, 1, bias=False)
        nn.init.constant_(model.weight, 3.0)
        losses = [lambda: (model.weight**2).sum() / parts] * parts
        return Trial(model, losses, torch.optim.SGD(model.parameters(), lr=0.0))

    return Contestant("it", is_peer=False, compiled=True, build=build), asked


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("no"),
        RuntimeError("InductorError: OutOfMemoryError: CUDA out of memory. Tried"),
        RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
    ],
)
def test_the_largest_micro_batch_that_fits_is_found(error):
    found, asked = contestant(error, fits_from=4)
    arm = prepare(found, CPU, warmup=2)
    assert asked == [1, 2, 4]
    assert arm.micro_batches == 4
    assert arm.loss == pytest.approx(9.0) and arm.gradient_norm == pytest.approx(6.0)
    assert arm.compile_seconds is not None and arm.compile_seconds >= 0


def test_what_is_known_not_to_fit_is_not_tried():
    found, asked = contestant(torch.OutOfMemoryError("no"), fits_from=4)
    assert prepare(found, CPU, warmup=1, parts=4).micro_batches == 4
    assert asked == [4]


def test_other_errors_are_not_about_memory():
    found, asked = contestant(RuntimeError("shapes do not match"), fits_from=4)
    with pytest.raises(RuntimeError, match="shapes"):
        prepare(found, CPU, warmup=1)
    assert asked == [1]


def test_what_never_fits_is_said():
    found, asked = contestant(torch.OutOfMemoryError("no"), fits_from=1000)
    with pytest.raises(UserError, match="does not fit in the memory of the device: it"):
        prepare(found, CPU, warmup=1)
    assert asked[-1] == pretraining_rounds._MOST_PARTS


def test_compiling_is_what_the_first_step_took_longer(monkeypatch):
    found, _ = contestant()
    lasting = iter([50.0, 2.0, 1.0, 9.0])
    monkeypatch.setattr(pretraining_rounds, "_seconds", lambda *_: next(lasting))
    assert prepare(found, CPU, warmup=3).compile_seconds == 50.0 - statistics.median([2, 1, 9])


def arm(name="ours", rounds=(), is_peer=False, step=lambda: None, **values):
    return TrainingArm(
        name,
        is_peer,
        step,
        seconds=[statistics.median(each) for each in rounds],
        rounds=[list(each) for each in rounds],
        **values,
    )


def test_arms_that_disagree_are_no_benchmark():
    ours = arm(loss=1.0, gradient_norm=2.0)
    assert_equal(arm("theirs", loss=1.01, gradient_norm=1.99), ours, 2e-2)
    with pytest.raises(AssertionError, match="theirs: gradient_norm 2.1, but 2.0 for ours"):
        assert_equal(arm("theirs", loss=1.0, gradient_norm=2.1), ours, 1e-4)
    with pytest.raises(AssertionError, match="loss nan"):
        assert_equal(arm("theirs", loss=float("nan"), gradient_norm=2.0), ours, 1e-4)


class Watch:
    """A clock that steps turn on, and a budget on it."""

    def __init__(self, budget):
        self.now, self.budget, self.said = 0.0, budget, []

    def read(self):
        return self.now

    def left(self):
        return self.budget - self.now

    def arm(self, name, seconds):
        def step():
            self.now += seconds
            self.said.append(name)

        return arm(name, step=step)


def test_rounds_go_forwards_and_backwards_through_the_arms():
    watch = Watch(1e9)
    arms = [watch.arm("a", 1.0), watch.arm("b", 2.0), watch.arm("c", 3.0)]
    after = []
    done = run_rounds(
        arms,
        CPU,
        rounds=3,
        steps=2,
        seconds_left=watch.left,
        after_round=lambda: after.append(len(arms[0].rounds)),
        clock=watch.read,
    )
    assert "".join(watch.said) == "aabbcc" + "ccbbaa" + "aabbcc"
    assert arms[1].rounds == [[2.0, 2.0]] * 3 and arms[1].seconds == [2.0] * 3
    assert (done, after) == (3, [1, 2, 3])


@pytest.mark.parametrize(("budget", "rounds"), [(0, 1), (5.9, 1), (6.0, 2), (11.9, 3)])
def test_a_round_is_not_begun_without_the_time_for_it(budget, rounds):
    watch = Watch(budget)
    arms = [watch.arm("a", 1.0), watch.arm("b", 2.0)]
    values = {"rounds": 9, "steps": 1, "seconds_left": watch.left, "clock": watch.read}
    assert run_rounds(arms, CPU, **values) == rounds
    assert len(arms[1].rounds) == rounds


def test_figures_of_known_steps():
    steps = [[1.0, 2.0, 3.0], [1.5, 2.0, 2.5]]
    found = figures(arm(rounds=steps, micro_batches=2), tokens=600, model_flops=8e12, peaks=AT_PEAK)
    assert found["step_seconds"] == 2.0
    assert found["tokens_per_second"] == 300
    assert found["mfu"] == 0.5 and found["mfu_of_data_sheet"] == 0.4
    assert found["step_seconds_percentiles_10_90"] == [1.25, 2.75]
    assert found["steady"] and found["spread_of_rounds"] == 0.0
    assert found["micro_batches"] == 2
    unknown = AT_PEAK | {"data_sheet_flops_per_second": None}
    found = figures(arm(rounds=steps), tokens=600, model_flops=8e12, peaks=unknown)
    assert found["mfu_of_data_sheet"] is None


@pytest.mark.parametrize(("last", "steady"), [(1.02, True), (1.04, False)])
def test_an_arm_whose_rounds_differ_is_marked(last, steady):
    found = figures(arm(rounds=[[1.0], [1.0], [last]]), tokens=1, model_flops=1, peaks=AT_PEAK)
    assert found["steady"] is steady
    assert found["spread_of_rounds"] == pytest.approx(last - 1)


def test_a_peer_stands_beside_our_best():
    arms = [
        arm("ours, plain", rounds=[[3.0], [3.0]]),
        arm("ours, fast", rounds=[[1.0], [2.0]]),
        arm("theirs", rounds=[[2.0], [8.0]], is_peer=True),
    ]
    found = summary(arms, tokens=10, model_flops=1, peaks=AT_PEAK)
    assert found["theirs"]["ratio"] == 3.0  # the median of 2 and 4
    assert "ratio" not in found["ours, fast"]
