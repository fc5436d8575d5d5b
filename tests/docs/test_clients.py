"""Whoever follows docs/clients.md, docs/guides/python.md and docstrings gets what they say.

The first asks a real server with a key, the others open the same model folders in this process.
"""

import inspect
import re
import textwrap

import pytest
import torch
from followed_pages import blocks, differences, follow
from learned_models import write_learned_models
from running import start

import bert_core
from serving.engine import Engine
from serving.keys import add_key, read_keys
from serving.models import close_models, load_models

SERVER = "127.0.0.1:8000"
ASKED_WITH = {
    "sh": ["curl -s"],
    "python": ["with Client(", "async with AsyncClient(", "openai.OpenAI(", "InferenceClient("],
}


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
