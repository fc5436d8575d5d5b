import torch

from benchmarks import measurement


class Event:
    """A CUDA event on a clock that a test turns."""

    now = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        """Takes the time as the device comes by."""
        self.at = Event.now

    def elapsed_time(self, end):
        """Milliseconds."""
        return 1e3 * (end.at - self.at)


def test_calls_on_cuda_are_timed_one_by_one_without_waiting_between_them(monkeypatch):
    happened = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: happened.append("waited"))
    lasting = iter([0.5, 0.25, 2.0])

    def call():
        happened.append("called")
        Event.now += next(lasting)

    seconds = measurement.timed_calls(call, torch.device("cuda"), 3)
    assert seconds == [0.5, 0.25, 2.0]
    assert happened == ["waited", "called", "called", "called", "waited"]


def test_calls_on_a_cpu_are_timed_by_the_clock():
    times = iter([1.0, 1.5, 4.0])
    seconds = measurement.timed_calls(lambda: None, torch.device("cpu"), 2, lambda: next(times))
    assert seconds == [0.5, 2.5]


def test_a_machine_without_transformers_says_so(monkeypatch):
    def absent(name):
        raise measurement.PackageNotFoundError(name)

    monkeypatch.setattr(measurement, "version", absent)
    assert measurement.surroundings(torch.device("cpu"))["transformers"] == "absent"
