"""What all tests share: the Ray cluster, the data beside the checkout, the rules for skipping."""

import gc
import logging
import multiprocessing
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REPOSITORY = HERE.parent
NO_SHARED_DATA = "../shared/data is not beside this checkout"


@pytest.fixture(scope="session")
def repository():
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 512 KiB, mounted by root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here (needs root)")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # a map may be open


@pytest.fixture(scope="session")
def shared_data():
    """The folder of real data sets beside the checkout, which is no part of it."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(NO_SHARED_DATA)
    return folder


@pytest.fixture(scope="session")
def store_template():
    """A store to copy, never opened here: to close a copy's source would drop SQLite's locks."""
    from registered_models import empty_store

    return empty_store()


@pytest.fixture(scope="session")
def ray_cluster():
    """The address of a Ray cluster of 2 CPUs, one for all tests; this process is connected to it.

    A command under test joins it with `RAY_ADDRESS` in its environment.
    """
    import ray

    # The dashboard stays: without it Ray Train prints a complaint every two seconds.
    context = ray.init(
        address="local", num_cpus=2, log_to_driver=False, logging_level=logging.ERROR
    )
    yield context.address_info["address"]
    ray.shutdown()


@pytest.fixture(scope="session")
def in_xla(tmp_path_factory):
    """Calls a function of a module in a process for all tests of XLA, and gives what it returns.

    It has two CPU devices, which must be said before JAX starts. And torchax changes PyTorch for
    good: where it has been imported, nothing can be compiled any more.
    """
    import xla_runs

    spawn = multiprocessing.get_context("spawn")
    cache = tmp_path_factory.mktemp("xla")
    with ProcessPoolExecutor(1, spawn, xla_runs.start, (2, str(cache))) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


@pytest.fixture
def nobody():
    """Permissions mean nothing to root: within `with nobody():` root is nobody."""

    @contextmanager
    def as_nobody():
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(user)

    return as_nobody


@pytest.fixture
def open_folder():
    """A folder that other users can look into; pytest's own are closed to them."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.fixture
def subprocess_environment(tmp_path):
    """The environment of a command under test, with a home folder of its own."""
    home = tmp_path / "home"
    home.mkdir()
    return os.environ | {"HOME": str(home), "PYTHONUNBUFFERED": "1"}


_PROCESS, _EXIT = os.getpid(), os._exit


@pytest.hookimpl(trylast=True)
def pytest_configure():
    """Keeps a developer's cluster and servers out."""
    for name in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        os.environ.pop(name, None)
    # One token for all clusters and clients, whatever home folder a test gives them. Before any
    # test module is imported: Ray reads the mode while it is imported, `ray job` needs it said.
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    # More threads are slower at so little work, and the tests' processes share the cores: with one
    # each they take two thirds of the time. Commands under test inherit it.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Trainers of seconds are not asked every two seconds whether they have ended.
    os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.3"
    # As in an activated environment: `python` and `ray`, here and in a job, are this one's.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os._exit = _end_as_a_failure
    gc.disable()


def pytest_collection_finish():
    """Garbage is looked for less often, and not among the million objects imported by now.

    It took a sixth of the tests' time.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def _end_as_a_failure(status):
    """Code under test that ends the process of the tests does not end them as if all were well."""
    if os.getpid() == _PROCESS:
        os.abort()
    _EXIT(status)


def pytest_make_parametrize_id(val, argname):
    """Names a test after short texts only: compressed bytes hold the time, two processes differ."""
    if isinstance(val, bytes) or (isinstance(val, str) and len(val) > 100):
        return argname
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Starts with the tests of Ray, ends with the long ones, and shares them out by file.

    Everything with real Ray runs in one process (`pytest -n 2`): the cluster is started once, and
    two clusters at a time would compete for the cores that each takes for its own.
    """
    variants = Counter()
    for item in items:
        if (some := item.get_closest_marker("some")) is not None:
            name = item.nodeid.partition("[")[0]
            variants[name] += 1
            if variants[name] > some.args[0]:
                item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: (_is(item, "slow"), not _is(item, "ray")))
    if hasattr(config, "workerinput"):  # a process of pytest-xdist
        for item in items:
            item.add_marker(pytest.mark.xdist_group(_group_of(item)))


def _group_of(item):
    """The tests of a group share a process: those of a cluster, of a program, or of a file."""
    if _is(item, "ray"):
        return "ray"
    shared = {"in_xla", "mlflow_server"} & {*item.fixturenames}
    return shared.pop() if shared else item.nodeid.partition("::")[0]


def _is(item, marker):
    return item.get_closest_marker(marker) is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """Ends the tests at one that has changed PyTorch for those after it (see `in_xla`).

    One that has silenced our warnings for them fails; they are heard again.
    """
    if "torchax" in sys.modules:
        pytest.exit(f"{item.nodeid} has imported torchax in the process of all tests", returncode=1)
    yield
    if silenced := heard_again():
        pytest.fail(f"{item.nodeid} leaves warnings silenced: {', '.join(silenced)}")


def heard_again():
    """Undoes whatever keeps warnings of our modules from a log; says what that was."""
    manager, found = logging.root.manager, []
    if manager.disable >= logging.WARNING:
        found.append(f"logging.disable({manager.disable})")
        logging.disable(logging.NOTSET)
    for name, logger in [("root", logging.root), *manager.loggerDict.items()]:
        is_ours = name.partition(".")[0] in ("root", "bert_core", "serving", "workflows")
        if not is_ours or not isinstance(logger, logging.Logger):
            continue
        if logger.disabled or not logger.propagate or logger.level > logging.WARNING:
            found.append(f"the logger {name}")
            logger.disabled, logger.propagate = False, True
            logger.setLevel(min(logger.level, logging.WARNING))
        if not logger.isEnabledFor(logging.WARNING) or logger.filters:
            found.append(f"the logger {name}, {logger.filters or 'by what it remembers'}")
            logger.filters.clear()
            manager._clear_cache()
    for handler in logging.root.handlers:  # of pytest too, which are the same for all tests
        if handler.level > logging.WARNING:
            found.append(f"the handler {type(handler).__name__}")
            handler.setLevel(logging.NOTSET)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Fails a test that was skipped for a reason that nobody has agreed to."""
    report = yield
    refuse_unlisted_skip(report, item.nodeid)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Fails a module that was skipped for a reason that nobody has agreed to."""
    report = yield
    refuse_unlisted_skip(report, collector.nodeid)
    return report


def refuse_unlisted_skip(report, name):
    """Turns a skipped or expected-to-fail report into a failed one unless its reason is listed."""
    if not report.skipped:
        return
    expected_failure = getattr(report, "wasxfail", None)
    reason = expected_failure if expected_failure is not None else report.longrepr[2]
    reason = reason.removeprefix("reason: ").removeprefix("Skipped: ")
    if not any(re.fullmatch(pattern, reason) for pattern in allowed_skip_reasons()):
        if expected_failure is not None:
            del report.wasxfail
        report.outcome = "failed"
        report.longrepr = (
            f"{name} was skipped: {reason!r}\n"
            "No line of tests/allowed_skips.txt allows this reason. Let the test run, or add the "
            "reason there with a comment that says why."
        )


def allowed_skip_reasons():
    """The regular expressions of tests/allowed_skips.txt."""
    lines = (HERE / "allowed_skips.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]
