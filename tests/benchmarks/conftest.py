"""Cheap stand-ins for what only costs time in the benchmarks' own tests."""

import pytest

from benchmarks import measurement
from benchmarks.pretraining import rounds


@pytest.fixture(autouse=True)
def small_measurements(monkeypatch):
    """Measures a small matrix product, and leaves the test process's garbage alone."""
    monkeypatch.setattr(measurement, "CPU_PRODUCT_SIZE", 64)
    monkeypatch.setattr(rounds.gc, "collect", lambda *_: 0)
