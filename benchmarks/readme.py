"""Write the measured results from the committed JSON: docs/benchmarks.md, and README.md's table.

`python -m benchmarks.readme` renders benchmarks/benchmarks.md.j2 with every file in
benchmarks/results. With `--check` it changes nothing, names the file that differs and exits
with 1.
"""

import argparse
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_core.config import SIZES
from bert_core.errors import UserError
from workflows.paper.published import TABLE_7_DEV as PAPER_DEV
from workflows.paper.published import TABLE_7_TITLES as TITLES
from workflows.paper.published import metric_title, score_text

if TYPE_CHECKING:
    from jinja2.environment import TemplateModule

ROOT = Path(__file__).parents[1]
RESULTS = "benchmarks/results"
PAGE, SWEEP = "docs/benchmarks.md", "docs/sweep-mrpc"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->"
_TABLE = re.compile(rf"(?<={BEGIN}).*?(?={END})", re.DOTALL)

Results = dict[str, Any]


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Write or check both files: 1 if one differs, 2 if they cannot be written."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, name what differs")
    options = parser.parse_args(arguments)
    try:
        texts = rendered(root)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    changed = [
        path for path, text in texts.items() if not path.exists() or path.read_text("utf-8") != text
    ]
    for path in changed:
        if options.check:
            print(f"{path}: differs from {RESULTS}; run python -m benchmarks.readme")
        else:
            path.write_text(texts[path], encoding="utf-8")
    if options.check:
        return 1 if changed else 0
    print(f"wrote {', '.join(map(str, changed)) or 'nothing: both are up to date'}")
    return 0


def rendered(root: Path) -> dict[Path, str]:
    """Render the page and README.md with its table, by their paths.

    Raises `UserError` if results are missing or README.md has no place for the table.
    """
    from jinja2 import UndefinedError

    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8")
    if len(_TABLE.findall(text)) != 1:
        raise UserError("no place for the table", "README.md", f"add {BEGIN.strip()} and {END}")
    results = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((root / RESULTS).glob("*.json"))
    }
    sweep = json.loads((root / SWEEP / "report.json").read_text(encoding="utf-8"))
    values = {"results": results, "sweep": sweep}
    try:
        table = str(_template("benchmarks.md.j2", values).summary(PAGE))  # pyright: ignore[reportAttributeAccessIssue] - a macro
        page = render_page("benchmarks.md.j2", values)
    except UndefinedError as error:
        raise UserError(f"results are missing ({error})", RESULTS, "run make bench") from error
    return {root / PAGE: page, readme: _TABLE.sub(lambda _: table, text)}


def render_page(name: str, values: Results) -> str:
    """Render a Markdown template of this folder; paragraphs are filled up to 100 characters."""
    blocks = re.split(r"\n{2,}", str(_template(name, values)).strip())
    return (
        "\n\n".join(
            block
            if block.startswith(("|", "#", "!", "-", "```"))
            else textwrap.fill(block, 100, break_long_words=False, break_on_hyphens=False)
            for block in blocks
        )
        + "\n"
    )


def _template(name: str, values: Results) -> "TemplateModule":
    """In templates `x | f(".1f")` formats as Python does."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters["f"] = format
    environment.globals |= {
        "SIZES": SIZES,
        "PAPER_DEV": PAPER_DEV,
        "TITLES": TITLES,
        "fastest": fastest,
        "metric_title": metric_title,
        "notes": notes,
        "score_text": score_text,
        "timed": timed,
    }
    return environment.get_template(name).make_module(values)


def timed(result: Results) -> Results:
    """Select the arms that have been timed: a killed run leaves some that have not."""
    arms = result.get("arms", {})
    return {name: arm for name, arm in arms.items() if "tokens_per_second" in arm}


def fastest(result: Results, *, ours: bool) -> tuple[str, Results] | None:
    """Return the arm of ours, or of the peers, with the most tokens a second; None without any."""
    arms = [(name, arm) for name, arm in timed(result).items() if ("ratio" not in arm) == ours]
    return max(arms, key=lambda named: named[1]["tokens_per_second"], default=None)


def notes(result: Results) -> str:
    """Describe what a reader must know about a pre-training result that is not whole or steady."""
    found = ["unfinished"] if result.get("unfinished") else []
    if left_out := result.get("left_out"):
        found.append(f"left out: {', '.join(left_out)}")
    if failed := result.get("failed"):
        found.append(f"failed: {', '.join(failed)}")
    arms = timed(result) | result.get("ablation", {})
    loose = [
        f"{name} {arm['spread_of_rounds']:.0%}" for name, arm in arms.items() if not arm["steady"]
    ]
    if loose:
        found.append(f"rounds differ: {', '.join(loose)}")
    return "".join(f"; {note}" for note in found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
