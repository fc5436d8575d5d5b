"""The model folder: a `Bert` and its tokenizer on disk, in Hugging Face's layout.

Written next to its final name and renamed; with checksums, and refused when damaged. No pickle.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from bert_core.config import ModelConfig
from bert_core.disk import (
    file_sha256,
    flush_to_disk,
    raise_disk_full,
    recover,
    remove,
    replace_folder,
    write_sorted_json,
)
from bert_core.errors import UserError
from bert_core.example import EXAMPLE, ModelExample
from bert_core.hugging_face.cross_encoder import cross_encoder_head
from bert_core.hugging_face.families import FAMILIES, family_of
from bert_core.hugging_face.family import PRETRAINED, TensorHeader, read_weights_header
from bert_core.lineage import LINEAGE, Lineage
from bert_core.model.bert import HEADS, TASK_HEADS, Bert, MaskedTokenHead
from bert_core.model.encoder import Encoder, SinusoidalPositions
from bert_core.model.tagger import FEATURE_TAGGER, FeatureTagger, check_tagger
from bert_core.special_tokens import SpecialTokenIds, num_embeddings, special_token_ids
from bert_core.strict_files import (
    first_fault,
    is_plain_name,
    read_bounded,
    read_json_object,
)
from bert_core.tokenizer import has_segments, load_tokenizer, write_tokenizer
from bert_core.tokenizer_settings import MODULES, class_of_model, rewrite_command
from bert_core.training_statistics import TRAINING_STATISTICS, TrainingStatistics

CONFIG, WEIGHTS, CHECKSUMS = "config.json", "model.safetensors", "checksums"
INDEX = "model.safetensors.index.json"
"""Which file holds which weight, of weights in several files."""

_POSITIONS = "encoder.embeddings.position.weight"
_SEGMENTS = "encoder.embeddings.segment.weight"

_MOST_CHECKSUM_BYTES = 1 << 20
_MOST_READINGS = 10
_READ = ("*.safetensors", "*.safetensors.index.json", "tokenizer.json", "vocab.txt", EXAMPLE)
"""Files that a list of checksums has to name where they are there."""


class ModelFolderError(UserError):
    """A model folder that is missing, damaged, or holds something other than a BERT encoder."""


class _OfTasks(BaseModel):
    """The fields of config.json for tasks, besides the architecture."""

    architectures: list[str] | None = None
    problem_type: str | None = None
    id2label: dict[str, str | int | float | bool] | None = None
    tie_word_embeddings: bool | None = None
    sentence_transformers: dict[str, Any] | None = None
    sbert_ce_default_activation_function: str | None = None


def save_model_folder(
    folder: str | Path,
    model: Bert,
    tokenizer: Tokenizer,
    card: str = "",
    *,
    extra_config: Mapping[str, Any] | None = None,
    lineage: Lineage | None = None,
    example: ModelExample | None = None,
    statistics: TrainingStatistics | None = None,
    modules: Mapping[str, Any] | None = None,
) -> None:
    """Writes a model folder completely or not at all, replacing an existing one.

    Weights are float32 safetensors, all files have checksums, and `transformers` loads the folder
    with no missing or unexpected key. `card` becomes README.md, `lineage` lineage.json, `example`
    example.json, `statistics` training_statistics.json. `extra_config` is added to config.json; a
    fine-tuned model's is `bert_core.tasks.catalog.task_config(name, task)`. `modules` are the JSON
    files of sentence-transformers by their path (`sentence_modules`).

    Raises `ValueError` for a model in int8, which has lost its float32 weights, `UserError` for a
    full disk and `OSError` for a folder that cannot be written.

        config, model, tokenizer = load_model_folder("runs/pretrain/model")
        save_model_folder("encoder", model, tokenizer, card="# My encoder")
    """
    folder = Path(folder).expanduser().absolute()
    with folder_to_publish(folder) as written:
        config = _to_config_json(model, extra_config or {}, special_token_ids(tokenizer))
        write_sorted_json(written / CONFIG, config)
        save_file(_weights(model), written / WEIGHTS, metadata={"format": "pt"})
        # safetensors makes a file for its owner alone; a server may run as somebody else.
        (written / WEIGHTS).chmod((written / CONFIG).stat().st_mode)
        write_tokenizer(written, tokenizer, model.config)
        (written / "README.md").write_text(card, encoding="utf-8")
        others = {LINEAGE: lineage, EXAMPLE: example, TRAINING_STATISTICS: statistics}
        for name, content in others.items():
            if content is not None:
                write_sorted_json(written / name, content.model_dump(mode="json"))
        for name, values in (modules or {}).items():
            (written / name).parent.mkdir(exist_ok=True)
            write_sorted_json(written / name, values)


@contextmanager
def folder_to_publish(folder: Path) -> Iterator[Path]:
    """Gives an empty folder to write a model to; it gets checksums, and the place of `folder`.

    At every moment, and after a kill or a power cut, the one or the other is there, whole. Where
    the block raises, nothing is left of what was begun; a full disk is a `DiskFullError`.
    """
    written = _written(folder)
    recover(folder, written, _is_whole)
    remove(written)
    try:
        with raise_disk_full(folder):
            written.mkdir(parents=True)
            yield written
            publish_folder(written, folder)
    except BaseException:
        remove(written)
        raise


def publish_folder(written: Path, folder: Path) -> None:
    """Adds checksums to a complete folder and moves it to `folder` next to it."""
    (written / CHECKSUMS).unlink(missing_ok=True)
    files = sorted(path for path in written.iterdir() if path.is_file())
    lines = [f"{file_sha256(path)}  {path.name}\n" for path in files]
    (written / CHECKSUMS).write_text("".join(lines), encoding="utf-8")
    for path in (*written.rglob("*"), written):
        flush_to_disk(path)
    replace_folder(written, folder)


def _written(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.written")


def _is_whole(written: Path) -> bool:
    try:
        _verify_checksums(written)
    except UserError:
        return False
    return (written / CHECKSUMS).is_file()


def load_model_folder(
    folder: str | Path, *, changes: Mapping[str, Any] | None = None, draws: bool = False
) -> tuple[ModelConfig, Bert, Tokenizer]:
    """Loads a folder written here, or any of Hugging Face's with a BERT encoder, on the CPU.

    Returns the configuration, the model in float32 and training mode, and the tokenizer. The model
    has the heads in the folder and no other: an encoder alone has none, or its pooler;
    `Bert.add_missing_heads` adds fresh ones. `changes` are fields of `ModelConfig` to have other
    than in the folder: dropout, or fewer layers (`Encoder.keep_layers`). With `draws` the weights
    are drawn before they are read: heads that are drawn next are then those that a seed has always
    given. To compute answers or embeddings use `bert_core.load`.

    Raises `ModelFolderError`, a `UserError` that names the file, for what is missing, damaged,
    unknown or not supported.

        config, model, tokenizer = load_model_folder("MODEL_FOLDER")
        print(config.hidden_size, list(model.heads), tokenizer.encode("A cat sleeps.").tokens)
    """
    folder = Path(folder).expanduser()
    with _unreadable_named(folder):
        recover(folder.absolute(), _written(folder.absolute()), _is_whole)
    for _ in range(_MOST_READINGS):
        before = _listed(folder)
        try:
            with _unreadable_named(folder):
                loaded = _load(folder, changes or {}, draws)
        except UserError:
            if _listed(folder) == before:
                raise
        else:
            if _listed(folder) == before:
                return loaded
    raise ModelFolderError(
        "the model folder keeps changing", str(folder), "wait until it is written"
    )


def _listed(folder: Path) -> bytes:
    """The list of checksums: another one where the folder was replaced while it was read."""
    try:
        return read_bounded(folder / CHECKSUMS, max_bytes=_MOST_CHECKSUM_BYTES)
    except UserError:  # absent, as in foreign folders; or refused when it is read
        return b""


@contextmanager
def _unreadable_named(folder: Path) -> Iterator[None]:
    """Turns an `OSError` in the block into a `ModelFolderError`."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        raise ModelFolderError(
            f"cannot be read ({error.strerror or type(error).__name__})",
            str(error.filename or folder),
            "make it readable for this user, or pass another folder",
        ) from error


def _load(
    folder: Path, changes: Mapping[str, Any], draws: bool
) -> tuple[ModelConfig, Bert, Tokenizer]:
    _verify_checksums(folder)
    config, content = _read_config(folder / CONFIG)
    changed = type(config).model_validate(config.model_dump() | dict(changes))
    kept, own = changed.num_hidden_layers, config.num_hidden_layers
    config = changed.model_copy(update={"num_hidden_layers": own})
    model = _read_model(folder, config, content, draws)
    if kept != own:
        model.encoder.keep_layers(kept)
    tokenizer = load_tokenizer(folder)
    if num_embeddings(tokenizer) > config.vocab_size:
        raise ModelFolderError(
            f"the tokenizer has {num_embeddings(tokenizer)} words, the model {config.vocab_size}",
            str(folder),
            "restore the tokenizer that the model was trained with",
        )
    return model.config, model, tokenizer


def weight_files(folder: Path) -> list[Path]:
    """The files of a folder's weights: one, or the shards that its index names.

    Raises `ModelFolderError` for an index that is damaged or names what is not there.
    """
    if (folder / WEIGHTS).is_file() or not (folder / INDEX).is_file():
        return [folder / WEIGHTS]
    return [folder / file for file in sorted(set(_read_index(folder).values()))]


def _to_config_json(
    model: Bert, extra: Mapping[str, Any], special: SpecialTokenIds
) -> dict[str, Any]:
    family = family_of(model.config)
    architecture = "BertLMHeadModel" if "next_token" in model.heads else "BertModel"
    if "masked_token" in model.heads:
        with_rows = "next_sentence" in model.heads
        architecture = "BertForPreTraining" if with_rows else "BertForMaskedLM"
    required = {name: value for name, value in family.required.items() if value is not None}
    is_tied = not any(name.endswith("decoder.weight") for name in model.heads.state_dict())
    own = {"dtype": "float32", "model_type": family.model_type, "tie_word_embeddings": is_tied}
    values = own | required | family.write_config(model.config) | dict(extra)
    ends = {"bos": special.cls, "cls": special.cls, "eos": special.sep, "sep": special.sep}
    named = {f"{name}_token_id": number for name, number in ends.items()}
    values |= {name: number for name, number in named.items() if name in values}
    architectures = extra.get("architectures", [architecture])
    return values | {"architectures": [family.class_of(name) for name in architectures]}


def _weights(model: Bert) -> dict[str, Tensor]:
    """Float32 weights under Hugging Face's names; fixed positions are written out as a table."""
    state = dict(model.state_dict())
    if any(tensor.dtype == torch.int8 for tensor in state.values()):
        raise ValueError("a model in int8 has lost its float32 weights")
    positions = getattr(model.encoder.embeddings, "position", None)
    if isinstance(positions, SinusoidalPositions):
        state[_POSITIONS] = positions.weight
    return {
        name: tensor.detach().to("cpu", torch.float32).contiguous()
        for name, tensor in family_of(model.config).to_theirs(state).items()
    }


def _verify_checksums(folder: Path) -> None:
    """Checks every listed file; a folder without a list, such as a foreign one, is not checked."""
    try:
        (folder / CONFIG).lstat()
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a NUL in it
        what, remedy = "no model folder", _remedy_without_config(folder)
        raise ModelFolderError(what, str(folder), remedy) from error
    path = folder / CHECKSUMS
    if not os.path.lexists(path):
        return
    remedy = "restore the file, or export the model again"
    content = read_bounded(path, remedy, error=ModelFolderError, max_bytes=_MOST_CHECKSUM_BYTES)
    found = set()
    for line in content.decode(errors="replace").splitlines():
        expected, _, name = line.partition("  ")
        if not is_plain_name(name):
            raise ModelFolderError("damaged list of checksums", str(path), remedy)
        found.add(name)
        listed = folder / name
        if not listed.is_file() or file_sha256(listed) != expected:
            raise ModelFolderError("damaged model folder", str(listed), remedy)
    read = (CONFIG, *(each.name for kind in _READ for each in folder.glob(kind)))
    unlisted = [name for name in read if name not in found]
    if unlisted:
        raise ModelFolderError(
            "incomplete list of checksums", f"{path} lacks {unlisted[0]}", remedy
        )


def _remedy_without_config(folder: Path) -> str:
    if os.path.lexists(folder / MODULES):
        return rewrite_command(folder, folder)
    if (folder / "model" / CONFIG).is_file():  # the folder of a run
        return f"pass {folder / 'model'}"
    return f"pass a folder with {CONFIG}, weights and a tokenizer"


def _read_config(path: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """The architecture in config.json, and its whole content."""
    try:
        values = read_json_object(path, error=ModelFolderError)
        model_type = values.get("model_type", "bert")
        family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
        if family is None:
            what = f"model_type {str(model_type)[:60]!r} is not supported"
            raise ModelFolderError(what, str(path), f"only {', '.join(FAMILIES)} are")
        for name, required in family.required.items():
            if values.get(name, required) != required:
                raise ModelFolderError(
                    f"{name} {str(values[name])[:60]!r} is not supported",
                    str(path),
                    f"only {name} {required!r} is",
                )
        if values.get("pad_token_id", 0) is None:  # no token is left out of what is computed here
            values["pad_token_id"] = _padding_id(path.parent, values.get("vocab_size"))
        _OfTasks.model_validate(values, strict=True)
        return family.config.model_validate(family.read_config(values), strict=True), values
    except (ValidationError, ValueError) as error:
        if isinstance(error, ValidationError):
            fault = first_fault(error)
            raise ModelFolderError("damaged model configuration", str(path), fault) from error
        what = f"unsupported model configuration, {error}"
        raise ModelFolderError(what, str(path), "give a model without that") from error


def _padding_id(folder: Path, vocab_size: object) -> int:
    """That of the tokenizer; 0 where it has more words than the model, which is refused later."""
    padding_id = special_token_ids(load_tokenizer(folder)).pad
    return padding_id if isinstance(vocab_size, int) and padding_id < vocab_size else 0


def _read_model(folder: Path, config: ModelConfig, content: Mapping[str, Any], draws: bool) -> Bert:
    """The model with the heads whose weights are complete; `content` is that of config.json."""
    family = FAMILIES[content.get("model_type", "bert")]
    architecture = next(iter(content.get("architectures") or ()), None)
    try:
        header: dict[str, TensorHeader] = {}
        for file in weight_files(folder):
            header |= read_weights_header(file) if file.is_file() else {}
        if header:
            family.check_header(header, config)
        state = family.to_ours(
            _read_weights(folder, content),
            architecture=architecture,
            is_decoder=config.is_decoder,
            is_tied=content.get("tie_word_embeddings", True) is not False,
        )
        state |= cross_encoder_head(folder, config)
        _check_head_sizes(state, config)
        _refuse_what_is_not_finite(state)
        if config.position_embedding == "sinusoidal":
            del state[_POSITIONS]
        if first := family.position_offset(config):
            state[_POSITIONS] = state[_POSITIONS][first:].clone()
        if _SEGMENTS in state and not has_segments(folder):
            config = config.model_copy(update={"type_vocab_size": 1})
            state[_SEGMENTS] = state[_SEGMENTS][:1].clone()
        tagger = _weights_of_tagger(state)
        # On `meta` nothing is drawn, which takes longer than reading, or has memory.
        with nullcontext() if draws else torch.device("meta"):
            model = Bert(Encoder(config), {})
            _add_pretrained_heads(model, state, family.class_of_bert(architecture or ""))
            for name in TASK_HEADS:
                weight = state.get(f"heads.{name}.linear.weight")
                if weight is not None:
                    model.add_task_head(name, len(weight))
            if tagger:
                model.heads[FEATURE_TAGGER] = FeatureTagger.from_weights(tagger, config)
        for name, each in model.state_dict().items():
            if name in state:  # whole numbers, as of a tagger's layers, are stored as others
                state[name] = state[name].to(each.dtype)
        model.load_state_dict(state, assign=True)
        model.encoder.embeddings.make_tables(config)
    except (SafetensorError, OSError, RuntimeError, KeyError, ValueError, IndexError) as error:
        reason = " ".join(str(error).split())[:300]
        path = folder / (WEIGHTS if (folder / WEIGHTS).is_file() else INDEX)
        raise ModelFolderError(
            "damaged weights, or weights of another model", str(path), reason
        ) from error
    return model


def _add_pretrained_heads(model: Bert, state: dict[str, Tensor], architecture: str) -> None:
    """Adds the heads of pre-training that `state` has.

    Takes the weights of an incomplete one out of `state`, as `transformers` does, unless the
    architecture is one of pre-training: then loading names what is missing.
    """
    for name in HEADS:
        prefix = f"heads.{name}."
        found = {each for each in state if each.startswith(prefix)}
        if not found:
            continue
        head = HEADS[name](model.config)
        if f"{prefix}decoder.weight" in found:
            head = MaskedTokenHead(model.config, is_tied=False)
        wanted = {f"{prefix}{each}" for each in head.state_dict()}
        is_whole = found == wanted and (name != "next_sentence" or "pooler" in model.heads)
        if is_whole or architecture in PRETRAINED:
            model.heads[name] = head
            continue
        for each in found:
            del state[each]


def _read_weights(folder: Path, content: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights under their names in the folder, of one file or of the shards of an index.

    Numbers with a point are in float32. They have memory of their own: whoever writes over the file
    changes no model.
    """
    if (folder / WEIGHTS).is_file():
        with safe_open(folder / WEIGHTS, framework="pt") as weights:
            names = list(weights.keys())
        return {name: _read_weight(folder / WEIGHTS, name) for name in names}
    if (folder / INDEX).is_file():
        return {
            name: _read_weight(folder / file, name) for name, file in _read_index(folder).items()
        }
    remedy = "restore it"
    if list(folder.glob("*.bin")):  # a pickle, which may run anything
        prefix = FAMILIES[content.get("model_type", "bert")].class_prefix
        architecture = class_of_model(content, prefix)
        remedy = (
            "if you trust the folder, write it with transformers: "
            f"{architecture}.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
        )
    raise ModelFolderError("no weights", str(folder / WEIGHTS), remedy)


def _read_weight(path: Path, name: str) -> Tensor:
    # The file is opened for each: what was read of it counts as memory until it is closed.
    with safe_open(path, framework="pt") as weights:
        weight = weights.get_tensor(name)
        return weight.to(torch.float32 if weight.is_floating_point() else weight.dtype, copy=True)


def _read_index(folder: Path) -> dict[str, str]:
    """The file of each weight. Raises `ModelFolderError` for a file that is not in the folder."""
    path = folder / INDEX
    shards = read_json_object(path, error=ModelFolderError).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ModelFolderError("damaged index of weights", str(path), "restore it")
    for file in {str(shard) for shard in shards.values()}:
        if not is_plain_name(file) or not (folder / file).is_file():
            raise ModelFolderError("no weights", f"{path} names {file[:200]!r}", "restore the file")
    return shards


def _check_head_sizes(state: Mapping[str, Tensor], config: ModelConfig) -> None:
    for name in TASK_HEADS:
        weight = state.get(f"heads.{name}.linear.weight")
        if weight is not None and (weight.shape[1:] != (config.hidden_size,) or not len(weight)):
            raise ValueError(f"a {name} of the shape {list(weight.shape)}")
    tagger = _weights_of_tagger(state)
    if tagger:
        check_tagger(tagger)


def _refuse_what_is_not_finite(state: Mapping[str, Tensor]) -> None:
    """Raises `ValueError`: such a model would answer nothing that is a number."""
    for name, weight in state.items():
        # The least and the greatest: NaN is both, in an eighth of the time of isfinite.
        if weight.numel() and not all(bool(each.float().isfinite()) for each in weight.aminmax()):
            raise ValueError(f"{name} has values that are not finite")


def _weights_of_tagger(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefix = f"heads.{FEATURE_TAGGER}."
    return {
        name.removeprefix(prefix): each for name, each in state.items() if name.startswith(prefix)
    }
