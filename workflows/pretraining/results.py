"""Results of a pre-training run: model folder, card, loss plot, summary."""

from pathlib import Path

import numpy as np
from safetensors.torch import load_file
from tokenizers import Tokenizer

from bert_core.disk import write_atomically
from bert_core.example_answers import example_of_encoder
from bert_core.features.sentence_pooling import sentence_modules
from bert_core.lineage import Lineage
from bert_core.model_folder import save_model_folder
from bert_core.settings import metric_name, predicted
from bert_core.special_tokens import special_token_ids
from bert_core.text.shards import TOKEN_COUNTS_NAME, TokenShards, open_shards
from bert_core.tokenizer import load_tokenizer
from bert_core.training.checkpoint import MODEL, CheckpointInfo
from bert_core.training_statistics import TrainingStatistics, statistics_of_documents
from workflows.pretraining.job import PretrainingJob
from workflows.pretraining.sections import described_phases
from workflows.pretraining.settings import PretrainSettings
from workflows.pretraining.worker import initial_model, set_rope_theta
from workflows.runs.journal import read_records
from workflows.runs.tracker import ARTIFACTS_NAME, JOURNAL_NAME
from workflows.training.job import JobResults, Usage, lineage_of
from workflows.training.loss_plot import NEXT_TOKENS, PRETRAINING, plot_losses
from workflows.versions.model_card import model_card

_OTHER = "other/bits_per_byte"


def write_results(job: PretrainingJob) -> JobResults:
    """Writes plot, card and model folder from the last checkpoint and the journal."""
    folder, checkpoint = job.folder, job.folder.last_checkpoint()
    journal = folder.path / JOURNAL_NAME
    figures: dict[str, float] = {}
    before: dict[str, float] = {}
    for record in read_records(journal):
        figures |= record.metrics
        before |= record.metrics if record.step == 0 else {}
    artifacts = folder.path / ARTIFACTS_NAME
    plot = artifacts / "loss.png"
    curves = NEXT_TOKENS if job.settings.rows.objective == "left_to_right" else PRETRAINING
    unigram_loss = figures["heldout/unigram_loss"]
    plot_losses(journal, plot, title=folder.name, curves=curves, unigram_loss=unigram_loss)
    card = pretraining_card(job, checkpoint, figures, before)
    write_atomically(artifacts / "model_card.md", card)
    tokenizer = load_tokenizer(job.shards.folder)
    lineage = lineage_of(folder, job.described()[1], figures)
    export(job, tokenizer, checkpoint.path, card, lineage)
    return JobResults(summary_lines(job, checkpoint, figures, before, plot), card, figures)


def pretraining_card(
    job: PretrainingJob,
    checkpoint: CheckpointInfo,
    figures: dict[str, float],
    before: dict[str, float],
) -> str:
    """The model card of a finished run; figures `before` are those of a start model."""
    settings, shards = job.settings, job.shards
    objective = settings.rows.objective
    loss, accuracy, perplexity = (
        figures[f"heldout/{metric_name(objective, name)}"]
        for name in ("masked_token_loss", "masked_token_accuracy", "perplexity")
    )
    words = predicted(objective).capitalize()
    heldout = {
        f"{words} loss (nats)": loss,
        "Perplexity": perplexity,
        f"{words} accuracy": accuracy,
    }
    titles = {"masked_token_loss": f"{words} loss (nats)", "bits_per_byte": "Bits per byte"}
    for name, title in titles.items():
        first = f"heldout/{metric_name(objective, name)}"
        if first in before:
            heldout[f"{title}, before the first step"] = before[first]
    if "heldout/bits_per_byte" in figures:
        heldout["Bits per byte"] = figures["heldout/bits_per_byte"]
    if "heldout/next_sentence_accuracy" in figures:
        heldout["Next-sentence accuracy"] = figures["heldout/next_sentence_accuracy"]
    tags = job.described()[1]
    tags = {"Teacher": tags.get("teacher.name"), "Teacher SHA-256": tags.get("teacher.sha256")}
    return model_card(
        name=settings.tracking.register_as or job.folder.name,
        summary=_summary(job),
        data={
            **({} if job.start is None else {"Start model": job.start.name}),
            **({} if job.decayed is None else {"Decayed from": _checkpoint_text(job.decayed)}),
            "Text": job.source,
            **({} if settings.replay is None else {"Replay": _replay_text(settings)}),
            "Documents": shards.num_documents,
            "Tokens": shards.num_tokens,
            "SHA-256 of the shards' index": shards.data_hash,
            "Vocabulary": shards.vocab_size,
        },
        recipe={
            "Objective": settings.rows.described,
            "Steps x length": described_phases(settings.phases),
            "Rows per step": " to ".join(f"{count:,}" for count in settings.rows_per_step),
            "Optimizer": settings.optimizer.name,
            "Peak learning rate": settings.optimizer.peak_learning_rate,
            "Warm-up steps": settings.warmup_steps,
            "Rows seen": checkpoint.num_rows_seen,
            "Tokens seen": checkpoint.num_tokens_seen,
            "Used": Usage.of(checkpoint),
            "Seed": settings.seed,
        },
        figures=heldout,
        baseline={f"{words} loss (nats)": figures["heldout/unigram_loss"]},
        lineage={"Run": job.folder.name, "Tokenizer SHA-256": shards.tokenizer_hash}
        | {name: value for name, value in tags.items() if value is not None},
        predicts_next=objective == "left_to_right",
    )


def _checkpoint_text(decayed: CheckpointInfo) -> str:
    """Run and step of a checkpoint, and what it had been trained on."""
    return (
        f"{_run_of(decayed)}, step {decayed.step:,}, after "
        f"{decayed.num_rows_seen:,} rows and {decayed.num_tokens_seen:,} tokens, which are not "
        "counted below"
    )


def _run_of(checkpoint: CheckpointInfo) -> str:
    return checkpoint.path.resolve().parents[1].name


def _replay_text(settings: PretrainSettings) -> str:
    assert settings.replay is not None
    return f"{settings.replay.absolute().name}, {settings.replay_share:.0%} of the rows"


def _summary(job: PretrainingJob) -> str:
    settings, start = job.settings, job.start
    size = settings.model.described
    if start is not None:
        return f"{start.name} ({size}), with its pre-training continued with Bertline."
    if job.decayed is not None:
        return (
            f"A BERT encoder ({size}) pre-trained with Bertline: the end of the run "
            f"{_run_of(job.decayed)}, in which the learning rate falls."
        )
    if settings.rows.objective != "left_to_right":
        return f"A BERT encoder ({size}) pre-trained from scratch with Bertline."
    return (
        f"A left-to-right language model of BERT's shape ({size}) pre-trained from scratch with"
        " Bertline: each token attends to itself and those before it (`is_decoder`), also in what"
        " is fine-tuned from it."
    )


def export(
    job: PretrainingJob, tokenizer: Tokenizer, checkpoint: Path, card: str, lineage: Lineage
) -> None:
    """Writes the checkpoint's weights as a model folder."""
    settings = job.settings
    start = None if job.start is None else job.start.encoder.path
    pooling = None if job.start is None else job.start.pooling
    model = initial_model(settings, tokenizer, start).model
    model.load_state_dict(load_file(checkpoint / MODEL))
    set_rope_theta(model, settings, len(settings.phases) - 1)
    save_model_folder(
        job.folder.model,
        model,
        tokenizer,
        card=card,
        lineage=lineage,
        example=example_of_encoder(model, tokenizer, open_shards(job.shards.folder, "heldout")),
        statistics=_statistics(job.shards, tokenizer),
        modules=None if pooling is None else sentence_modules(pooling, model.config.hidden_size),
    )


def _statistics(shards: TokenShards, tokenizer: Tokenizer) -> TrainingStatistics:
    counts = np.load(shards.folder / TOKEN_COUNTS_NAME, allow_pickle=False)
    unknown_id = special_token_ids(tokenizer).unk
    return statistics_of_documents(shards.num_documents, counts, unknown_id)


def summary_lines(
    job: PretrainingJob,
    checkpoint: CheckpointInfo,
    figures: dict[str, float],
    before: dict[str, float],
    plot: Path,
) -> list[str]:
    """What the run came to, from what, and where everything lies."""
    folder, rows = job.folder, job.settings.rows
    loss, accuracy = (
        figures[f"heldout/{metric_name(rows.objective, name)}"]
        for name in ("masked_token_loss", "masked_token_accuracy")
    )
    unigram = figures["heldout/unigram_loss"]
    side = "under" if loss < unigram else "over"
    lines = [
        f"finished     {checkpoint.step:,} steps, {checkpoint.num_rows_seen:,} rows, "
        f"{checkpoint.num_tokens_seen:,} tokens",
        *([] if rows.are_the_papers else [f"objective    {rows.described}"]),
        f"held out     {predicted(rows.objective)} loss {loss:.3f} ({abs(unigram - loss):.3f} "
        f"{side} the unigram baseline's {unigram:.3f}), accuracy {accuracy:.1%}",
    ]
    if "heldout/next_sentence_accuracy" in figures:
        accuracy = figures["heldout/next_sentence_accuracy"]
        lines.append(f"             next-sentence accuracy {accuracy:.1%}")
    lines += _change(figures, before)
    return [
        *lines,
        f"used         {Usage.of(checkpoint)}",
        f"model        {folder.model}",
        f"plot         {plot}",
        f"settings     {folder.settings}",
    ]


def _change(figures: dict[str, float], before: dict[str, float]) -> list[str]:
    """Bits per byte of held-out text, and of other text, before the first step and now."""
    changes = {
        title: f"{before[name]:.4f} -> {figures[name]:.4f}"
        for title, name in (("this text", "heldout/bits_per_byte"), ("other text", _OTHER))
        if name in before and name in figures
    }
    listed = ", ".join(f"{title} {change}" for title, change in changes.items())
    return [f"bits a byte  {listed}"] if listed else []
