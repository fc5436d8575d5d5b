"""The set-up that every make target does by itself, with stand-ins for the Python it finds."""

import shutil
import subprocess

import pytest

NEEDED = ("bash", "cat", "cksum", "cut", "expand", "rm", "sed", "touch")


@pytest.fixture
def run_make(repository, tmp_path):
    """Runs make in a copy of the checkout's set-up files that sees no Python but `python3`."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(repository / name, tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in NEEDED:
        (programs / name).symlink_to(shutil.which(name))

    def run(*arguments, python):
        (programs / "python3").write_text(f"#!/bin/bash\n{python}\n")
        (programs / "python3").chmod(0o755)
        return subprocess.run(
            [shutil.which("make"), *arguments],
            cwd=tmp_path,
            env={"PATH": str(programs), "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
        )

    return run


def error_line(outcome):
    assert outcome.returncode == 2
    (line,) = [line for line in outcome.stderr.splitlines() if "error:" in line]
    return line


def test_an_old_python_is_named_with_the_remedy(run_make, tmp_path):
    line = error_line(run_make("lint", python="exit 1"))
    assert "no Python 3.11 or newer" in line
    assert "install" in line
    assert not (tmp_path / ".venv").exists()


def test_a_missing_venv_module_is_named_with_the_remedy(run_make, tmp_path):
    line = error_line(run_make("demo", python='[[ "$*" != *ensurepip* ]]'))
    assert "venv" in line
    assert "apt install python3-venv" in line
    assert not (tmp_path / ".venv").exists()


# Makes a .venv/bin/python that writes down how it was called.
MAKES_AN_ENVIRONMENT = """
if [[ "$*" == "-m venv .venv" ]]; then
  command -p mkdir -p .venv/bin
  printf '#!/bin/bash\\necho "$@" >> calls.txt\\n' > .venv/bin/python
  command -p chmod +x .venv/bin/python
fi
"""


def test_the_environment_is_made_once_and_again_when_its_files_change(run_make, tmp_path):
    calls = tmp_path / "calls.txt"

    def installs():
        assert run_make("lint", python=MAKES_AN_ENVIRONMENT).returncode == 0
        return calls.read_text().count("pip install")

    assert installs() == 1
    assert "install --quiet -c constraints.txt -e .[dev]" in calls.read_text()
    assert installs() == 1
    with (tmp_path / "constraints.txt").open("a") as file:
        file.write("# another\n")
    assert installs() == 2
    assert installs() == 2


def test_an_environment_without_the_developers_packages_is_made_whole_when_they_are_needed(
    run_make, tmp_path
):
    calls = tmp_path / "calls.txt"
    for arguments in (["environment", "EXTRAS="], ["environment", "EXTRAS="], ["lint"], ["lint"]):
        assert run_make(*arguments, python=MAKES_AN_ENVIRONMENT).returncode == 0
    done = [line.split()[-1] for line in calls.read_text().splitlines() if "pip install" in line]
    assert done == [".", ".[dev]"]


def test_the_demo_installs_only_what_running_needs(run_make, tmp_path):
    calls = tmp_path / "calls.txt"
    for target in ("demo", "demo", "lint", "demo"):
        assert run_make(target, python=MAKES_AN_ENVIRONMENT).returncode == 0
    done = [line.split()[-1] for line in calls.read_text().splitlines() if "pip install" in line]
    assert done == [".", ".[dev]"]


def test_help_is_what_make_says_alone_and_installs_nothing(run_make, tmp_path):
    outcome = run_make(python="exit 1")
    assert outcome.returncode == 0
    for target in ("demo", "test", "test-all", "lint", "bench", "clean"):
        assert f"make {target} " in outcome.stdout
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize(("failing", "called"), [("none", ["lint", "test"]), ("lint", ["lint"])])
def test_the_gate_checks_style_first_and_stops_at_what_fails(repository, tmp_path, failing, called):
    make = tmp_path / "make"
    make.write_text(f'#!/bin/bash\necho "$@" >> {tmp_path}/calls.txt\n[[ $1 != {failing} ]]\n')
    make.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CI": "true"}
    outcome = subprocess.run([repository / ".ci" / "run"], env=environment, check=False)
    calls = (tmp_path / "calls.txt").read_text().splitlines()
    assert [call.split()[0] for call in calls] == called
    assert (outcome.returncode == 0) == (failing == "none")


def test_constraints_are_exact_and_name_no_place(repository):
    lines = (repository / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert len(pins) > 100
    assert all(line.count("==") == 1 and not set(line) & set("+@/ ") for line in pins)
    assert not [line for line in pins if line.startswith(("nvidia-", "triton", "bertline"))]
