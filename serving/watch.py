"""`python -m serving.watch --model models:/NAME@ALIAS`: fetches models from MLflow for servers.

In: addresses of MLflow's registry. Out: model folders in a cache, and for each address a pointer
file that says which of them it stands for now. A process of its own: MLflow never loads in a
server's. Prints a line of JSON for each address: its pointer, and a warning where MLflow did not
answer and the pointer is an earlier one.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bert_core.errors import UserError
from serving.pointers import (
    Address,
    Pointer,
    pointer_path,
    read_pointer,
    switch_pointer,
    without_password,
)
from serving.registry import UnreachableError, default_cache, default_tracking_uri, fetch_model


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetches each model once and leaves; 2 for a `UserError`, which is a line of JSON too."""
    parser = argparse.ArgumentParser(
        prog="python -m serving.watch",
        description="Fetches models from MLflow's registry into the cache that servers read.",
    )
    parser.add_argument(
        "--model", required=True, action="append", help="models:/NAME@ALIAS or models:/NAME/3"
    )
    parser.add_argument(
        "--tracking_uri", help="MLflow's; by default MLFLOW_TRACKING_URI, or ~/.bertline's store"
    )
    parser.add_argument(
        "--cache", type=Path, help="folder of fetched models; by default ~/.bertline/models"
    )
    options = parser.parse_args(arguments)
    cache = (options.cache or default_cache()).expanduser().absolute()
    tracking_uri = options.tracking_uri or default_tracking_uri(default_cache().parent)
    try:
        for address in [Address.of(each) for each in options.model]:
            path, warning = bring_up_to_date(address, tracking_uri, cache)
            line = {"model": str(address), "pointer": str(path), "warning": warning}
            print(json.dumps(line), flush=True)
    except UserError as error:
        print(json.dumps({"what": error.what, "where": error.where, "remedy": error.remedy}))
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def bring_up_to_date(address: Address, tracking_uri: str, cache: Path) -> tuple[Path, str | None]:
    """Has the pointer of an address say what MLflow says now; its path.

    And a warning, where MLflow does not answer and the pointer stays as it is. Raises
    `UnreachableError` where there is none to stay, `UserError` for what MLflow does not have.
    """
    path = pointer_path(cache, address, tracking_uri)
    before = read_pointer(path)
    try:
        model = fetch_model(str(address), tracking_uri, cache)
    except UnreachableError as error:
        if before is None:
            raise
        return path, f"{address} is version {before.version}, as fetched before: {error}"
    pointer = Pointer(
        address=str(address),
        name=model.name,
        version=model.version,
        alias=address.alias,
        folder=model.folder,
        tracking_uri=without_password(tracking_uri),
        lineage=model.lineage,
    )
    if pointer != before:
        switch_pointer(path, pointer)
    return path, None


if __name__ == "__main__":
    sys.exit(main())
