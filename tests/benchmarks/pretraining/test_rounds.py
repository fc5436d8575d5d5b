import statistics

import pytest
import torch
from torch import nn

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
from bert_core.errors import UserError

CPU = torch.device("cpu")
PEAKS = {"matmul_flops_per_second": 8e12, "data_sheet_flops_per_second": 10e12}


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
    found = figures(arm(rounds=steps, micro_batches=2), tokens=600, model_flops=8e12, peaks=PEAKS)
    assert found["step_seconds"] == 2.0
    assert found["tokens_per_second"] == 300
    assert found["mfu"] == 0.5 and found["mfu_of_data_sheet"] == 0.4
    assert found["step_seconds_percentiles_10_90"] == [1.25, 2.75]
    assert found["steady"] and found["spread_of_rounds"] == 0.0
    assert found["micro_batches"] == 2
    unknown = PEAKS | {"data_sheet_flops_per_second": None}
    found = figures(arm(rounds=steps), tokens=600, model_flops=8e12, peaks=unknown)
    assert found["mfu_of_data_sheet"] is None


@pytest.mark.parametrize(("last", "steady"), [(1.02, True), (1.04, False)])
def test_an_arm_whose_rounds_differ_is_marked(last, steady):
    found = figures(arm(rounds=[[1.0], [1.0], [last]]), tokens=1, model_flops=1, peaks=PEAKS)
    assert found["steady"] is steady
    assert found["spread_of_rounds"] == pytest.approx(last - 1)


def test_a_peer_stands_beside_our_best():
    arms = [
        arm("ours, plain", rounds=[[3.0], [3.0]]),
        arm("ours, fast", rounds=[[1.0], [2.0]]),
        arm("theirs", rounds=[[2.0], [8.0]], is_peer=True),
    ]
    found = summary(arms, tokens=10, model_flops=1, peaks=PEAKS)
    assert found["theirs"]["ratio"] == 3.0  # the median of 2 and 4
    assert "ratio" not in found["ours, fast"]
