"""The rules of the house, held over every module; each rule is also shown to be able to fail."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import source_rules as rules
import yaml

from workflows.pretraining.settings import PretrainSettings
from workflows.settings import LAYERS, parse_command_line

REPOSITORY = Path(__file__).parent.parent
MODULES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts): path
    for package in rules.PACKAGES
    for path in sorted((REPOSITORY / package).rglob("*.py"))
    if path.name != "__init__.py"
}
IMPORT_WATCH = Path(rules.__file__).with_name("import_watch.py")


def source_of(module):
    return MODULES[module].read_text(encoding="utf-8")


@pytest.mark.parametrize("module", MODULES)
def test_a_module_keeps_the_rules(module):
    source = source_of(module)
    complaints = (
        rules.import_complaints(module, source)
        + rules.unsafe_calls(source)
        + rules.naming_complaints(module)
        + rules.length_complaints(source)
        + rules.unexplained_ignores(source)
    )
    assert not complaints, f"{module}:\n" + "\n".join(complaints)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("bert_core.x", "import ray"),
        ("bert_core.x", "def f():\n    from transformers import BertModel"),
        ("bert_core.x", "import torch.nn as nn, sklearn.metrics"),
        ("bert_core.x", "try:\n    import jax\nexcept ImportError:\n    jax = None"),
        ("bert_core.x", "class A:\n    import pyarrow"),
        ("bert_core.x", "from importlib import import_module\ndef f(): import_module('mlflow')"),
        ("bert_core.x", "if TYPE_CHECKING:\n    from workflows.settings import Settings"),
        ("bert_core.x", "from . import config"),
        ("bert_core.x", "import pickle"),
        ("workflows.pretrain", "from ray import train"),
        ("workflows.pretrain", "def f():\n    import ray.train.torch"),
        ("workflows.pretrain", "def f():\n    import mlflow"),
        ("workflows.versions.registration", "from mlflow import MlflowClient"),
        ("workflows.versions.registration", "def f():\n    from ray import cloudpickle"),
        ("serving.app", "from ray.train import Checkpoint"),
        ("serving.app", "def f():\n    from workflows import settings"),
        ("serving.app", "def f():\n    import mlflow"),
        ("serving.watch", "def f():\n    import mlflow"),
        ("serving.models", "from serving.registry import fetch_model"),
        ("serving.models", "def f():\n    from serving import watch"),
        ("workflows.demo", "from serving.app import create_app"),
    ],
)
def test_a_wrong_import_is_found(module, source):
    assert rules.import_complaints(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("bert_core.x", "import json, torch\nfrom bert_core.config import ModelConfig"),
        ("bert_core.x", "def f():\n    import sklearn.metrics"),
        ("bert_core.x", "if TYPE_CHECKING:\n    import pyarrow"),
        ("workflows.clusters.workers", "import ray.train"),
        ("workflows.prepare", "import ray\nfrom ray.util import queue"),
        ("workflows.runs.mlflow_run", "if TYPE_CHECKING:\n    import mlflow"),
        ("workflows.runs.sender", "def f():\n    import mlflow"),
        ("serving.deployment", "from ray import serve"),
        ("serving.registry", "def f():\n    import mlflow"),
        ("serving.watch", "from serving.registry import fetch_model"),
        ("workflows.versions.registration", "from serving.registry import fetch_model"),
    ],
)
def test_a_right_import_is_let_through(module, source):
    assert not rules.import_complaints(module, source)


@pytest.mark.parametrize(
    "source",
    [
        "model.load_state_dict(state, strict=False)",
        "np.load(path, allow_pickle=True)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
    ],
)
def test_an_unsafe_call_is_found(source):
    assert rules.unsafe_calls(source)


def test_a_safe_call_is_let_through():
    assert not rules.unsafe_calls("torch.load(a, weights_only=True); zip(a, b, strict=False)")


def test_ignored_types_need_a_reason():
    ignored = "x = f()  # pyright: ignore[rule]"
    assert rules.unexplained_ignores(ignored)
    assert rules.unexplained_ignores("y = 1\nx = f()  # type: ignore")
    assert not rules.unexplained_ignores(ignored + " - torch gives no type")
    assert not rules.unexplained_ignores("# torch gives no type\n" + ignored)


def test_modules_import_in_one_direction():
    assert rules.import_circle({module: source_of(module) for module in MODULES}) == []


def test_a_circle_of_imports_is_found():
    sources = {"a.b": "import a.c", "a.c": "def f():\n    from a import b", "a.d": "import a.b"}
    assert set(rules.import_circle(sources)) == {"a.b", "a.c"}
    assert not rules.import_circle({"a.b": "import a.c", "a.c": "import json", "a.d": "import a.b"})


def test_names_and_lengths_are_judged():
    assert rules.naming_complaints("bert_core.text.utils")
    assert rules.naming_complaints("serving.common.engine")
    assert not rules.naming_complaints("bert_core.text.encoding")
    assert rules.length_complaints("\n" * 501)
    assert not rules.length_complaints("\n" * 500)


@pytest.mark.slow
def test_importing_a_module_does_nothing(tmp_path):
    done = watch_imports(tmp_path, list(MODULES))
    assert done.keys() == MODULES.keys()
    assert not {name: what for name, what in done.items() if what}


DEEDS = {
    "environment": "import os\nos.environ['BERTLINE'] = '1'",
    "file": "from pathlib import Path\nPath('made').write_text('')",
    "folder": "from pathlib import Path\n(Path.home() / '.bertline').mkdir()",
    "thread": "import threading\nthreading.Thread(target=print).start()",
    "logger": "import logging\nlogging.basicConfig(level='INFO')",
    "network": "import socket\ntry: socket.create_connection(('127.0.0.1', 9))\nexcept OSError: 0",
    "process": "import subprocess\nsubprocess.run(['true'])",
    "warnings": "import warnings\nwarnings.filterwarnings('ignore')",
    "torch": "import torch\ntorch.set_num_threads(7)",
    "seed": "import torch\ntorch.manual_seed(7)",
    "broken": "import no_such_module_anywhere",
}


@pytest.mark.slow
def test_whatever_an_import_does_is_seen(tmp_path):
    (tmp_path / "source" / "serving").mkdir(parents=True)
    for name, source in {"__init__": "", "nothing": "import torch", **DEEDS}.items():
        (tmp_path / "source" / "serving" / f"{name}.py").write_text(source)
    names = ["nothing", *DEEDS]
    done = watch_imports(tmp_path, [f"serving.{name}" for name in names], tmp_path / "source")
    assert not done.pop("serving.nothing")
    assert all(done.values()), done


def watch_imports(tmp_path, modules, source=REPOSITORY):
    """What importing each module did, by module."""
    home = Path(tempfile.mkdtemp(dir=tmp_path))
    outcome = subprocess.run(
        [sys.executable, str(IMPORT_WATCH), str(source), *modules],
        cwd=home,
        env=os.environ | {"HOME": str(home)},
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout.splitlines()[-1])


def layer_files(option):
    return {path.stem: yaml.safe_load(path.read_text()) for path in LAYERS[option].glob("*.yaml")}


@pytest.mark.parametrize("option", LAYERS)
def test_every_preset_and_profile_loads_and_says_only_what_differs(option):
    # Without preset and profile: these are what the files are deltas from.
    defaults = PretrainSettings().model_dump(mode="json")
    files = layer_files(option)
    assert files
    large = ["--preset", "base"] if option == "profile" else []  # rows for every chip of a slice
    # A profile lies over presets: it may take back what one of them says.
    below = layer_files("preset").values() if option == "profile" else []
    for name, content in files.items():
        parse_command_line(PretrainSettings, [*large, f"--{option}", name])
        repeated = rules.repeated_defaults(content, defaults)
        assert not [each for each in repeated if not rules.said_by(each, below)], name
    assert len({json.dumps(content, sort_keys=True) for content in files.values()}) == len(files)


def test_a_repeated_default_is_found():
    defaults = {"seed": 0, "optimizer": {"name": "adamw", "warmup_steps": 10}}
    preset = {"seed": 1, "optimizer": {"name": "adamw", "warmup_steps": 5}}
    assert rules.repeated_defaults(preset, defaults) == ["optimizer.name"]
    assert rules.said_by("optimizer.name", [{}, preset])
    assert not rules.said_by("optimizer.name", [{"optimizer": {"warmup_steps": 5}}, {"seed": 1}])


def tracked_files():
    """The files of the checkout, as git has them; else all that stand in it."""
    if shutil.which("git") and (REPOSITORY / ".git").exists():
        command = ["git", "-C", str(REPOSITORY), "ls-files", "-z"]
        listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        names = [name for name in listed.split("\0") if name]
    else:
        names = [str(path.relative_to(REPOSITORY)) for path in REPOSITORY.rglob("*")]
        names = [name for name in names if not name.startswith(".venv")]
    return [path for name in names if (path := REPOSITORY / name).is_file()]


def test_no_tracked_file_names_a_path_of_one_machine():
    found = {}
    for path in tracked_files():
        try:
            paths = rules.machine_paths(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue
        if paths:
            found[path.name] = paths
    assert not found


def test_a_path_of_one_machine_is_found():
    for folder in ("home", "root", "work", "Users"):
        assert rules.machine_paths(f"open('/{folder}/someone/file')")
    assert not rules.machine_paths("https://example.org/home/one ./work/one tests/root/one /home/x")
