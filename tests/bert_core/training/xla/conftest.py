"""One process for all tests of XLA: with two CPU devices, which must be said before JAX starts."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
import xla_runs


@pytest.fixture(scope="session")
def in_xla(tmp_path_factory):
    """Calls a function of `xla_runs` there, and gives what it returns."""
    spawn = multiprocessing.get_context("spawn")
    cache = tmp_path_factory.mktemp("xla")
    with ProcessPoolExecutor(1, spawn, xla_runs.start, (2, str(cache))) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()
