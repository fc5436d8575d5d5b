"""Scaling on paper and by simulation: `python -m benchmarks.scaling [--write | --check] [--here]`.

Without a flag docs/scaling.md is printed as it would be written. `--write` writes it and its
picture; `--check` says whether both are up to date, 1 where not; `--here` first measures two
processes of this machine, for the document to tell.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.readme.parts import results_path
from benchmarks.scaling.checks import HERE
from benchmarks.scaling.document import PICTURE, chosen, document, rates_of
from benchmarks.scaling.picture import draw, fingerprint
from bert_core.errors import UserError

ROOT = Path(__file__).parents[2]
DOCUMENT = "docs/scaling.md"


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Prints, writes or checks: 1 where something is out of date, 2 where it cannot be written."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--write", action="store_true", help="write the document and its picture")
    either.add_argument("--check", action="store_true", help="change nothing, name what differs")
    parser.add_argument("--here", action="store_true", help="measure two processes over gloo first")
    options = parser.parse_args(arguments)
    try:
        if options.here:
            from benchmarks.scaling.here import measure_here

            measure_here(results_path(root, HERE))
        text, rate = document(root), chosen(rates_of(root))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    path, picture = root / DOCUMENT, (root / DOCUMENT).with_name(PICTURE)
    if options.write:
        path.write_text(text, encoding="utf-8")
        draw(rate, picture)
        print(f"{path}: written, with {PICTURE}")
        return 0
    if not options.check:
        print(text)
        return 0
    stale = [path] if not path.exists() or path.read_text(encoding="utf-8") != text else []
    if not picture.exists() or fingerprint(rate) not in picture.read_text(encoding="utf-8"):
        stale.append(picture)
    for each in stale:
        print(f"{each}: not what the model says; run python -m benchmarks.scaling --write")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
