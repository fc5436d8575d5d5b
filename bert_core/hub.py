"""The Hugging Face Hub: data sets, `hf://OWNER/NAME[:CONFIG[:SPLIT]]`, and models.

`hf:///FOLDER` is a local copy of a data set repository. The library `datasets` loads both, without
running code from the repository: from version 4 on it runs none. Models are
`hf://OWNER/NAME[@REVISION]`: files of the formats that are read here, in the cache of the Hub's own
client, and never code.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from bert_core.errors import UserError, require
from bert_core.strict_files import read_json_object
from bert_core.tokenizer_settings import MODULES, class_of_model, rewrite_command

SCHEME = "hf://"

_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_SECONDS_TO_ANSWER = 5


class HubError(UserError):
    """A data set or model that cannot be had, or an address that is none."""


@dataclass(frozen=True)
class HubAddress:
    """A data set of the Hub, by OWNER/NAME, or a copy of one, by its path from the root."""

    typed: str
    name: str
    config: str | None
    split: str | None

    @classmethod
    def of(cls, typed: str) -> Self:
        """Reads an address. Raises `HubError` for an invalid name."""
        name, _, rest = typed.removeprefix(SCHEME).partition(":")
        config, _, split = rest.partition(":")
        # A name alone could be a folder of the working directory, or a reader of `datasets`: csv.
        if not name.startswith("/") and not _NAME.fullmatch(name):
            raise HubError(
                "no name of a data set",
                typed,
                "write hf://OWNER/NAME[:CONFIG], or hf:///FOLDER for a copy on this machine",
            )
        return cls(typed, name, config or None, split or None)


def require_datasets(address: HubAddress) -> None:
    """Raises `HubError` where the library `datasets` is not installed; imports nothing."""
    what = "Hugging Face data sets need the package `{}`"
    require(what, "datasets", where=address.typed, extra="datasets", kind=HubError)


def load_hub_data(address: HubAddress, **options: Any) -> Any:  # noqa: ANN401 - as datasets has it
    """Loads an address with `datasets.load_dataset`: all splits unless `split` is given.

    Raises `HubError`, in seconds where the Hub cannot be reached, for whatever goes wrong.
    """
    require_datasets(address)
    from datasets import load_dataset

    path = address.name
    if not path.startswith("/"):
        _refuse_unreachable_hub(address.typed)
        path = f"hf://datasets/{path}"  # never a folder of the working directory
    elif not Path(path).is_dir():
        raise HubError("no such folder", address.typed, "check the path")
    try:
        return load_dataset(path, address.config, **options)
    except Exception as error:  # of `datasets`, of the Hub's client, of each reader of files
        first = str(error.__cause__ or error).strip().partition("\n")[0]
        raise HubError("cannot load the data set", address.typed, first) from error


@dataclass(frozen=True)
class HubModel:
    """A model of the Hub on this machine; `version` is its address with the commit."""

    folder: Path
    name: str
    version: str


_MODEL = re.compile(rf"({_NAME.pattern})(?:@([\w./-]+))?")
_MODEL_FILES = (
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "modules.json",
    "sentence_*_config.json",
    "config_sentence_transformers.json",
    "*/config.json",  # of the modules of sentence-transformers
)
"""Of a repository that has its weights in other formats too, nothing else comes."""


def fetch_hub_model(typed: str) -> HubModel:
    """The model at `hf://OWNER/NAME[@REVISION]`, downloaded unless the cache has it.

    A revision is a branch, a tag or a commit, by default `main`. Raises `HubError`, in seconds
    where the Hub cannot be reached and the cache has no copy.
    """
    match = _MODEL.fullmatch(typed.removeprefix(SCHEME))
    if match is None:
        raise HubError("no name of a model", typed, "write hf://OWNER/NAME or with @REVISION")
    from huggingface_hub import snapshot_download

    name, revision = match[1], match[2]
    arguments = {"revision": revision, "allow_patterns": list(_MODEL_FILES)}
    try:
        try:
            _refuse_unreachable_hub(typed)
            folder = snapshot_download(name, **arguments)
        except HubError:
            folder = snapshot_download(name, **arguments, local_files_only=True)
    except Exception as error:  # of the Hub's client, which has many, from version to version
        from huggingface_hub.errors import LocalEntryNotFoundError

        if isinstance(error, LocalEntryNotFoundError):
            raise HubError(
                "the Hub does not answer, and its cache here has no such model",
                typed,
                "check the connection, or give the path of a copy",
            ) from error
        first = str(error).strip().partition("\n")[0]
        raise HubError("cannot fetch the model", typed, first) from error
    path, last = Path(folder), name.rpartition("/")[2]
    _refuse_other_formats(path, name, typed)
    return HubModel(path, last, f"{SCHEME}{name}@{path.name}")


def _refuse_other_formats(folder: Path, name: str, typed: str) -> None:
    """Raises `HubError` where a repository has no weights or no tokenizer in a format read here.

    Other formats are not fetched: what opens a folder would not find them, and could not say so.
    """
    if not (folder / "config.json").is_file():
        if (folder / MODULES).is_file():
            remedy = rewrite_command(name, name.rpartition("/")[2])
            raise HubError("an encoder in a folder of its own", typed, remedy)
        raise HubError("no config.json in the repository", typed, "give that of an encoder")
    classes = (class_of_model(read_json_object(folder / "config.json")), "AutoTokenizer")
    write = (f"{each}.from_pretrained({name!r}).save_pretrained('FOLDER')" for each in classes)
    remedy = f"if you trust it, write both with transformers and give FOLDER: {'; '.join(write)}"
    for what, files in (
        ("safetensors", ("model.safetensors", "model.safetensors.index.json")),
        ("tokenizer.json or vocab.txt", ("tokenizer.json", "vocab.txt")),
    ):
        if not any((folder / file).is_file() for file in files):
            raise HubError(f"no {what} in the repository", typed, remedy)


def _refuse_unreachable_hub(typed: str) -> None:
    """Asks once: `datasets` would ask six times, for half a minute or for minutes."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.is_offline_mode():
        return  # it looks into its cache, and nowhere else
    try:
        get_session().head(constants.ENDPOINT, timeout=_SECONDS_TO_ANSWER)
    except Exception as error:  # of a client that changes from version to version
        raise HubError(
            f"no answer from {constants.ENDPOINT}",
            typed,
            "check the connection; HF_HUB_OFFLINE=1 takes what was loaded before from its cache",
        ) from error
