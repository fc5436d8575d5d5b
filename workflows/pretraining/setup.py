"""What happens before the first step of pre-training: what a run reads, and what is said of it."""

from pathlib import Path

import numpy as np

from bert_core.errors import UserError
from bert_core.settings import RowSettings
from bert_core.text.pairs import RowPlanner
from bert_core.text.shards import TOKENIZER_NAME, TokenShards, open_shards
from bert_core.tokenizer import load_tokenizer, tokenizer_hash
from workflows.pretraining.metrics import described_rows, is_as_in_the_paper
from workflows.pretraining.settings import PretrainSettings
from workflows.pretraining.start import Start
from workflows.runs.folder import RunFolder


def prepared_text(settings: PretrainSettings, storage: Path, tokenizer: Path | None = None) -> Path:
    """Prepares `settings.text` under the storage folder and returns the shards' folder.

    Trains a tokenizer unless the folder of one is given.
    The folder is named after the text's files too: text that changed is prepared anew.
    """
    from workflows.prepare import PrepareSettings, plan_hash, prepare

    wanted = PrepareSettings(
        text=settings.text,
        output=storage / "shards",
        tokenizer=None if tokenizer is None else str(tokenizer),
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
    phases = ", ".join(f"{phase.steps:,} at {phase.sequence_length}" for phase in settings.phases)
    layout = "packed" if settings.batch.packed else "padded"
    lines = [
        f"run      {folder.name}",
        f"folder   {folder.path}",
        f"data     {shards.num_tokens:,} tokens in {shards.num_documents:,} documents, "
        f"{shards.data_hash[:12]}",
        *([] if start is None else start.described()),
        f"model    {settings.model.described}, vocabulary {shards.vocab_size:,}",
        *(
            []
            if is_as_in_the_paper(settings.rows)
            else [f"rows     {described_rows(settings.rows)}"]
        ),
        f"steps    {phases}, {settings.batch.global_batch_size:,} rows each, {layout}",
        *packing_note(settings),
        *label_note(settings, shards),
    ]
    print("\n".join(lines), flush=True)


def packing_note(settings: PretrainSettings) -> list[str]:
    """A line where packed rows make fewer bins a step than there may be workers; else none."""
    batch, workers = settings.batch, settings.cluster.most_workers
    bins = batch.global_batch_size // batch.rows_of_a_bin
    if not batch.packed or workers <= bins:
        return []
    return [
        f"packed   at most {bins} bins a step: more workers than that have nothing to do; "
        + lower_micro_batch(settings)
    ]


def out_of_memory_remedy(settings: PretrainSettings) -> str:
    """What makes a step fit: the same run with less in memory, or else another one."""
    if settings.recompute == "nothing" and settings.cluster.tpu is None:
        return "add --recompute layers to the same command"
    return lower_micro_batch(settings)


def lower_micro_batch(settings: PretrainSettings) -> str:
    """How to compute less at once: in another run, since it changes the order of the sums."""
    batch = settings.batch
    size = batch.rows_of_a_bin if batch.packed else batch.micro_batch_size
    if size == 1:
        return "start a run under another --name with shorter --phases or a smaller --model.size"
    return f"start a run under another --name with --batch.micro_batch_size below {size}"
