"""Data sets of the Hugging Face Hub: `hf://OWNER/NAME[:CONFIG[:SPLIT]]`.

`hf:///FOLDER` is a local copy of a data set repository. The library `datasets` loads both, without
running code from the repository: from version 4 on it runs none.
"""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from bert_core.errors import UserError

SCHEME = "hf://"

_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_SECONDS_TO_ANSWER = 5


class HubDataError(UserError):
    """A data set that cannot be had, or an address that is none."""


@dataclass(frozen=True)
class HubAddress:
    """A data set of the Hub, by OWNER/NAME, or a copy of one, by its path from the root."""

    typed: str
    name: str
    config: str | None
    split: str | None

    @classmethod
    def of(cls, typed: str) -> Self:
        """Reads an address. Raises `HubDataError` for an invalid name."""
        name, _, rest = typed.removeprefix(SCHEME).partition(":")
        config, _, split = rest.partition(":")
        # A name alone could be a folder of the working directory, or a reader of `datasets`: csv.
        if not name.startswith("/") and not _NAME.fullmatch(name):
            raise HubDataError(
                "no name of a data set",
                typed,
                "write hf://OWNER/NAME[:CONFIG], or hf:///FOLDER for a copy on this machine",
            )
        return cls(typed, name, config or None, split or None)


def require_datasets(address: HubAddress) -> None:
    """Raises `HubDataError` where the library `datasets` is not installed; imports nothing."""
    if find_spec("datasets") is None:
        raise HubDataError(
            "Hugging Face data sets need the package `datasets`",
            address.typed,
            "in the checkout: pip install -e '.[datasets]'",
        )


def load_hub_data(address: HubAddress, **options: Any) -> Any:  # noqa: ANN401 - as datasets has it
    """Loads an address with `datasets.load_dataset`: all splits unless `split` is given.

    Raises `HubDataError`, in seconds where the Hub cannot be reached, for whatever goes wrong.
    """
    require_datasets(address)
    from datasets import load_dataset

    path = address.name
    if not path.startswith("/"):
        _refuse_unreachable_hub(address)
        path = f"hf://datasets/{path}"  # never a folder of the working directory
    elif not Path(path).is_dir():
        raise HubDataError("no such folder", address.typed, "check the path")
    try:
        return load_dataset(path, address.config, **options)
    except Exception as error:  # of `datasets`, of the Hub's client, of each reader of files
        first = str(error.__cause__ or error).strip().partition("\n")[0]
        raise HubDataError("cannot load the data set", address.typed, first) from error


def _refuse_unreachable_hub(address: HubAddress) -> None:
    """Asks once: `datasets` would ask six times, for half a minute or for minutes."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.is_offline_mode():
        return  # it looks into its cache, and nowhere else
    try:
        get_session().head(constants.ENDPOINT, timeout=_SECONDS_TO_ANSWER)
    except Exception as error:  # of a client that changes from version to version
        raise HubDataError(
            f"no answer from {constants.ENDPOINT}",
            address.typed,
            "check the connection; HF_HUB_OFFLINE=1 takes what was loaded before from its cache",
        ) from error
