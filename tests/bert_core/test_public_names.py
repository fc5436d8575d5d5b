"""`import bert_core` is quick, and its names are there when they are first used."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import bert_core
from bert_core.predictor import load_predictor

HEAVY = ("torch", "tokenizers", "numpy", "pydantic", "safetensors", "ray", "mlflow", "fastapi")


def loaded_by(code):
    """Which of the heavy packages a fresh process has loaded after the code."""
    listing = f"import sys; print(*{{m.split('.')[0] for m in sys.modules}} & {{*{HEAVY}}})"
    command = [sys.executable, "-c", f"{code}; {listing}"]
    folder = Path(bert_core.__file__).parents[1]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return {*done.stdout.split()}


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_by("import bert_core; dir(bert_core); bert_core.UserError") == set()


def test_options_and_answers_load_no_torch():
    assert loaded_by("from bert_core import Classified") == {"pydantic"}


def test_the_client_loads_neither_torch_nor_a_server():
    assert loaded_by("from serving.client import Client") <= {"numpy", "pydantic"}


@pytest.mark.parametrize("name", bert_core.__all__)
def test_each_public_name_is_there_and_documented(name):
    public = getattr(bert_core, name)
    assert name in dir(bert_core)
    assert public.__doc__
    assert getattr(import_module(public.__module__), public.__name__) is public


def test_types_are_those_that_checkers_see():
    """Type checkers and mkdocstrings read the imports under TYPE_CHECKING."""
    tree = ast.parse(Path(bert_core.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in block.body
        for alias in node.names
    }
    assert imported == bert_core._SOURCES
    assert sorted(imported) == bert_core.__all__


def test_load_opens_a_predictor():
    assert bert_core.load is load_predictor


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'bert_core' has no attribute 'nothing'"):
        _ = bert_core.nothing
    with pytest.raises(ImportError, match="nothing"):
        exec("from bert_core import nothing")
