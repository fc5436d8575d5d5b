"""Pre-train the encoder of `benchmarks.encoder_run`, with its loss curve.

Uses bert_core alone. A stopped run resumes from its last checkpoint, to the same weights.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.encoder_run.recipe import Clock, Recipe, duration
from benchmarks.measurement import synchronize
from bert_core.config import training_flops
from bert_core.errors import UserError
from bert_core.model.bert import Bert
from bert_core.model_folder import save_model_folder
from bert_core.pretraining import compute_loss, evaluate_pretraining
from bert_core.settings import OptimizerSettings
from bert_core.text.masking import Vocabulary
from bert_core.text.shards import open_shards
from bert_core.tokenizer import load_tokenizer
from bert_core.training.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from bert_core.training.loop import StepResult, TrainingState, compiled, train
from bert_core.training.optimization import create_optimizer, linear_schedule

POINTS = 200
"""Of the loss curve, at most; each is the mean over the steps since the previous one."""
EVALUATED_SHARES = (0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Of all steps, after which held-out rows are evaluated, as before the first."""
WARMING_STEPS = 3
"""Steps for compilation and memory allocation, whose updates are discarded."""
MEASURED_SECONDS = 8.0
"""The duration of the rate measurement that determines the number of steps."""
SAFETY = 0.97
"""Share of the time that the steps are planned for; checkpoints and the export take the rest."""

Record = dict[str, Any]
"""The results of the pre-training, ready for JSON."""


class Pretraining:
    """An encoder in training, and its results."""

    def __init__(self, recipe: Recipe, shards: Path, device: torch.device, folder: Path) -> None:
        """Reads the shards; checkpoints go into `folder`."""
        self.recipe, self.device = recipe, device
        self.checkpoints = folder / "checkpoints"
        self.tokenizer = load_tokenizer(shards)
        self.dtype = torch.bfloat16 if device.type == "cuda" else None
        vocabulary, train_shards = Vocabulary.from_tokenizer(self.tokenizer), open_shards(shards)
        on_cuda = device.type == "cuda"
        batch = recipe.batch(packed=on_cuda)
        self.source = recipe.source(train_shards, vocabulary, batch=batch, static=on_cuda)
        self.token_counts = np.load(shards / "token_counts.npy", allow_pickle=False)
        self._heldout = recipe.source(
            open_shards(shards, "heldout"), vocabulary, batch=batch, static=on_cuda
        )
        self.model = fresh_model(recipe, vocabulary).to(device)
        self.state = TrainingState(self.model, self._optimizer())
        self.compute_loss = training_loss(device)
        self.record: Record = {
            "parameters": sum(each.numel() for each in self.model.parameters()),
            "train_tokens": train_shards.num_tokens,
            "data_sha256": train_shards.data_hash,
            "vocabulary": vocabulary.size,
            "rows_per_step": batch.global_batch_size,
            "total_steps": 0,
            "step": 0,
            "tokens": 0,
            "slots": 0,
            "flops": 0.0,
            "seconds": 0.0,
            "evaluation_seconds": 0.0,
            "curve": [],
            "heldout": [],
        }

    def run(
        self,
        clock: Clock,
        *,
        steps: int | None,
        heldout_rows: int,
        checkpoint_seconds: float,
        report: Callable[[Record], None],
    ) -> bool:
        """Train to the last step or until the call is out of time; return whether it is finished.

        Without `steps` there are as many as fit into `clock.pretraining_seconds`, by the rate of
        some first steps whose updates are discarded. `report` gets the record now and then.
        """
        self._resume()
        is_planned = bool(steps or self.record["total_steps"])
        rate = self._rate(0.0 if is_planned else MEASURED_SECONDS)
        self.heldout_batches = list(self._heldout.epoch_zero(heldout_rows))
        if not self.record["total_steps"]:
            self._evaluate()
            left = clock.pretraining_seconds()
            left -= len(EVALUATED_SHARES) * self.record["evaluation_seconds"]
            self.record["total_steps"] = steps or max(int(SAFETY * left * rate), 2)
            report(self.record)
        return self._train(clock, checkpoint_seconds, report)

    def export(self, folder: Path) -> None:
        """Write the model folder."""
        record = self.record
        card = (
            f"# A {self.recipe.size} BERT encoder\n\nPre-trained for {record['step']:,} steps on "
            f"{record['tokens']:,} tokens of text by `python -m benchmarks.encoder_run`.\n"
        )
        save_model_folder(folder, self.model, self.tokenizer, card)

    def remove_checkpoints(self) -> None:
        """Delete the checkpoints."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def _train(
        self, clock: Clock, checkpoint_seconds: float, report: Callable[[Record], None]
    ) -> bool:
        total = self.record["total_steps"]
        every = -(-total // POINTS)
        due = {every * max(1, round(share * total / every)) for share in EVALUATED_SHARES[:-1]}
        results = self._steps(self.state, self._learning_rate, total)
        unread: list[StepResult] = []
        begin = saved = time.monotonic()
        for result in results:
            unread.append(result)
            finished = result.step == total
            if result.step % every and not finished:
                continue
            self._read(unread, begin)
            unread.clear()
            if finished or result.step in due:
                self._evaluate()
                report(self.record)
            clock.say(self._line())
            stopped = clock.is_over() and not finished
            if stopped or finished or time.monotonic() - saved >= checkpoint_seconds:
                self._save()
                report(self.record)
                saved = time.monotonic()
            if stopped:
                return False
            begin = time.monotonic()
        return True

    def _steps(self, state: TrainingState, schedule: Callable[[int], float], total: int) -> Any:  # noqa: ANN401 - a generator of StepResult
        return train(
            state,
            self.source.steps(state.step, pinned=self.device.type == "cuda"),
            self.compute_loss,
            total_steps=total,
            schedule=schedule,
            max_gradient_norm=OptimizerSettings().max_gradient_norm,
            device=self.device,
            autocast_dtype=self.dtype,
            seed=self.recipe.seed,
        )

    def _rate(self, seconds: float) -> float:
        """Steps per second, measured for some seconds at a learning rate of 0, without effect."""
        scratch = TrainingState(self.model, self._optimizer())
        begin, done = 0.0, 0
        for result in self._steps(scratch, lambda _: 0.0, 10**9):
            done = result.step - WARMING_STEPS
            if done == 0:
                synchronize(self.device)
                begin = time.monotonic()
            if done >= 0 and time.monotonic() - begin >= seconds:
                break
        synchronize(self.device)
        self.model.zero_grad(set_to_none=True)
        return done / max(time.monotonic() - begin, 1e-9)

    def _resume(self) -> None:
        path, damaged = newest_checkpoint(self.checkpoints)
        for message in damaged:
            print(message, flush=True)
        if path is None:
            return
        found = load_checkpoint(path, self.state).extra
        if found["recipe"] != asdict(self.recipe) or found["data"] != self.record["data_sha256"]:
            raise UserError(
                "a checkpoint of other settings or text", str(path), "give another --out"
            )
        self.record = found["record"]
        print(f"resuming from step {self.state.step:,}", flush=True)

    def _save(self) -> None:
        save_checkpoint(
            self.checkpoints,
            self.state,
            extra={
                "record": self.record,
                "recipe": asdict(self.recipe),
                "data": self.record["data_sha256"],
            },
            files={},
            keep=1,
        )

    def _read(self, results: Sequence[StepResult], begin: float) -> None:
        """Copies the results of some steps to the host and adds a point to the curve."""
        sums = torch.stack([each.sums for each in results]).sum(0).tolist()
        counts = torch.stack(
            [torch.stack([each.num_real_tokens, each.num_slots]) for each in results]
        )
        tokens, slots = (int(each) for each in counts.sum(0).tolist())
        record = self.record
        record["seconds"] += time.monotonic() - begin
        record["step"] = results[-1].step
        record["tokens"] += tokens
        record["slots"] += slots
        record["flops"] += training_flops(
            self.model.config,
            num_tokens=tokens,
            sum_of_squared_lengths=sum(each.sum_of_squared_lengths for each in results),
            num_predictions=int(sums[2]),
            num_rows=int(sums[5]),
            num_read=int(sums[2] + sums[5]),
        )
        point = {"step": record["step"], "tokens": record["tokens"]}
        record["curve"].append(point | {"masked_token_loss": sums[0] / max(sums[2], 1)})

    def _evaluate(self) -> None:
        begin = time.monotonic()
        found = evaluate_pretraining(
            self.model,
            self.heldout_batches,
            compute_loss,
            device=self.device,
            token_counts=self.token_counts,
            autocast_dtype=self.dtype,
        )
        record = self.record
        record["evaluation_seconds"] = time.monotonic() - begin
        place = {name: record[name] for name in ("step", "tokens", "seconds")}
        record["heldout"].append(place | asdict(found))

    def _line(self) -> str:
        record = self.record
        seconds = record["seconds"]
        left = (record["total_steps"] - record["step"]) * seconds / record["step"]
        heldout = record["heldout"][-1]
        return (
            f"step {record['step']:,}/{record['total_steps']:,}  "
            f"mlm {record['curve'][-1]['masked_token_loss']:.3f}  "
            f"held-out {heldout['masked_token_loss']:.3f} at step {heldout['step']:,} "
            f"(unigram {heldout['unigram_loss']:.3f})  "
            f"{record['tokens'] / seconds:,.0f} tokens/s  "
            f"padding {1 - record['tokens'] / record['slots']:.1%}  ETA {duration(left)}"
        )

    def _learning_rate(self, step: int) -> float:
        total = self.record["total_steps"]
        warmup = round(self.recipe.warmup_share * total)
        share = linear_schedule(step, total_steps=total, warmup_steps=warmup)
        return self.recipe.peak_learning_rate * share

    def _optimizer(self) -> torch.optim.Optimizer:
        settings = OptimizerSettings(peak_learning_rate=self.recipe.peak_learning_rate)
        return create_optimizer(self.model, settings)


def fresh_model(recipe: Recipe, vocabulary: Vocabulary) -> Bert:
    """The encoder and its heads before the first step, drawn from the seed."""
    torch.manual_seed(recipe.seed)
    return Bert.for_pretraining(recipe.architecture(vocabulary))


def training_loss(device: torch.device) -> Callable[..., tuple[Tensor, Tensor]]:
    """The loss of pre-training, compiled on CUDA."""
    return compiled(compute_loss) if device.type == "cuda" else compute_loss
