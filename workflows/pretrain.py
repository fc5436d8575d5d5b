"""Pre-trains a BERT encoder: `python workflows/pretrain.py --help`.

Token shards (or text) and settings go in; checkpoints, a model folder and an MLflow version come
out. The same command goes on after any death; a finished run prints its summary.
"""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bert_core.errors import UserError
from bert_core.settings import RowSettings
from bert_core.text.pairs import RowPlanner
from bert_core.text.shards import TOKENIZER_NAME, TokenShards, open_shards
from bert_core.tokenizer import load_tokenizer, tokenizer_hash
from bert_core.training import checkpoint_folder
from workflows.command import command
from workflows.model_location import EncoderFolder
from workflows.pretraining.job import (
    PretrainingJob,
    Start,
    checkpoint_to_decay,
    continue_from,
    described_pieces,
    find_start,
    find_teacher,
    parse_pretraining,
    refuse_another_tokenizer,
)
from workflows.pretraining.sections import described_phases
from workflows.pretraining.settings import (
    ADAPT,
    AdaptSettings,
    PretrainSettings,
    lower_micro_batch,
)
from workflows.runs.folder import RunFolder, open_run
from workflows.runs.storage import RemoteRun, Storage, open_storage
from workflows.settings import given_option, settings_hash
from workflows.training.job import train_and_register

main = command(lambda given: pretrain(parse(given)) is not None)


def parse(arguments: Sequence[str]) -> PretrainSettings:
    """The settings: those of an adaptation, or of pre-training."""
    kind = AdaptSettings if given_option(arguments, "preset") == ADAPT else PretrainSettings
    return parse_pretraining(kind, arguments)


def pretrain(settings: PretrainSettings) -> RunFolder | None:
    """Trains, or goes on training, and registers; None when the run was told to stop.

    Raises `UserError` for what the user can mend.
    """
    storage = open_storage(settings.storage)
    if storage.uri is not None:
        print(f"address  {storage.uri}")
    print(f"storage  {storage.folder}", flush=True)
    start = find_start(settings, storage)
    settings = continue_from(settings, start)
    tokenizer = None if start is None else start.encoder.path
    prepared = given_shards(settings, storage.folder, tokenizer)
    shards = open_shards(prepared, "train")
    with opened_pretraining(settings, storage, shards, start) as job:
        announce(settings, job.folder, shards, start)
        if job.folder.has_answered(settings.asked()):
            print(job.folder.finished_summary())
            return job.folder
        from workflows.pretraining.results import write_results  # loads torch

        return job.folder if train_and_register([job], write_results) else None


@contextmanager
def opened_pretraining(
    settings: PretrainSettings, storage: Storage, shards: TokenShards, start: Start | None = None
) -> Iterator[PretrainingJob]:
    """The run of these settings, taken for this process alone; new, to go on, or finished.

    With a `start` the settings are those of `continue_from`. The run's name is made of the preset
    and a hash where the settings give none. Raises `UserError` for what the user can mend.
    """
    teacher = find_teacher(settings, storage, shards)
    recipe = settings.recipe() | recipe_inputs(settings, shards, start, teacher)
    name = settings.name or f"{Path(settings.preset).stem}-{settings_hash(recipe)}"
    remote = None if storage.uri is None else RemoteRun(storage.uri, name)
    adopt = None if remote is None else remote.adopt
    settings = settings.with_rows_for_every_worker()
    with open_run(storage.folder, name, recipe, fresh=settings.fresh, adopt=adopt) as folder:
        job = PretrainingJob(settings, storage, folder, shards, remote, start=start)
        job.teacher = teacher
        if settings.decay_from is not None:
            from bert_core.training.checkpoint import read_checkpoint  # loads torch

            # A later start of this run begins with it, too.
            checkpoint_folder.keep(settings.decay_from)
            job.decayed = read_checkpoint(settings.decay_from)
        yield job


def recipe_inputs(
    settings: PretrainSettings,
    shards: TokenShards,
    start: Start | None,
    teacher: EncoderFolder | None,
) -> dict[str, str]:
    """The hashes of what a run begins with and reads, which stand in its recipe.

    Raises `UserError` for what does not fit the shards.
    """
    refuse_unfit_shards(shards, settings.rows)
    inputs = {"data": shards.data_hash}
    if start is not None:
        refuse_another_tokenizer(start, shards, settings)
        inputs["start"] = start.encoder.sha256
    if teacher is not None:
        inputs["teacher"] = teacher.sha256
    if settings.decay_from is not None:
        checkpoint, tokenizer = settings.decay_from, shards.tokenizer_hash
        inputs["decay_from"] = checkpoint_to_decay(settings, checkpoint, tokenizer)
    if settings.replay is not None:
        replay = open_beside(settings.replay, "--replay", shards, settings.rows)
        inputs["replay"] = replay.data_hash
    if settings.evaluation.other is not None:
        open_beside(settings.evaluation.other, "--evaluation.other", shards, settings.rows)
    return inputs


def given_shards(settings: PretrainSettings, storage: Path, tokenizer: Path | None = None) -> Path:
    """The folder of `--shards`, or of `--text`, prepared."""
    return settings.shards or prepared_text(settings, storage, tokenizer)


def prepared_text(settings: PretrainSettings, storage: Path, tokenizer: Path | None = None) -> Path:
    """Prepares `settings.text` under the storage folder and returns the shards' folder.

    Trains a tokenizer unless the folder of one is given. The folder is named after the text's files
    too: text that changed is prepared anew.
    """
    from workflows.prepare import PrepareSettings, plan_hash, prepare

    wanted = PrepareSettings(
        text=settings.text,
        text_column=settings.text_column,
        output=storage / "shards",
        tokenizer=None if tokenizer is None else str(tokenizer),
        new_pieces=settings.new_pieces if settings.vocabulary == "extend" else 0,
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
    heldout = open_shards(shards.folder, "heldout")
    needed = 2 if rows.input_format == "segment_pair" else 1
    for split in (shards, heldout):
        if split.num_documents < needed:
            raise UserError(
                f"{split.num_documents} documents in the {split.split} split, {needed} are needed",
                str(shards.folder),
                _remedy_for_few_documents(shards.num_documents, heldout.num_documents),
            )


def open_beside(folder: Path, option: str, shards: TokenShards, rows: RowSettings) -> TokenShards:
    """Another corpus; raises `UserError` where the model of the first cannot read it."""
    other = open_shards(folder, "train")
    if other.tokenizer_hash != shards.tokenizer_hash:
        raise UserError(
            f"{option} was made with another tokenizer than --shards",
            str(folder),
            "prepare its text again with workflows/prepare.py --tokenizer "
            f"{shlex.quote(str(shards.folder / TOKENIZER_NAME))}",
        )
    refuse_unfit_shards(other, rows)
    return other


def _remedy_for_few_documents(training: int, heldout: int) -> str:
    """What makes the corpus large enough, or the rows such that it is."""
    without_pairs = "set --rows.input_format full_sentences and --rows.objective mlm"
    if training + heldout < 2:
        return "give more documents: a file, a blank line or a line `= Title =` begins another"
    if not heldout:
        return "prepare the text again with a --heldout_share above 0 and --fresh"
    if training + heldout < 4:
        return f"give four documents or more, or {without_pairs}"
    return f"prepare the text again with workflows/prepare.py --fresh, or {without_pairs}"


_FEW_NEXT, _ROWS_COUNTED = 0.2, 10_000
"""Below this share of IsNext among the labels, next-sentence prediction has little to learn."""


def label_note(settings: PretrainSettings, shards: TokenShards) -> list[str]:
    """A line where documents are too short for balanced next-sentence labels; else none."""
    rows = settings.rows
    if rows.objective != "mlm_nsp" or rows.input_format != "segment_pair":
        return []
    length = settings.phases[0].sequence_length
    planner = RowPlanner(shards, rows, length, key=(settings.seed, "labels"))
    starts = planner.row_starts(0, 0)[:_ROWS_COUNTED]
    first = np.zeros(len(starts), dtype=np.int64)
    share = float((planner.rows(first, first, starts).next_sentence == 0).mean())
    if share >= _FEW_NEXT:
        return []
    sentences = sum(shard.num_sentences for shard in shards.shards) / shards.num_documents
    return [
        f"warning  only {share:.0%} of the next-sentence labels are IsNext: documents have "
        f"{sentences:.1f} sentences on average; prepare the text again with blank lines only "
        "between documents, or set --rows.objective mlm"
    ]


def announce(
    settings: PretrainSettings, folder: RunFolder, shards: TokenShards, start: Start | None = None
) -> None:
    """Prints what is about to be trained, from what, on what, and where it will lie."""
    phases = described_phases(settings.phases, times=" at ")
    rows = " to ".join(f"{count:,}" for count in settings.rows_per_step)
    layout = "packed" if settings.batch.packed else "padded"
    lines = [
        f"run      {folder.name}",
        f"folder   {folder.path}",
        f"data     {shards.num_tokens:,} tokens in {shards.num_documents:,} documents, "
        f"{shards.data_hash[:12]}",
        *([] if start is None else [*start.described(), *described_pieces(start, shards)]),
        f"model    {settings.model.described}, vocabulary {shards.vocab_size:,}",
        *([] if settings.rows.are_the_papers else [f"rows     {settings.rows.described}"]),
        f"steps    {phases}, {rows} rows each, {layout}",
        *workers_note(settings),
        *packing_note(settings),
        *label_note(settings, shards),
    ]
    print("\n".join(lines), flush=True)


def workers_note(settings: PretrainSettings) -> list[str]:
    """A line where a step has fewer rows than there may be workers; else none."""
    rows = settings.fewest_rows
    if settings.cluster.most_workers <= rows:
        return []
    return [f"workers  at most {rows}: a step has {rows} rows in the phase with the fewest"]


def packing_note(settings: PretrainSettings) -> list[str]:
    """A line where packed rows make fewer bins a step than there may be workers; else none."""
    workers = settings.cluster.most_workers
    of_phases = [batch.global_batch_size // batch.rows_of_a_bin for batch in settings.batches]
    bins = min(of_phases)
    if not settings.batch.packed or workers <= bins:
        return []
    return [
        f"packed   at most {bins} bins a step: more workers than that have nothing to do; "
        + lower_micro_batch(settings, of_phases.index(bins))
    ]


if __name__ == "__main__":
    sys.exit(main())
