"""Whatever stands in a folder that somebody else made: it is opened, or refused in one line."""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
COUNTS = {"tokenizer": 100, "model": 100, "shards": 80, "checkpoint": 80}


def test_folders_changed_at_random_are_opened_or_refused(
    tmp_path, repository, subprocess_environment
):
    paths = [str(repository), str(HERE), str(HERE.parent / "text")]
    script = [sys.executable, HERE / "hostile_folders.py", tmp_path, "1"]
    done = subprocess.run(
        [*script, *(f"{kind}={count}" for kind, count in COUNTS.items())],
        env=subprocess_environment | {"PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    for (kind, count), line in zip(COUNTS.items(), lines, strict=True):
        found = json.loads(line)[kind]
        assert sum(found.values()) == count
        assert min(found.values()) > 0  # else no change mattered, or everything was refused
