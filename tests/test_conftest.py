"""The rules of tests/conftest.py, held against test files made for the purpose."""

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SETTINGS = "[pytest]\naddopts = -m 'not slow'\nmarkers = slow: long\n"


@pytest.fixture
def run_pytest(tmp_path):
    """Runs a test file beside a copy of our conftest.py and a list of one allowed reason."""
    shutil.copy(HERE / "conftest.py", tmp_path)
    (tmp_path / "allowed_skips.txt").write_text("# why\nno GPU [0-9]+ here\n")
    (tmp_path / "pytest.ini").write_text(SETTINGS)

    def run(source, *arguments):
        (tmp_path / "test_made.py").write_text("import pytest, time\n" + source)
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTEST_ADDOPTS": ""},
            capture_output=True,
            text=True,
        )

    return run


def test_an_allowed_skip_passes(run_pytest):
    outcome = run_pytest("def test_it(): pytest.skip('no GPU 7 here')\ndef test_other(): pass\n")
    assert outcome.returncode == 0, outcome.stdout
    assert "1 passed, 1 skipped" in outcome.stdout


@pytest.mark.parametrize(
    "source",
    [
        "def test_it(): pytest.skip('no time')",
        "@pytest.mark.skip(reason='no time')\ndef test_it(): pass",
        "@pytest.mark.skipif(True, reason='no time')\ndef test_it(): pass",
        "@pytest.mark.xfail(reason='no time')\ndef test_it(): assert False",
        "@pytest.fixture\ndef data(): pytest.skip('no time')\ndef test_it(data): pass",
        "pytest.skip('no time', allow_module_level=True)",
        "def test_it(): pytest.skip('there is no GPU 7 here: no time')",
    ],
)
def test_any_other_skip_fails_the_run_and_says_what_to_do(run_pytest, source):
    outcome = run_pytest(source)
    assert outcome.returncode in (1, 2), outcome.stdout
    assert "no time" in outcome.stdout
    assert "tests/allowed_skips.txt" in outcome.stdout
    assert "1 failed" in outcome.stdout or "1 error" in outcome.stdout


LONG_TESTS = (
    "@pytest.mark.slow\ndef test_long_1(): time.sleep(6)\n"
    "@pytest.mark.slow\ndef test_long_2(): pass\n"
    "def test_short(): pass\n"
)


def test_long_tests_are_left_out_by_default(run_pytest):
    assert "1 passed, 2 deselected" in run_pytest(LONG_TESTS).stdout


def test_long_tests_come_last_and_begin_only_in_time(run_pytest):
    outcome = run_pytest(LONG_TESTS, "--long-tests-within", "5")
    assert outcome.returncode == 0, outcome.stdout
    assert "2 passed" in outcome.stdout
    assert outcome.stdout.index("::test_short PASSED") < outcome.stdout.index("::test_long_1")
    assert "1 long tests not begun within 5 s" in outcome.stdout
    assert "test_made.py::test_long_2" in outcome.stdout


def test_all_long_tests_run_when_there_is_time(run_pytest):
    source = LONG_TESTS.replace("6", "0")
    assert "3 passed" in run_pytest(source, "--long-tests-within", "600").stdout


def test_what_changes_pytorch_for_all_ends_the_run(run_pytest):
    source = "import sys\ndef test_a(): sys.modules['torchax'] = sys\ndef test_b(): pass\n"
    outcome = run_pytest(source)
    assert outcome.returncode == 1
    assert "test_made.py::test_a has imported torchax" in outcome.stdout
    assert "test_b" not in outcome.stdout


@pytest.mark.parametrize("module", ["bert_core.text.x", "workflows.x", "serving.x"])
def test_a_warning_of_our_own_modules_is_an_error(module):
    with pytest.raises(UserWarning, match="deliberate"):
        exec("import warnings\nwarnings.warn('deliberate')", {"__name__": module})


def test_a_warning_of_other_modules_is_none():
    with warnings.catch_warnings(record=True) as caught:
        exec("import warnings\nwarnings.warn('deliberate')", {"__name__": "another"})
    assert [str(warning.message) for warning in caught] == ["deliberate"]
