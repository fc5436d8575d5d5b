"""The rules of tests/conftest.py, held against test files made for the purpose."""

import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SETTINGS = "[pytest]\naddopts = -m 'not slow'\nmarkers =\n  slow: long\n  ray: cluster\n"


@pytest.fixture
def run_pytest(tmp_path):
    """Runs test files in a folder with a copy of our conftest.py and a list of one allowed reason.

    Returns the exit status, what was printed, and `{test: (outcome, worker)}`.
    """
    shutil.copy(HERE / "conftest.py", tmp_path)
    (tmp_path / "allowed_skips.txt").write_text("# why\nno GPU [0-9]+ here\n")
    (tmp_path / "pytest.ini").write_text(SETTINGS)

    def run(files, *arguments):
        for name, source in files.items():
            (tmp_path / f"test_{name}.py").write_text("import pytest, sys\n" + source)
        finished = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTEST_ADDOPTS": ""},
            capture_output=True,
            text=True,
        )
        found = re.findall(
            r"^(?:\[(gw\d)\].*?)?(?:(PASSED|FAILED|SKIPPED|ERROR) )?\S*?::test_(\w+)\S*"
            r"(?: (PASSED|FAILED|SKIPPED|ERROR))?",
            finished.stdout,
            re.MULTILINE,
        )
        outcomes = {name: (first or last, worker) for worker, first, name, last in found}
        return finished.returncode, finished.stdout, outcomes

    return run


@pytest.mark.slow
def test_a_skip_needs_a_listed_reason(run_pytest):
    tests = {
        "listed": "def test_listed(): pytest.skip('no GPU 7 here')\n",
        "call": "def test_call(): pytest.skip('no time')\n",
        "mark": "@pytest.mark.skip(reason='no time')\ndef test_mark(): pass\n",
        "condition": "@pytest.mark.skipif(True, reason='no time')\ndef test_condition(): pass\n",
        "xfail": "@pytest.mark.xfail(reason='no time')\ndef test_xfail(): assert False\n",
        "fixture": "@pytest.fixture\ndef data(): pytest.skip('no time')\n"
        "def test_fixture(data): pass\n",
        "part": "def test_part(): pytest.skip('there is no GPU 7 here: no time')\n",
    }
    status, printed, outcomes = run_pytest({"made": "".join(tests.values())})
    assert status == 1, printed
    assert outcomes.pop("listed")[0] == "SKIPPED"
    assert {outcome for outcome, _ in outcomes.values()} <= {"FAILED", "ERROR"}, printed
    assert len(outcomes) == len(tests) - 1
    # pytest repeats a reason in its summary where the variable CI is set.
    reports = printed.partition("short test summary info")[0]
    assert reports.count("No line of tests/allowed_skips.txt allows this reason") == 6


@pytest.mark.slow
def test_who_silences_warnings_fails_and_the_next_hears_them(run_pytest):
    made = (
        "import logging\n"
        "ours = logging.getLogger('serving.made')\n"
        "def test_disable(): logging.disable(logging.WARNING)\n"
        "def test_next(caplog):\n  ours.warning('heard')\n  assert 'heard' in caplog.text\n"
        "def test_logger(): ours.disabled = True\n"
        "def test_last(caplog):\n  ours.warning('heard')\n  assert 'heard' in caplog.text\n"
        "def test_with(monkeypatch): monkeypatch.setattr(ours, 'disabled', True)\n"
        "def test_filter(): ours.addFilter(lambda record: False)\n"
        "def test_later(caplog):\n  ours.warning('heard')\n  assert 'heard' in caplog.text\n"
        "def test_handler():\n"
        "  for each in logging.root.handlers: each.setLevel(logging.ERROR)\n"
        "def test_at_last(caplog):\n  ours.warning('heard')\n  assert 'heard' in caplog.text\n"
    )
    _, printed, outcomes = run_pytest({"made": made})
    assert {name for name, (outcome, _) in outcomes.items() if outcome == "ERROR"} == {
        "disable",
        "logger",
        "filter",
        "handler",
    }
    heard = ("next", "last", "with", "later", "at_last")
    assert {outcomes[name][0] for name in heard} == {"PASSED"}
    assert "leaves warnings silenced: logging.disable(30)" in printed
    assert "leaves warnings silenced: the logger serving.made" in printed


@pytest.mark.slow
def test_a_module_skipped_for_an_unlisted_reason_fails_the_run(run_pytest):
    status, printed, _ = run_pytest({"made": "pytest.skip('no time', allow_module_level=True)"})
    assert status == 2
    assert "test_made.py was skipped: 'no time'" in printed


@pytest.mark.slow
def test_tests_of_ray_come_first_and_long_ones_last(run_pytest):
    made = (
        "@pytest.mark.slow\ndef test_long(): pass\n"
        "def test_short(): pass\n"
        "@pytest.mark.ray\ndef test_cluster(): pass\n"
    )
    assert list(run_pytest({"made": made})[2]) == ["cluster", "short"]
    assert list(run_pytest({"made": made}, "-m", "")[2]) == ["cluster", "short", "long"]


def test_of_many_variants_some_are_of_the_short_half(run_pytest):
    made = (
        "@pytest.mark.some(2)\n@pytest.mark.parametrize('n', [1, 2, 3])\ndef test_a(n): pass\n"
        "def test_b(): pass\n"
    )
    assert "3 passed, 1 deselected" in run_pytest({"made": made})[1]
    assert "4 passed" in run_pytest({"made": made}, "-m", "")[1]


@pytest.mark.slow
def test_one_process_runs_all_tests_of_ray_and_files_stay_whole(run_pytest):
    files = {
        name: f"@pytest.mark.ray\ndef test_ray_{name}(): pass\n"
        + "".join(f"def test_{name}_{number}(): pass\n" for number in range(6))
        for name in "abc"
    }
    arguments = ("-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder")
    status, printed, outcomes = run_pytest(files, *arguments)
    assert status == 0, printed
    assert len(outcomes) == 21, printed
    for group in ("ray_", "a_", "b_", "c_"):
        workers = {worker for name, (_, worker) in outcomes.items() if name.startswith(group)}
        assert len(workers) == 1, (group, printed)


@pytest.mark.slow
def test_what_changes_pytorch_for_all_ends_the_run(run_pytest):
    made = "def test_a(): sys.modules['torchax'] = sys\ndef test_b(): pass\n"
    status, printed, _ = run_pytest({"made": made})
    assert status == 1
    assert "test_made.py::test_a has imported torchax" in printed
    assert "test_b" not in printed


@pytest.mark.parametrize("module", ["bert_core.text.x", "workflows.x", "serving.x"])
def test_a_warning_of_our_own_modules_is_an_error(module):
    with pytest.raises(UserWarning, match="deliberate"):
        exec("import warnings\nwarnings.warn('deliberate')", {"__name__": module})


def test_a_warning_of_other_modules_is_none():
    with warnings.catch_warnings(record=True) as caught:
        exec("import warnings\nwarnings.warn('deliberate')", {"__name__": "another"})
    assert [str(warning.message) for warning in caught] == ["deliberate"]
