"""What a pre-training run leaves behind: the model folder, its card, the lines of its summary."""

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load_file
from tokenizers import Tokenizer

from bert_core.lineage import Lineage
from bert_core.model.bert import Bert
from bert_core.model_folder import save_model_folder
from bert_core.text.rows.masking import Vocabulary
from bert_core.training.checkpoint import MODEL, CheckpointInfo
from workflows.model_card import model_card
from workflows.registration import Usage
from workflows.run_folder import RunFolder

if TYPE_CHECKING:
    from workflows.pretraining_job import PretrainingJob


def pretraining_card(
    job: "PretrainingJob", checkpoint: CheckpointInfo, figures: dict[str, float]
) -> str:
    """The model card of a finished run."""
    settings, shards = job.settings, job.shards
    heldout = {
        "Masked-token loss (nats)": figures["heldout/masked_token_loss"],
        "Perplexity": figures["heldout/perplexity"],
        "Masked-token accuracy": figures["heldout/masked_token_accuracy"],
    }
    if "heldout/next_sentence_accuracy" in figures:
        heldout["Next-sentence accuracy"] = figures["heldout/next_sentence_accuracy"]
    phases = ", ".join(f"{phase.steps:,} x {phase.sequence_length}" for phase in settings.phases)
    return model_card(
        name=settings.tracking.register_as or job.folder.name,
        summary=f"A BERT encoder ({settings.model.size}) pre-trained from scratch with Bertline.",
        data={
            "Text": job.source,
            "Documents": shards.num_documents,
            "Tokens": shards.num_tokens,
            "SHA-256 of the shards' index": shards.data_hash,
            "Vocabulary": shards.vocab_size,
        },
        recipe={
            "Objective": settings.rows.objective,
            "Steps x length": phases,
            "Rows per step": settings.batch.global_batch_size,
            "Optimizer": settings.optimizer.name,
            "Peak learning rate": settings.optimizer.peak_learning_rate,
            "Warm-up steps": settings.optimizer.warmup_steps,
            "Rows seen": checkpoint.num_rows_seen,
            "Tokens seen": checkpoint.num_tokens_seen,
            "Used": Usage.of(checkpoint),
            "Seed": settings.seed,
        },
        figures=heldout,
        baseline={"Masked-token loss (nats)": figures["heldout/unigram_loss"]},
        lineage={"Run": job.folder.name, "Tokenizer SHA-256": shards.tokenizer_hash},
    )


def export(
    job: "PretrainingJob", tokenizer: Tokenizer, checkpoint: Path, card: str, lineage: Lineage
) -> None:
    """Writes the checkpoint's weights as a model folder."""
    settings = job.settings
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    config = settings.model.config(vocabulary.size, vocabulary.pad_id)
    model = Bert.for_pretraining(config, next_sentence=settings.rows.objective == "mlm_nsp")
    model.load_state_dict(load_file(checkpoint / MODEL))
    save_model_folder(job.folder.model, model, tokenizer, card=card, lineage=lineage)


def summary_lines(
    folder: RunFolder, checkpoint: CheckpointInfo, figures: dict[str, float], plot: Path
) -> list[str]:
    """What the run came to and where everything lies."""
    loss, unigram = figures["heldout/masked_token_loss"], figures["heldout/unigram_loss"]
    side = "under" if loss < unigram else "over"
    lines = [
        f"finished     {checkpoint.step:,} steps, {checkpoint.num_rows_seen:,} rows, "
        f"{checkpoint.num_tokens_seen:,} tokens",
        f"held out     masked-token loss {loss:.3f} ({abs(unigram - loss):.3f} {side} the unigram "
        f"baseline's {unigram:.3f}), accuracy {figures['heldout/masked_token_accuracy']:.1%}",
    ]
    if "heldout/next_sentence_accuracy" in figures:
        accuracy = figures["heldout/next_sentence_accuracy"]
        lines.append(f"             next-sentence accuracy {accuracy:.1%}")
    return [
        *lines,
        f"used         {Usage.of(checkpoint)}",
        f"model        {folder.model}",
        f"plot         {plot}",
        f"settings     {folder.settings}",
    ]
