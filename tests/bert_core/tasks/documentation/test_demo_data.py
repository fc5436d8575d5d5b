"""What the demo fine-tunes on: all three tasks, on what is installed with Bertline."""

import hashlib
import os
import subprocess
import sys
import time

import pytest

from bert_core.tasks.catalog import TASKS

TEXT_OF = {
    "docs_library": lambda each: each.first,
    "docs_parameters": lambda each: " ".join(each.words),
    "docs_answers": lambda each: each.context,
}
MODULE_OF = {
    "docs_library": lambda each: each.columns["module"],
    "docs_parameters": lambda each: each.columns["module"],
    "docs_answers": lambda each: each.title,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXT_OF)
def test_examples_are_many_and_quick_and_their_splits_share_no_text(name):
    started = time.process_time()
    splits = {split: TASKS[name].examples("docs://", split) for split in ("train", "dev", "test")}
    seconds = time.process_time() - started
    counts = {split: len(examples) for split, examples in splits.items()}
    print(name, counts, f"in {seconds:.1f} s")
    assert counts["train"] >= 2000 and counts["dev"] >= 200 and seconds < 20
    seen = {}
    for split, examples in splits.items():
        for each in examples:
            for of in (TEXT_OF, MODULE_OF):
                assert seen.setdefault(of[name](each), split) == split


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXT_OF)
def test_another_process_reads_the_same(name):
    code = (
        "import hashlib; from bert_core.tasks.catalog import TASKS;"
        f"examples = TASKS[{name!r}].examples('docs://', 'dev');"
        "print(hashlib.sha256(repr(examples).encode()).hexdigest())"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    here = repr(TASKS[name].examples("docs://", "dev"))
    assert done.stdout.strip() == hashlib.sha256(here.encode()).hexdigest()
