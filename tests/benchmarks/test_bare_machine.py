"""What runs on a GPU machine needs nothing but the packages that are there: see `bare_machine`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_tasks import WORDS, write_data, write_encoder

from benchmarks.gpu.jobs import Places, all_jobs

SCRIPT = Path(__file__).with_name("bare_machine.py")
REPOSITORY = Path(__file__).parents[2]


def run_bare(commands):
    """All command lines in one process, in which other packages cannot be found."""
    return subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps(commands)],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_fine_tuning_and_features_run_there_and_every_module_can_be_asked(tmp_path):
    write_encoder(tmp_path / "encoder")
    vocabulary = tmp_path / "vocabulary"
    vocabulary.mkdir()
    (tmp_path / "encoder" / "tokenizer.json").rename(vocabulary / "tokenizer.json")
    write_data("mrpc", tmp_path / "mrpc")
    (tmp_path / "sentences.txt").write_text("the cat sat\non a mat\n")
    (tmp_path / "paragraphs.txt").write_text(f"{' '.join(WORDS * 3)}\n" * 3)
    fresh = ["--model", str(vocabulary), "--size", "tiny", "--json"]
    features = ["--sentences", str(tmp_path / "sentences.txt"), "--rounds", "1"]
    features += ["--paragraphs", str(tmp_path / "paragraphs.txt"), *fresh]
    commands = [["benchmarks.features", *features, str(tmp_path / "features.json")]]
    words = ["--task", "mrpc", "--data", str(tmp_path / "mrpc")]
    words += ["--examples", "8", "--batch", "4", "--passes", "1", *fresh]
    commands.append(["benchmarks.finetuning", *words, str(tmp_path / "mrpc.json")])
    modules = {job.arguments[1] for job in all_jobs(Places(shards=tmp_path, data=tmp_path))[0]}
    modules |= {"benchmarks.gpu", "benchmarks.encoder_run", "benchmarks.data"}
    asked = [[module, "--help"] for module in sorted(modules)]
    outcome = run_bare(commands + asked)
    assert outcome.returncode == 0, outcome.stderr[-2000:]
    assert outcome.stdout.count("usage: ") == len(asked)
    results = json.loads((tmp_path / "features.json").read_text())
    assert list(results["arms"]) == ["ours", "transformers"]
    assert results["num_texts"] == 5 and "unfinished" not in results
    results = json.loads((tmp_path / "mrpc.json").read_text())
    assert list(results["arms"]) == ["ours", "transformers, plain loop"]
    assert results["difference"] < 1e-5 and "unfinished" not in results


def test_what_is_not_allowed_is_not_there(tmp_path):
    outcome = run_bare([["sentencex"]])
    assert outcome.returncode != 0 and "No module named sentencex" in outcome.stderr
    (tmp_path / "asks.py").write_text(
        "from importlib.util import find_spec\n"
        "import yaml\n"  # transformers needs it
        "assert not any(map(find_spec, ['ray', 'mlflow', 'pyarrow', 'accelerate', 'scipy']))"
    )
    path = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(SCRIPT), '[["asks"]]']
    assert subprocess.run(command, env=path).returncode == 0
