"""What happens after the last step: the model folder, its card and picture, the registry, the end.

In: a run folder with its last checkpoint and journal. Out: `model/`, `artifacts/`, summary.txt.
"""

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors.torch import load_file

from bert_core.errors import UserError
from bert_core.model.bert import Bert
from bert_core.model_folder import save_model_folder
from bert_core.text.rows.masking import Vocabulary
from bert_core.text.shards import TokenShards
from bert_core.tokenizer import load_tokenizer
from bert_core.training.checkpoint import MODEL, CheckpointInfo, newest_checkpoint, read_checkpoint
from workflows.journal import read_records
from workflows.loss_plot import plot_losses
from workflows.model_card import model_card
from workflows.pretrain_settings import PretrainSettings
from workflows.registry import register_model_folder
from workflows.remote_run import RemoteRun
from workflows.run_folder import RunFolder, write_atomically
from workflows.tracker import (
    ARTIFACTS_NAME,
    JOURNAL_NAME,
    SPECIFICATION_NAME,
    TrackingSummary,
    default_tracking_uri,
    read_json,
)

WATTS = {"cpu": 10, "cuda": 700}
"""The assumption behind the energy estimate: a server core with memory, an H100 under load."""


@dataclass(frozen=True)
class Results:
    """What a finished run ended with: device hours are core-hours on CPU, else GPU-hours."""

    checkpoint: CheckpointInfo
    figures: dict[str, float]
    device: str
    device_hours: float
    plot: Path
    card: str

    @property
    def usage(self) -> str:
        """Hours and energy in words, with the assumption behind the energy."""
        kind, watts = ("core", WATTS["cpu"]) if self.device == "cpu" else ("GPU", WATTS["cuda"])
        kilowatt_hours = self.device_hours * watts / 1000
        return (
            f"{self.device_hours:.2f} {kind}-hours, about {kilowatt_hours:.3g} kWh "
            f"(assuming {watts} W per {kind})"
        )


def write_results(settings: PretrainSettings, folder: RunFolder, shards: TokenShards) -> Results:
    """Writes plot, card and model folder from the last checkpoint and the journal."""
    path, _ = newest_checkpoint(folder.checkpoints)
    if path is None:
        raise UserError("no whole checkpoint", str(folder.checkpoints), "give --fresh")
    checkpoint = read_checkpoint(path)
    journal = folder.path / JOURNAL_NAME
    figures: dict[str, float] = {}
    for record in read_records(journal):
        figures |= record.metrics
    artifacts = folder.path / ARTIFACTS_NAME
    plot = artifacts / "loss.png"
    plot_losses(journal, plot, title=folder.name, unigram_loss=figures["heldout/unigram_loss"])
    device = checkpoint.extra["device"]
    cores = checkpoint.num_threads if device == "cpu" else 1
    hours = checkpoint.extra["used_seconds"] * cores / 3600
    results = Results(checkpoint, figures, device, hours, plot, card="")
    card = card_of(settings, folder, shards, results)
    write_atomically(artifacts / "model_card.md", card)
    export(settings, folder, shards, path, card)
    return replace(results, card=card)


def card_of(
    settings: PretrainSettings, folder: RunFolder, shards: TokenShards, results: Results
) -> str:
    """The model card of a finished run."""
    figures = results.figures
    heldout = {
        "Masked-token loss (nats)": figures["heldout/masked_token_loss"],
        "Perplexity": figures["heldout/perplexity"],
        "Masked-token accuracy": figures["heldout/masked_token_accuracy"],
    }
    if "heldout/next_sentence_accuracy" in figures:
        heldout["Next-sentence accuracy"] = figures["heldout/next_sentence_accuracy"]
    source = ", ".join(settings.text) if settings.shards is None else shards.folder.name
    phases = ", ".join(f"{phase.steps:,} x {phase.sequence_length}" for phase in settings.phases)
    return model_card(
        name=settings.tracking.register_as or folder.name,
        summary=f"A BERT encoder ({settings.model.size}) pre-trained from scratch with Bertline.",
        data={
            "Text": source,
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
            "Rows seen": results.checkpoint.num_rows_seen,
            "Tokens seen": results.checkpoint.num_tokens_seen,
            "Used": results.usage,
            "Seed": settings.seed,
        },
        figures=heldout,
        baseline={"Masked-token loss (nats)": figures["heldout/unigram_loss"]},
        lineage={"Run": folder.name, "Tokenizer SHA-256": shards.tokenizer_hash},
    )


def export(
    settings: PretrainSettings, folder: RunFolder, shards: TokenShards, checkpoint: Path, card: str
) -> None:
    """Writes the checkpoint's weights as a model folder."""
    tokenizer = load_tokenizer(shards.folder)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    config = settings.model.config(vocabulary.size, vocabulary.pad_id)
    model = Bert.for_pretraining(config, next_sentence=settings.rows.objective == "mlm_nsp")
    model.load_state_dict(load_file(checkpoint / MODEL))
    save_model_folder(folder.model, model, tokenizer, card=card)


def register(
    settings: PretrainSettings,
    storage: Path,
    folder: RunFolder,
    results: Results,
    tracking: TrackingSummary,
    *,
    remote: RemoteRun | None = None,
) -> None:
    """Registers the model folder as a version, if asked to, and prints and keeps the summary.

    When MLflow does not answer the summary says so and is not kept: the same command tries again.
    """
    name, version, problem = settings.tracking.register_as, None, tracking.error
    tracking_uri = settings.tracking.uri or default_tracking_uri(storage)
    if name and tracking.run_id and not problem:
        try:
            version = register_model_folder(
                folder.model,
                name=name,
                run_id=tracking.run_id,
                tracking_uri=tracking_uri,
                card=results.card,
                tags=lineage_tags(folder),
                metrics=results.figures,
            )
        except UserError as error:
            problem = str(error)
    lines = summary_lines(folder, results)
    if remote is not None:
        lines.append(f"address      {remote.address}")
    if version is not None:
        lines.append(f"registered   models:/{name}/{version}")
    if problem or tracking.unsent_records:
        lines.append(f"MLflow       {tracking.unsent_records:,} records not sent: {problem}")
        lines.append("             the same command sends them and registers the model")
    else:
        lines.append(f"MLflow       {open_command(tracking_uri)}")
    text = "\n".join(lines)
    if not problem and not tracking.unsent_records:
        write_atomically(folder.summary, text + "\n")
    print(text)


def open_command(tracking_uri: str) -> str:
    """What to type, or where to point a browser, to see the run in MLflow."""
    if tracking_uri.startswith("http"):
        return tracking_uri
    beside_python = Path(sys.executable).with_name("mlflow")
    program = str(beside_python) if beside_python.exists() else "mlflow"
    return shlex.join([program, "ui", "--backend-store-uri", tracking_uri])


def lineage_tags(folder: RunFolder) -> dict[str, str]:
    """What a version says of its origin: the tags of its run."""
    return read_json(folder.path / SPECIFICATION_NAME).get("tags", {})


def summary_lines(folder: RunFolder, results: Results) -> list[str]:
    """What the run came to and where everything lies."""
    figures, checkpoint = results.figures, results.checkpoint
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
        f"used         {results.usage}",
        f"model        {folder.model}",
        f"plot         {results.plot}",
        f"settings     {folder.settings}",
    ]
