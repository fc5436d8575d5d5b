"""The console script: its help, its dispatch to the commands, and shell completion."""

import resource
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

from workflows import cli

REPOSITORY = Path(cli.__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(autouse=True)
def console_script(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/bertline"])


def run(*arguments):
    return subprocess.run(
        [sys.executable, *arguments], cwd=REPOSITORY, capture_output=True, text=True
    )


def test_the_console_script_is_installed_with_the_project():
    value = PROJECT["scripts"]["bertline"]
    assert EntryPoint("bertline", value, "console_scripts").load() is cli.main


def test_help_takes_less_than_300_ms_of_a_processor():
    used = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        outcome = run("-m", "workflows.cli", "--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert (outcome.returncode, outcome.stderr) == (0, "")
    assert min(used) < 0.3


def test_help_imports_no_library():
    outcome = run("-X", "importtime", "-m", "workflows.cli", "--help")
    imported = {line.rpartition("|")[2].strip() for line in outcome.stderr.splitlines()}
    assert "bert_core.errors" in imported
    assert not imported & {"torch", "ray", "mlflow", "pydantic", "numpy", "serving"}


def test_help_fits_a_screen_and_lists_every_command():
    lines = cli.overview().splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    commands = {
        path.stem.replace("_", "-")
        for path in (REPOSITORY / "workflows").glob("*.py")
        if '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8") and path.stem != "cli"
    }
    assert commands | {"serve", "completion"} | {*cli.PRESETS} == set(cli.VERBS)
    assert [line[11:].split()[0] for line in lines[2:-2]] == list(cli.VERBS)


def test_version_and_help(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"bertline {PROJECT['version']}\n"
    for arguments in ([], ["-h"], ["--help"]):
        assert cli.main(arguments) == 0
        assert capsys.readouterr().out == cli.overview() + "\n"
    assert cli.main(["completion", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: bertline completion ")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["pretrian"], "did you mean pretrain"),
        (["--verison"], "unknown command"),
        (["completion", "tcsh"], "one of bash, zsh, fish"),
        (["completion"], "one of bash, zsh, fish"),
        (["registry", "linage"], "did you mean lineage"),
    ],
)
def test_a_wrong_command_is_one_line(capsys, arguments, expected):
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert expected in printed.err and printed.err.count("\n") == 1 and not printed.out


def test_arguments_and_exit_codes_are_those_of_the_command(monkeypatch):
    given = []
    command = SimpleNamespace(main=lambda arguments: given.append(arguments) or 3)
    monkeypatch.setitem(sys.modules, "workflows.predict", command)
    assert cli.main(["predict", "--input", "a b", "--help"]) == 3
    assert given == [["--input", "a b", "--help"]]
    assert sys.argv == ["/somewhere/bin/bertline predict", "--input", "a b", "--help"]


@pytest.mark.slow
def test_serve_is_the_server():
    outcome = run("-m", "workflows.cli", "serve", "--model", "no/such/folder", "--device", "cpu")
    assert outcome.returncode == 2
    assert outcome.stderr.startswith("error: ") and "no/such/folder" in outcome.stderr


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["-m", "serving"], "python -m serving"),
        (["-m", "workflows.cli", "serve"], "bertline serve"),
        (["workflows/registry.py"], "python workflows/registry.py"),
        (["-m", "workflows.cli", "registry"], "bertline registry"),
    ],
)
def test_each_way_to_start_a_command_names_its_own_program(command, name):
    assert run(*command, "--help").stdout.startswith(f"usage: {name} ")


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory):
    outcome = run("-m", "workflows.cli", "completion", "bash")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    path = tmp_path_factory.mktemp("completion") / "bertline"
    path.write_text(outcome.stdout, encoding="utf-8")
    return path


@pytest.mark.some(5)
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("pre", "prepare pretrain predict"),
        ("--v", "--version"),
        ("pretrain --pre", "--preset --precision"),
        ("pretrain --name x --fre", "--fresh"),
        ("pretrain --preset ba", "base base-fast"),
        ("ablate --preset ba", "base base-fast"),
        ("finetune --preset ba", ""),  # presets of pre-training
        ("finetune --profile lo", "local"),
        ("finetune --task docs_a", "docs_answers"),
        ("tune --options.document_co", "--options.document_column --options.document_context"),
        ("tune --search ", "grid random optuna"),
        ("evaluate --suite ", "glue table7 pictures"),
        ("evaluate --proj", "--projection"),  # of one suite only
        ("promote ", "rollback history"),
        ("promote rollback --rea", "--reason"),
        ("registry l", "lineage"),
        ("extract --pooling c", "cls"),
        ("serve --limits.max_batch", "--limits.max_batch_tokens"),
        ("pretrain --shards ", ""),  # a path: bash completes files
        ("completion ", "bash zsh fish"),
        ("nothing ", ""),
    ],
)
def test_bash_completes(bash_script, typed, expected):
    words = ["bertline", *typed.split(" ")]
    program = (
        f'source {shlex.quote(str(bash_script))} && complete -p bertline && COMP_WORDS=("$@")'
        ' COMP_CWORD=$(($# - 1)) && _bertline && echo "${COMPREPLY[@]}"'
    )
    outcome = subprocess.run(
        ["bash", "-eu", "-c", program, "bash", *words], capture_output=True, text=True
    )
    registered, *completed = outcome.stdout.splitlines()
    assert registered == "complete -o default -F _bertline bertline"
    assert not outcome.stderr
    assert sorted(" ".join(completed).split()) == sorted(expected.split())


def test_other_shells_complete_the_same(monkeypatch):
    options = {"--preset": ["base", "large"], "--shards": []}
    monkeypatch.setattr(cli, "options_of", lambda verb: options if verb == "pretrain" else {})
    bash, zsh, fish = (cli.completion_script([shell]) for shell in cli.SHELLS)
    cases = bash[bash.index("  case") : bash.rindex("esac")]
    assert '"pretrain --preset "*) choices="base large" ;;' in cases
    assert zsh.startswith("#compdef bertline\n") and cases in zsh
    of_pretrain = "complete -c bertline -n '__fish_seen_subcommand_from pretrain'"
    assert f"{of_pretrain} -l preset -x -a 'base large'" in fish.splitlines()
    assert f"{of_pretrain} -l shards" in fish.splitlines()
    assert all(f" -f -a {verb} -d " in fish for verb in cli.VERBS)
