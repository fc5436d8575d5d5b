"""Whoever follows docs/clients.md, docs/guides/python.md and docstrings gets what they say.

The first asks a real server with a key, the others open the same model folders in this process.
"""

import inspect
import os
import re
import subprocess
import textwrap

import pytest
import torch
from learned_models import write_learned_models
from running import start

import bert_core
from serving.engine import Engine
from serving.keys import add_key, read_keys
from serving.models import close_models, load_models

FENCE = re.compile(r"^```(sh|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVER = "127.0.0.1:8000"
VERSION = re.compile(r"(?<=version)\W+[0-9a-f]{12}\b")
FRACTION = re.compile(r"(?<![\w.])\d+\.\d+(?:e-\d+)?")
ASKED_WITH = {
    "sh": ["curl -s"],
    "python": ["with Client(", "async with AsyncClient(", "openai.OpenAI(", "InferenceClient("],
}


def blocks(path):
    """The blocks of a page: the line at which each begins, its kind, its text."""
    text = path.read_text(encoding="utf-8")
    return [(text[: each.start(2)].count("\n"), *each.groups()) for each in FENCE.finditer(text)]


@pytest.fixture(scope="module")
def page(repository):
    """The blocks of docs/clients.md."""
    return blocks(repository / "docs" / "clients.md")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of models that know the sentences of both pages, by name."""
    return write_learned_models(tmp_path_factory.mktemp("learned"))


@pytest.fixture(scope="module")
def served(folders, tmp_path_factory):
    """The address of a server of the models, and a key for it."""
    folder = tmp_path_factory.mktemp("keys")
    key = add_key(folder / "keys.json", "me", ["predict"], None)
    models = load_models(folders)
    running, stop = start(Engine(models), folders, keys=read_keys(folder / "keys.json"))
    yield f"{running.host}:{running.port}", key
    stop()
    close_models(list(models.values()))


def differences(printed, shown):
    """What is not as shown, but for spaces, versions, and fractions by more than 0.01."""
    same = [FRACTION.sub("#", VERSION.sub("", each)) for each in (printed, shown)]
    if "".join(same[0].split()) != "".join(same[1].split()):
        return f"printed:\n{printed}\nshown:\n{shown}"
    pairs = zip(FRACTION.findall(printed), FRACTION.findall(shown), strict=True)
    return [pair for pair in pairs if abs(float(pair[0]) - float(pair[1])) > 0.01]


def follow(page, capsys, rewrite=str):
    """Runs the blocks of a page; what each prints has to be what the page shows after it."""
    namespace, printed, num_shown = {}, "", 0
    for line, kind, text in page:
        code = rewrite(text)
        if kind == "sh":
            command = ["bash", "-euc", code]
            done = subprocess.run(command, capture_output=True, text=True, env=os.environ.copy())
            assert done.returncode == 0, done.stderr
            printed = done.stdout
        elif kind == "python":
            exec(compile("\n" * line + code, "the page", "exec"), namespace)
            printed = capsys.readouterr().out
        else:
            wrong = differences(printed, text)
            assert not wrong, f"line {line}: {wrong}"
            num_shown += 1
    assert num_shown == sum(kind != "text" for _, kind, _ in page)


def test_every_example_prints_what_the_page_shows(page, served, capsys, monkeypatch):
    address, key = served
    monkeypatch.setenv("BERTLINE_KEY", key)
    follow(page, capsys, lambda text: text.replace(SERVER, address))


def test_the_python_guide_prints_what_it_shows(repository, folders, capsys, monkeypatch):
    monkeypatch.chdir(folders["encoder"].parent)
    follow(blocks(repository / "docs" / "guides" / "python.md"), capsys)


EXAMPLE = re.compile(r"^ {4}\S.*\n(?:(?: {4}.*)?\n)*", re.MULTILINE)
DOCUMENTED = [
    bert_core,
    bert_core.Bert,
    bert_core.ModelConfig,
    bert_core.load,
    bert_core.load_model_folder,
    bert_core.save_model_folder,
    bert_core.Predictor.predict,
    bert_core.Predictor.embed,
    bert_core.Predictor.fill_mask,
]


@pytest.mark.parametrize("public", DOCUMENTED, ids=lambda public: public.__name__)
def test_the_example_in_a_docstring_runs(public, folders, tmp_path, monkeypatch):
    for name, folder in {"sentiment": "sentiment", "pretrain": "encoder"}.items():
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "model").symlink_to(folders[folder])
    (tmp_path / "MODEL_FOLDER").symlink_to(folders["encoder"])
    monkeypatch.chdir(tmp_path)
    names = {name: getattr(bert_core, name) for name in bert_core.__all__}
    (example,) = EXAMPLE.findall(inspect.getdoc(public) + "\n")
    exec(textwrap.dedent(example), names | {"bert_core": bert_core, "torch": torch})


def test_every_client_has_an_example(page):
    for kind, starts in ASKED_WITH.items():
        code = "\n".join(text for _, each, text in page if each == kind)
        assert not [start for start in starts if start not in code]


def test_what_is_printed_is_compared():
    shown = "label='good' score=0.99 version='0123456789ab'"
    assert not differences("label='good'\nscore=0.9871 version='ffffffffffff'", shown)
    assert differences("label='good' score=0.97 version='0123456789ab'", shown)
    assert differences("label='bad' score=0.99 version='0123456789ab'", shown)


def test_other_pages_lead_to_it(repository):
    assert "](docs/clients.md)" in (repository / "README.md").read_text(encoding="utf-8")
    assert "](clients.md)" in (repository / "docs" / "api.md").read_text(encoding="utf-8")
