"""What Prometheus is told of a run is what its news say, and when."""

from dataclasses import replace

import pytest

from bert_core.training.loop import NonFiniteLossError
from workflows.messages import RunProgress, Speed
from workflows.training import metrics
from workflows.training.metrics import (
    CHECKPOINT,
    NON_FINITE,
    PROGRESS,
    RUNNING,
    WAITING,
    TrainingMetrics,
    metric_names,
)

PROGRESS_SEEN = RunProgress(
    step=5,
    total_steps=80,
    metrics={
        "train/loss": 3.5,
        "heldout/masked_token_loss": 3.25,
        "train/learning_rate": 1e-4,
        "train/gradient_norm": 0.5,
    },
    speed=Speed(1500.0, padding_share=0.25, mfu=0.4, memory_bytes=1 << 30, eta_seconds=60.0),
)


class Clock:
    """A time of day that is set."""

    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def shown(monkeypatch):
    """What Ray has been told, by the name of the metric; how often in all."""
    values = {}

    class Told:
        def __init__(self, name, description, tag_keys):
            assert description and tag_keys == ("run", "kind")
            self.name = name

        def set(self, value, tags):
            assert tags == {"run": "a", "kind": "pretraining"}
            values[self.name] = value
            values["times"] = values.get("times", 0) + 1

        def inc(self, value, tags):
            self.set(values.get(self.name, 0) + value, tags)

    monkeypatch.setattr(metrics, "Gauge", Told)
    monkeypatch.setattr(metrics, "Counter", Told)
    return values


def test_a_run_is_shown_as_its_news_say(shown):
    with TrainingMetrics("a", "pretraining", Clock()) as told:
        assert shown[RUNNING] == 1 and "bertline_training_loss" not in shown
        told(PROGRESS_SEEN)
        assert shown["bertline_training_step"] == 5
        assert shown["bertline_training_planned_steps"] == 80
        assert shown["bertline_training_loss"] == 3.5
        assert shown["bertline_training_padding_ratio"] == 0.25
        # All that there is has been set by now, but what is counted.
        assert shown.keys() - {"times"} == set(metric_names()) - {f"{NON_FINITE}_total"}
    assert shown[RUNNING] == 0


def test_progress_is_a_step_and_no_other_news(shown):
    clock = Clock()
    with TrainingMetrics("a", "pretraining", clock) as told:
        told(PROGRESS_SEEN)
        clock.now = 1060.0
        told(replace(PROGRESS_SEEN, waiting="starting Ray Train", checkpoint="step-5"))
        assert (shown[PROGRESS], shown[CHECKPOINT], shown[WAITING]) == (1000, 1060, 1)
        clock.now = 1070.0
        told(replace(PROGRESS_SEEN, step=3, checkpoint="step-5"))  # another worker
        assert (shown[PROGRESS], shown[CHECKPOINT], shown[WAITING]) == (1070, 1060, 0)


def test_a_run_that_never_begins_has_a_clock_that_stands(shown):
    clock = Clock()
    with TrainingMetrics("a", "pretraining", clock) as told:
        clock.now = 5000.0
        told(RunProgress(waiting="waiting for 1 worker"))
        assert (shown[PROGRESS], shown[WAITING], shown[RUNNING]) == (1000, 1, 1)


def test_the_same_news_again_cost_nothing(shown):
    with TrainingMetrics("a", "pretraining", Clock()) as told:
        told(PROGRESS_SEEN)
        times = shown["times"]
        told(replace(PROGRESS_SEEN))
        assert shown["times"] == times
        told(replace(PROGRESS_SEEN, metrics=PROGRESS_SEEN.metrics | {"train/loss": 3.4}))
        assert shown["times"] == times + 2  # the loss, and whether it waits


def test_only_a_loss_that_is_not_finite_is_counted_as_one(shown):
    for error in (NonFiniteLossError(3, float("nan"), 1.0), KeyboardInterrupt()):
        with pytest.raises(type(error)), TrainingMetrics("a", "pretraining", Clock()):
            raise error
        assert (shown[NON_FINITE], shown[RUNNING], shown[WAITING]) == (1, 0, 0)


def test_what_stays_as_it_is_is_set_again_or_ray_would_forget_it(shown):
    clock = Clock()
    with TrainingMetrics("a", "pretraining", clock) as told:
        told(PROGRESS_SEEN)
        kept = {name: value for name, value in shown.items() if name != "times"}
        shown.clear()
        shown["times"] = 0
        clock.now += 4.0
        told(replace(PROGRESS_SEEN))
        assert shown == {"times": 0}
        clock.now += 4.0
        told(replace(PROGRESS_SEEN))
        assert {name: value for name, value in shown.items() if name != "times"} == kept
