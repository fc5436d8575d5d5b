"""Whatever stands in a folder that somebody else made: it is opened, or refused in one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("kind", "count"), [("tokenizer", 200), ("model", 200), ("shards", 80), ("checkpoint", 120)]
)
def test_a_folder_changed_at_random_is_opened_or_refused(
    kind, count, tmp_path, repository, subprocess_environment
):
    paths = [str(repository), str(HERE), str(HERE.parent / "text")]
    script = [sys.executable, HERE / "hostile_folders.py", kind, tmp_path / kind, "1", str(count)]
    done = subprocess.run(
        script,
        env=subprocess_environment | {"PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counts = json.loads(done.stdout)
    assert sum(counts.values()) == count
    assert min(counts.values()) > 0  # else no change mattered, or everything was refused
