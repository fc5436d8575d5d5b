"""Whoever follows a page of docs/ gets what it says: snippets, what they print, commands."""

import ast
import importlib
import re
import shlex
import subprocess

import pytest
import torch

from bert_core.tasks.catalog import TASKS
from workflows.evaluation.settings import EvaluateSettings
from workflows.finetune import parse
from workflows.settings import parse_command_line

FENCE = re.compile(
    r"^```(python|text|text about|text such as|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
PAGES = ["exercises/01_mlm_training.md", "exercises/02_finetuning.md", "new_task.md"]
PARSERS = {
    "workflows/finetune.py": parse,
    "workflows/evaluate.py": lambda words: parse_command_line(EvaluateSettings, words),
}
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")


@pytest.fixture
def process_stays():
    """Takes out of TASKS what a page has put in, and gives torch its threads back."""
    before, num_threads = dict(TASKS), torch.get_num_threads()
    yield
    TASKS.clear()
    TASKS.update(before)
    torch.set_num_threads(num_threads)


def fences(page):
    """The fenced blocks of a page: where each begins, its kind, its text."""
    text = page.read_text(encoding="utf-8")
    return [(text[: each.start(2)].count("\n"), *each.groups()) for each in FENCE.finditer(text)]


def differences(printed, shown, *, about):
    """What is not as shown: words, and numbers by more than the weights of a run may do.

    Whole numbers and words are exact, fractions to two units of their last place. `about` is for
    what comes of training: whole numbers may differ by 4 there, fractions by 0.1.
    """
    if NUMBER.sub("#", printed).split() != NUMBER.sub("#", shown).split():
        return [f"printed:\n{printed}\nshown:\n{shown}"]
    wrong = []
    for found, wanted in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        places = len(wanted.partition(".")[2])
        allowed = 2.01 * 10.0**-places if places else 0.0
        if about:
            allowed = 0.1 if places else 4.0
        if abs(float(found.replace(",", "")) - float(wanted.replace(",", ""))) > allowed:
            wrong.append(f"{found} was printed, {wanted} is shown")
    return wrong


def test_what_snippets_import_is_there(repository):
    missing, num_names = [], 0
    for page in [repository / "README.md", *(repository / "docs").rglob("*.md")]:
        for line, kind, text in fences(page):
            nodes = ast.walk(ast.parse(text)) if kind == "python" else ()
            for node in (each for each in nodes if isinstance(each, ast.ImportFrom)):
                if node.module.partition(".")[0] not in ("bert_core", "serving", "workflows"):
                    continue
                module = importlib.import_module(node.module)
                num_names += len(node.names)
                missing += [
                    f"{page.name}:{line}: {node.module}.{each.name}"
                    for each in node.names
                    if not hasattr(module, each.name)
                ]
    assert num_names > 40 and not missing


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_every_snippet_runs_and_prints_what_the_page_shows(repository, name, capsys, process_stays):
    page = repository / "docs" / name
    namespace = {"__name__": "exercise"}
    num_snippets, printed = 0, ""
    for line, kind, text in fences(page):
        if kind == "python":
            num_snippets += 1
            exec(compile("\n" * line + text, str(page), "exec"), namespace)
            printed = capsys.readouterr().out
        elif kind == "text such as":  # examples that other weights would choose otherwise
            assert len(printed.splitlines()) == len(text.splitlines()), f"{page.name}:{line}"
        elif kind != "sh":
            wrong = differences(printed, text, about=kind == "text about")
            assert not wrong, f"{page.name}:{line}: {wrong}"
    assert num_snippets > 3


def test_what_is_printed_is_compared():
    shown = "epoch 2: loss 0.69, 1,572 tokens\nstats 0.25"
    assert not differences("epoch 2:  loss 0.70, 1,572 tokens\nstats  0.25", shown, about=False)
    assert differences("epoch 2: loss 0.72, 1,572 tokens\nstats 0.25", shown, about=False)
    assert differences("epoch 2: loss 0.69, 1,573 tokens\nstats 0.25", shown, about=False)
    assert differences("epoch 2: loss 0.69, 1,572 tokens\nsignal 0.25", shown, about=False)
    assert not differences("epoch 2: loss 0.60, 1,570 tokens\nstats 0.25", shown, about=True)
    assert differences("epoch 2: loss 0.50, 1,570 tokens\nstats 0.25", shown, about=True)
    assert differences("epoch 2: loss 0.69, 1,572 tokens\nstats -0.25", shown, about=True)


def commands(page):
    """The commands in a page's blocks of shell, as the shell expands them, each its words."""
    for _, kind, text in fences(page):
        if kind == "sh":
            script = f'python() {{ printf "%q " "$@"; echo; }}\n{text}'
            done = subprocess.run(
                ["bash", "-euc", script], capture_output=True, text=True, check=True
            )
            yield from map(shlex.split, done.stdout.splitlines())


def test_every_command_of_the_exercises_can_be_read(repository):
    found = list(commands(repository / "docs" / "exercises" / "02_finetuning.md"))
    settings = [PARSERS[program](words) for program, *words in found]
    ours, evaluation, *grid = settings
    assert (ours.batch_size, ours.epochs, ours.optimizer.peak_learning_rate) == (12, 3, 2e-4)
    assert ours.options.second_column == "summary"
    assert evaluation.model == ours.name
    of_the_paper = {
        (batch, rate, epochs)
        for batch in (16, 32)
        for rate in (5e-5, 3e-5, 2e-5)
        for epochs in (2, 3, 4)
    }
    tried = [(each.batch_size, each.optimizer.peak_learning_rate, each.epochs) for each in grid]
    assert len(tried) == len({each.name for each in grid}) == 18
    assert set(tried) == of_the_paper


def test_every_exercise_is_tested(repository):
    pages = {f"exercises/{page.name}" for page in (repository / "docs" / "exercises").glob("*.md")}
    assert pages == {page for page in PAGES if page.startswith("exercises/")}
