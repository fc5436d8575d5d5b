"""Makes the fixtures of this folder: `python tests/compatibility/make_fixtures.py`.

They are what an older version of the project wrote, so they are made once, with that version, and
kept: what is made anew with a newer one guards nothing. Text comes from the generators of the
tests. Real runs of the commands write the runs, the sweep and the registry (Ray, two minutes).
"""

import gzip
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
for folder in ("workflows", "serving", "benchmarks", "compatibility"):
    sys.path.insert(0, str(TESTS / folder))
sys.path.insert(0, str(TESTS.parent))

import torch  # noqa: E402
from answering import normalized_document, recorded_answer, served  # noqa: E402
from finetuning_runs import write_encoder, write_task  # noqa: E402
from fixture_places import (  # noqa: E402
    ASKED,
    FIXTURES,
    MODELS,
    RECORDED,
    REGISTRY,
    REQUESTS,
    RESUME_FROM,
    SHARDS,
    TASK,
    finetuning_run,
    pretraining_run,
    split_content,
    sweep_command,
)
from pretraining_runs import Run, write_corpus  # noqa: E402
from recorded_requests import drawn_requests  # noqa: E402
from running import SMALL_TASKS  # noqa: E402
from small_tasks import WORDS  # noqa: E402

from bert_core.config import ModelConfig  # noqa: E402
from bert_core.machine import processor_name  # noqa: E402
from bert_core.model.bert import Bert  # noqa: E402
from bert_core.model_folder import load_model_folder, save_model_folder  # noqa: E402
from bert_core.tasks.catalog import task_config  # noqa: E402
from bert_core.tasks.multiple_choice import MultipleChoice  # noqa: E402
from bert_core.tasks.task import add_task_head  # noqa: E402
from bert_core.tokenizer import train_wordpiece  # noqa: E402
from workflows import quantize  # noqa: E402
from workflows.versions.model_pyfunc import _load_pyfunc  # noqa: E402

NUM_REQUESTS = 1000


def main() -> None:
    """Makes all of them anew."""
    shutil.rmtree(FIXTURES, ignore_errors=True)
    FIXTURES.mkdir()
    write_corpus(SHARDS, num_documents=60)
    write_task(TASK / "data")
    write_encoder(TASK / "encoder")
    write_models()
    facts = {
        "processor": processor_name(torch.device("cpu")),
        "torch": torch.__version__,
        "shards": read_shards(),
        "predictions": {
            name: _load_pyfunc(str(MODELS / name)).predict(rows) for name, rows in ASKED.items()
        },
    }
    with tempfile.TemporaryDirectory() as temporary:
        # Elsewhere: a checkpoint keeps the paths that its run was given.
        storage = Path(temporary) / "storage"
        shards = Path(shutil.copytree(SHARDS, Path(temporary) / "shards"))
        task = Path(shutil.copytree(TASK, Path(temporary) / "task"))
        facts["pretraining"] = keep_run(pretraining_run(storage, shards))
        facts["finetuning"] = keep_run(finetuning_run(storage, task))
        facts["lineage"] = keep_registry(storage)
        keep_sweep(storage, task)
    facts["document"] = write_answers()
    RECORDED.write_text(json.dumps(facts, indent=1, sort_keys=True), encoding="utf-8")


def read_shards() -> dict[str, Any]:
    """What each split holds (see `split_content`)."""
    return {split: split_content(SHARDS, split) for split in ("train", "heldout")}


def write_models() -> None:
    """An encoder, heads of every kind of task on it, one of them in int8."""
    tokenizer = train_wordpiece([" ".join(WORDS)] * 3, 120, lowercase=True)
    config = ModelConfig(
        vocab_size=120,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    model = Bert.for_pretraining(config)
    for parameter in model.encoder.parameters():
        if parameter.ndim > 1:
            parameter.data *= 10  # so that states differ from text to text
    save_model_folder(MODELS / "encoder", model, tokenizer, card="")
    save_model_folder(MODELS / "vectors", Bert(model.encoder, {}), tokenizer, card="")
    choice = MultipleChoice(choice_columns=("choices",), max_length=32)
    tasks = SMALL_TASKS | {"choices": ("multiple_choice", choice)}
    for number, (name, (task_name, task)) in enumerate(tasks.items()):
        _, model, tokenizer = load_model_folder(MODELS / "encoder")
        torch.manual_seed(number)
        add_task_head(model, task)
        for head in model.heads.values():
            for parameter in head.parameters():  # so that what it says varies
                parameter.data.normal_(std=1.0)
        extra = task_config(task_name, task)
        save_model_folder(MODELS / name, model, tokenizer, card="", extra_config=extra)
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary) / "dev.tsv"
        lines = [f"{word} the cat\t{('bad', 'good')[n % 2]}" for n, word in enumerate(WORDS)]
        data.write_text("text\tlabel\n" + "\n".join(lines) + "\n")
        options = ["--model", MODELS / "sentiment", "--data", data, "--num_resamples", "100"]
        options += ["--output", MODELS / "sentiment-int8", "--storage", temporary]
        assert quantize.main([str(option) for option in options]) == 0


def keep_run(run: Run) -> list[tuple[int, dict[str, float]]]:
    """Has the command train, and keeps the run as it was in the middle; returns its journal."""
    run.finish()
    kept = FIXTURES / "runs" / run.name
    unread = shutil.ignore_patterns("ray", "cache", "*.lock", "system.jsonl", "tracking.log")
    shutil.copytree(run.folder, kept, ignore=unread)
    for checkpoint in (kept / "checkpoints").iterdir():
        if checkpoint.name != f"step-{RESUME_FROM[run.name]:08d}":
            shutil.rmtree(checkpoint)
    for name in ("artifacts", "model"):
        shutil.rmtree(kept / name, ignore_errors=True)
    for left in ("summary.txt", "journal.jsonl", "best.safetensors", "best_predictions.jsonl"):
        (kept / left).unlink(missing_ok=True)
    return run.records()


def keep_registry(storage: Path) -> object:
    """Keeps MLflow's store and artifacts, and what `registry.py lineage` said of the version."""
    command = [sys.executable, str(TESTS.parent / "workflows" / "registry.py"), "lineage"]
    command += ["mood/1", "--storage", str(storage), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    with tarfile.open(REGISTRY, "w:xz") as packed:
        packed.add(storage / "mlflow", "mlflow", filter=without_pictures)
    return json.loads(done.stdout.replace(str(storage), "STORAGE"))


def without_pictures(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """What is packed: all but pictures, without the name of an owner."""
    member.uname = member.gname = ""
    return None if member.name.endswith(".png") else member


def keep_sweep(storage: Path, task: Path) -> None:
    """Keeps the result files of a sweep of two learning rates."""
    sweep = sweep_command(storage, task)
    sweep.finish()
    kept = FIXTURES / "sweep"
    shutil.copytree(
        sweep.folder, kept, ignore=shutil.ignore_patterns("*.html", "*.svg", "*.lock", "ray")
    )
    summary = kept / "summary.txt"
    summary.write_text(summary.read_text().replace(f"{Path(sys.executable).parent}/", ""))
    for trial in storage.glob("runs/*/trial.json"):
        shutil.copy(trial, kept / f"{trial.parent.name}.trial.json")


def write_answers() -> object:
    """Asks the server; returns its OpenAPI document, as far as clients depend on it."""
    with served() as server, gzip.open(REQUESTS, "wt", encoding="utf-8") as file:
        for request in drawn_requests(NUM_REQUESTS):
            answer = recorded_answer(server, request)
            file.write(json.dumps(request | {"answer": answer}, separators=(",", ":")) + "\n")
        return normalized_document(server)


if __name__ == "__main__":
    main()
