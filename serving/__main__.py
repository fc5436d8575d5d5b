"""`python -m serving --model FOLDER|models:/NAME@ALIAS …`: models over HTTP, on one machine."""

import sys

from bert_core.errors import UserError
from serving.settings import parse_arguments


def main() -> int:
    """Serves until it is stopped; returns 2 for a `UserError`."""
    try:
        settings = parse_arguments(sys.argv[1:])
        from serving.server import serve  # loads torch and FastAPI, which takes seconds

        serve(settings)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
