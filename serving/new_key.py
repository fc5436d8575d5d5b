"""`python -m serving.new_key NAME --file FILE` makes a key of an API and shows it, once."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bert_core.errors import UserError
from serving.keys import Scope, add_key


def main(arguments: Sequence[str] | None = None) -> int:
    """Adds a key and prints it; 2 for a `UserError`."""
    parser = argparse.ArgumentParser(prog="python -m serving.new_key", description=__doc__)
    parser.add_argument("name", help="whose key it is")
    parser.add_argument("--file", type=Path, required=True, help="file of keys; made if missing")
    parser.add_argument(
        "--scope", choices=("predict", "admin"), action="append", help="by default predict"
    )
    parser.add_argument("--tokens_per_minute", type=int, default=None, help="by default unlimited")
    options = parser.parse_args(arguments)
    try:
        scopes: list[Scope] = options.scope or ["predict"]
        key = add_key(options.file, options.name, scopes, options.tokens_per_minute)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(key)
    return 0


if __name__ == "__main__":
    sys.exit(main())
