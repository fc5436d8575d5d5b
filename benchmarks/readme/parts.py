"""What the blocks of the README are made of: results, links, tables."""

import json
from collections.abc import Container
from pathlib import Path
from typing import Any

from bert_core.errors import UserError

RESULTS = "benchmarks/results"

Results = dict[str, Any]


def results_path(root: Path, name: str) -> Path:
    """The file of a benchmark's results."""
    return root / RESULTS / f"{name}.json"


def read_results(root: Path, name: str) -> Results:
    """The results of a benchmark; raises `UserError` where there are none."""
    path = results_path(root, name)
    if not path.exists():
        raise UserError("no such results", str(path), "make bench")
    return json.loads(path.read_text(encoding="utf-8"))


def link(name: str) -> str:
    """A link from the README to results."""
    return f"[figures]({RESULTS}/{name}.json)"


def table(header: list[str], rows: list[list[str]], right: Container[int]) -> str:
    """A table in Markdown; `right` are the columns that are aligned to the right."""
    rule = ["---:" if column in right else "---" for column in range(len(header))]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, rule, *rows))
