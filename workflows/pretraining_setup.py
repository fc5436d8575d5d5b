"""What happens before the first step: what a run reads, what is said of it, what MLflow is told."""

import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml

from bert_core.errors import UserError
from bert_core.text.rows.settings import RowSettings
from bert_core.text.shard_index import TOKENIZER_NAME
from bert_core.text.shards import TokenShards, open_shards
from bert_core.tokenizer import load_tokenizer, tokenizer_hash
from workflows.pretrain_settings import PretrainSettings
from workflows.run_folder import RunFolder, write_atomically
from workflows.tracker import DatasetInput, TrackedRun, code_tags, default_tracking_uri


def prepared_text(settings: PretrainSettings, storage: Path) -> Path:
    """Prepares `settings.text` under the storage folder and returns the shards' folder.

    The folder is named after the text's files too: text that changed is prepared anew.
    """
    from workflows.prepare import PrepareSettings, plan_hash, prepare

    wanted = PrepareSettings(
        text=settings.text,
        output=storage / "shards",
        vocabulary_size=settings.vocabulary_size,
        heldout_share=settings.heldout_share,
    )
    return prepare(wanted.model_copy(update={"output": wanted.output / plan_hash(wanted)}))


def refuse_unfit_shards(shards: TokenShards, rows: RowSettings) -> None:
    """Raises `UserError` where the tokenizer is not that of the shards, or documents are too few.

    A run would find out after its start-up, or at its first evaluation.
    """
    if tokenizer_hash(load_tokenizer(shards.folder)) != shards.tokenizer_hash:
        raise UserError(
            "the tokenizer is not the one that the shards were made with",
            str(shards.folder / TOKENIZER_NAME),
            "put the right one back, or prepare the text again with workflows/prepare.py --fresh",
        )
    needed = 2 if rows.objective == "mlm_nsp" else 1
    for each in (shards, open_shards(shards.folder, "heldout")):
        if each.num_documents < needed:
            remedy = "prepare more documents, or more held-out ones with --heldout_share"
            if each.num_documents:  # one: enough where no second segment comes from another
                remedy += ", or set --rows.objective mlm"
            raise UserError(
                f"{each.num_documents} documents in the {each.split} split, {needed} are needed",
                str(shards.folder),
                remedy,
            )


def announce(settings: PretrainSettings, folder: RunFolder, shards: TokenShards) -> None:
    """Prints what is about to be trained, on what, and where it will lie."""
    phases = ", ".join(f"{phase.steps:,} at {phase.sequence_length}" for phase in settings.phases)
    print(
        f"run      {folder.name}\n"
        f"folder   {folder.path}\n"
        f"data     {shards.num_tokens:,} tokens in {shards.num_documents:,} documents, "
        f"{shards.data_hash[:12]}\n"
        f"model    {settings.model.size}, vocabulary {shards.vocab_size:,}\n"
        f"steps    {phases}, {settings.batch.global_batch_size:,} rows each",
        flush=True,
    )


def refuse_a_full_disk(settings: PretrainSettings, folder: RunFolder, vocab_size: int) -> None:
    """Raises `UserError` where the checkpoints of the run will not fit."""
    # Not at the top: what is wrong with storage or shards is said before torch is loaded.
    import torch

    from bert_core.model.bert import Bert
    from bert_core.training.checkpoint import checkpoint_bytes

    with torch.device("meta"):
        model = Bert.for_pretraining(settings.model.config(vocab_size, pad_token_id=0))
    # One more while the newest is written, and the exported model.
    count = settings.checkpoint.keep + 2
    needed = count * checkpoint_bytes(model, settings.optimizer.name)
    free = shutil.disk_usage(folder.path).free
    if free < needed:
        raise UserError(
            f"{count} checkpoints need {needed / 2**30:.1f} GiB",
            f"{folder.path} has {free / 2**30:.1f} GiB free",
            "free some, lower --checkpoint.keep, or choose another --storage",
        )


def write_settings(settings: PretrainSettings, folder: RunFolder, artifacts: Path) -> None:
    """Writes the resolved settings, to repeat the run with, into the run folder and for MLflow."""
    text = (
        "# python workflows/pretrain.py --preset THIS_FILE --shards FOLDER_OF_THE_SAME_SHARDS\n"
        + yaml.safe_dump(portable(settings), sort_keys=False)
    )
    artifacts.mkdir(exist_ok=True)
    write_atomically(folder.settings, text)
    write_atomically(artifacts / folder.settings.name, text)


def portable(settings: PretrainSettings) -> dict[str, Any]:
    """The settings without what belongs to one machine."""
    machine = {"preset", "profile", "name", "storage", "fresh", "shards"}
    return settings.model_dump(mode="json", exclude=machine) | {
        "tracking": settings.tracking.model_dump(mode="json", exclude={"uri"})
    }


def tracked_run(
    settings: PretrainSettings, storage: Path, folder: RunFolder, shards: TokenShards
) -> TrackedRun:
    """What MLflow is told of the run besides its metrics: no path of this machine."""
    if not folder.run_key.exists():
        write_atomically(folder.run_key, uuid4().hex)
    source = ", ".join(settings.text) if settings.shards is None else settings.shards.name
    params = {"preset": Path(settings.preset).stem, "profile": Path(settings.profile).stem}
    return TrackedRun(
        tracking_uri=settings.tracking.uri or default_tracking_uri(storage),
        experiment=settings.tracking.experiment,
        run_name=folder.name,
        run_key=folder.run_key.read_text(),
        params=params | flattened(portable(settings)),
        tags=code_tags(Path(__file__).parent)
        | {"data.sha256": shards.data_hash, "tokenizer.sha256": shards.tokenizer_hash},
        dataset=DatasetInput("train", shards.data_hash, source),
    )


def flattened(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as `section.field: value`."""
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = str(value)
    return flat
