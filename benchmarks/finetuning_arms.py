"""Build the arms of the fine-tuning benchmarks: ours, transformers' Trainer, and a plain loop.

All start from one model folder, so from the same weights and head, and read the same token ids.
The plain loop replaces the Trainer if accelerate is missing: the Trainer's batches, fused AdamW,
clipping and linear schedule, without its bookkeeping.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from bert_core.config import IGNORE_INDEX
from bert_core.model.bert import Bert
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.settings import FinetuningOptimizerSettings
from bert_core.tasks.catalog import task_config
from bert_core.tasks.encoded_rows import EncodedRows, TaskBatchSource, layout_for
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import FloatArray, Task, add_task_head, task_loss
from bert_core.training.checkpoint import load_checkpoint, newest_checkpoint
from bert_core.training.loop import StepResult, TrainingState, autocast, train
from bert_core.training.optimization import create_optimizer, linear_schedule, parameter_groups

if TYPE_CHECKING:
    from transformers import Trainer


NOWHERE = 10**6
"""A start or end that `transformers` ignores, beyond every row (it clamps -100 to 0)."""

ROWS_OF_A_GROUP = 8
"""Rows that transformers' question answering computes at once in the quality benchmark."""

CLASSES = {
    "BertForSequenceClassification": "AutoModelForSequenceClassification",
    "BertForTokenClassification": "AutoModelForTokenClassification",
    "BertForQuestionAnswering": "AutoModelForQuestionAnswering",
}


@dataclass(frozen=True)
class Recipe:
    """The settings of both arms."""

    optimizer: FinetuningOptimizerSettings
    batch_size: int
    total_steps: int
    seed: int
    device: torch.device
    max_tokens: int = 4096

    @property
    def dtype(self) -> torch.dtype | None:
        """Of autocast: bfloat16 on CUDA, float32 on the CPU."""
        return torch.bfloat16 if self.device.type == "cuda" else None

    @property
    def warmup_steps(self) -> int:
        """As `workflows/finetune.py` counts them."""
        return round(self.optimizer.warmup_share * self.total_steps)


def write_start(
    name: str,
    task: Task,
    encoder: Path,
    folder: Path,
    seed: int,
    *,
    attention_dropout: float | None = None,
) -> None:
    """Writes the model folder that both start from: the encoder, and a head drawn from the seed.

    `attention_dropout` instead of what the encoder's folder says.
    """
    changes = {"attention_probs_dropout_prob": attention_dropout}
    _, model, tokenizer = load_model_folder(
        encoder, changes={} if attention_dropout is None else changes
    )
    torch.manual_seed(seed)
    add_task_head(model, task)
    save_model_folder(folder, model, tokenizer, card="", extra_config=task_config(name, task))


def our_training(
    task: Task, rows: EncodedRows, folder: Path, recipe: Recipe, checkpoints: Path | None = None
) -> tuple[Bert, TrainingState, Iterator[StepResult]]:
    """Our model, its state, and its steps as in the workflow, from the newest checkpoint on."""
    config, model, _ = load_model_folder(folder)
    model = model.to(recipe.device)
    state = TrainingState(model, create_optimizer(model, recipe.optimizer))
    newest = newest_checkpoint(checkpoints)[0] if checkpoints else None
    if newest is not None:
        load_checkpoint(newest, state)
    layout = layout_for(config, recipe.device, recipe.dtype, training=True)
    source = TaskBatchSource(
        rows,
        batch_size=recipe.batch_size,
        max_tokens=recipe.max_tokens,
        seed=recipe.seed,
        layout=layout,
    )

    def learning_rate(step: int) -> float:
        total, warmup = recipe.total_steps, recipe.warmup_steps
        share = linear_schedule(step, total_steps=total, warmup_steps=warmup)
        return recipe.optimizer.peak_learning_rate * share

    return (
        model,
        state,
        train(
            state,
            source.steps(state.step),
            partial(task_loss, task),
            total_steps=recipe.total_steps,
            schedule=learning_rate,
            max_gradient_norm=recipe.optimizer.max_gradient_norm,
            device=recipe.device,
            autocast_dtype=recipe.dtype,
            seed=recipe.seed,
        ),
    )


def their_trainer(
    task: Task,
    rows: EncodedRows,
    folder: Path,
    recipe: Recipe,
    *,
    fastest: bool,
    checkpoints: Path | None = None,
    checkpoint_every: int = 0,
) -> "Trainer":
    """The Trainer with dynamic padding; nothing logged, saved every so many steps if at all.

    `fastest` groups examples by length, so its batches are no random draws. Without it they are,
    and padding is no answer to a question: the Trainer then learns the very thing that ours does.
    """
    import transformers

    optimizer = recipe.optimizer
    arguments = transformers.TrainingArguments(
        output_dir=str(checkpoints or folder / "trainer"),
        per_device_train_batch_size=recipe.batch_size,
        per_device_eval_batch_size=64,
        max_steps=recipe.total_steps,
        learning_rate=optimizer.peak_learning_rate,
        weight_decay=optimizer.weight_decay,
        adam_beta1=optimizer.beta1,
        adam_beta2=optimizer.beta2,
        adam_epsilon=optimizer.epsilon,
        max_grad_norm=optimizer.max_gradient_norm,
        lr_scheduler_type="linear",
        warmup_steps=recipe.warmup_steps,
        train_sampling_strategy="group_by_length" if fastest else "random",
        bf16=recipe.dtype is not None,
        use_cpu=recipe.device.type == "cpu",
        seed=recipe.seed,
        logging_strategy="no",
        save_strategy="steps" if checkpoint_every else "no",
        save_steps=checkpoint_every,
        save_total_limit=1,
        report_to="none",
        disable_tqdm=True,
    )
    theirs = their_model(task, folder)
    if isinstance(task, QuestionAnswering) and not fastest:
        leave_padding_out(theirs)
    return transformers.Trainer(
        theirs,
        arguments,
        train_dataset=their_features(task, rows),  # pyright: ignore - a list is a dataset
        data_collator=their_collator(task, folder),
    )


def their_model(task: Task, folder: Path) -> nn.Module:
    """The class of transformers for the task, with the folder's weights and fused attention."""
    import transformers

    made = getattr(transformers, CLASSES[task.architecture])
    return made.from_pretrained(folder, attn_implementation="sdpa")


def leave_padding_out(model: nn.Module) -> None:
    """Keeps padding out of the softmax of transformers' question answering, and mostly out of time.

    The encoder takes the rows of a batch in groups of like length, which changes no answer.
    """
    from transformers.modeling_outputs import BaseModelOutput

    encoder = model.get_submodule("bert")
    encode = encoder.forward
    padding: Tensor | None = None

    def encode_in_groups(input_ids: Tensor, **given: Any) -> Any:  # noqa: ANN401
        nonlocal padding
        mask, segments = given.pop("attention_mask"), given.pop("token_type_ids")
        padding = mask == 0
        states = torch.empty(0)
        lengths = mask.sum(1)
        for rows in lengths.argsort(descending=True).split(ROWS_OF_A_GROUP):
            longest = int(lengths[rows[0]])
            part = [each[rows, :longest] for each in (input_ids, mask, segments)]
            found = encode(part[0], attention_mask=part[1], token_type_ids=part[2], **given)[0]
            if not len(states):
                states = found.new_zeros((*input_ids.shape, found.shape[-1]))
            states[rows, :longest] = found
        return BaseModelOutput(last_hidden_state=states)

    def leave_out(_: nn.Module, __: Any, logits: Tensor) -> Tensor:  # noqa: ANN401
        assert padding is not None
        return logits.masked_fill(padding[..., None], torch.finfo(logits.dtype).min)

    encoder.forward = encode_in_groups
    model.get_submodule("qa_outputs").register_forward_hook(leave_out)


def their_collator(task: Task, folder: Path) -> Any:  # noqa: ANN401 - one of transformers'
    """Pads a batch to its longest row."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    if isinstance(task, Tagging):
        return transformers.DataCollatorForTokenClassification(tokenizer)
    return transformers.DataCollatorWithPadding(tokenizer)


def their_features(task: Task, rows: EncodedRows) -> list[dict[str, Any]]:
    """The rows as the Trainer takes them, a dictionary of lists for each."""
    ends = np.cumsum(rows.lengths)
    places = np.split(rows.places, np.cumsum(rows.place_counts)[:-1])
    labels = np.split(rows.labels, np.cumsum(rows.labels_per_item)[:-1])
    features = []
    for row, (end, length) in enumerate(zip(ends, rows.lengths, strict=True)):
        first = int(rows.first_lengths[row])
        feature = {
            "input_ids": rows.input_ids[end - length : end].tolist(),
            "token_type_ids": [0] * first + [1] * (int(length) - first),
            "attention_mask": [1] * int(length),
        }
        features.append(feature | _their_labels(task, int(length), places[row], labels[row]))
    return features


def _their_labels(task: Task, length: int, places: Any, labels: Any) -> dict[str, Any]:  # noqa: ANN401
    if isinstance(task, QuestionAnswering):
        start, end = (NOWHERE if each == IGNORE_INDEX else int(each) for each in labels[0])
        return {"start_positions": start, "end_positions": end}
    if isinstance(task, Tagging):
        tags = np.full(length, IGNORE_INDEX)
        tags[places] = labels
        return {"labels": tags.tolist()}
    return {"labels": labels[0].tolist()}


def their_outputs(task: Task, rows: EncodedRows, trainer: "Trainer | PlainLoop") -> FloatArray:
    """The outputs of transformers' model at the places of all rows, [P, L]."""
    model = trainer.model
    assert model is not None
    features, collate = their_features(task, rows), trainer.data_collator
    parts: list[FloatArray] = [np.empty(0, np.float32)] * len(features)
    order = np.argsort(-rows.lengths, kind="stable")
    places = np.split(rows.places, np.cumsum(rows.place_counts)[:-1])
    model.eval()
    with torch.inference_mode():
        for first in range(0, len(order), 32):
            some = order[first : first + 32].tolist()
            inputs = collate(
                [{k: v for k, v in features[i].items() if k in _INPUTS} for i in some]
                if not isinstance(task, Tagging)
                else [features[i] for i in some]
            )
            output = model(**{k: inputs[k].to(model.device) for k in _INPUTS})
            if isinstance(task, QuestionAnswering):
                logits = torch.stack([output.start_logits, output.end_logits], dim=-1)
            else:
                logits = output.logits
            for number, row in enumerate(some):
                answers = logits[number].float().cpu().numpy()
                pooled = task.head.pooled
                parts[row] = answers[None] if pooled else answers[places[row]]
    model.train()
    return np.concatenate(parts)


_INPUTS = ("input_ids", "token_type_ids", "attention_mask")


def train_in_turns(trainer: "Trainer", turns: Iterator[None]) -> None:
    """Trains until `turns` ends: each time it yields, the Trainer makes a step.

    All in one thread, because each computing thread has its own OpenMP team, and with more threads
    than cores OpenMP lets them sleep, which slows both arms.
    """
    from transformers import TrainerCallback

    class BetweenSteps(TrainerCallback):
        def on_train_begin(self, *given: Any, **_: Any) -> None:  # noqa: ANN401
            self.on_step_end(*given)

        def on_step_end(self, *given: Any, **_: Any) -> None:  # noqa: ANN401
            control = given[2]
            control.should_training_stop |= next(turns, "ended") == "ended"

    trainer.add_callback(BetweenSteps())
    trainer.train()


class PlainLoop:
    """Trains transformers' model; `step` is one step of it."""

    def __init__(self, task: Task, rows: EncodedRows, folder: Path, recipe: Recipe) -> None:
        """Starts from the same model folder as our arm."""
        optimizer = recipe.optimizer
        self.model = nn.Module.to(their_model(task, folder), recipe.device).train()
        self.data_collator = their_collator(task, folder)
        self.optimizer = torch.optim.AdamW(
            parameter_groups(self.model, optimizer.weight_decay),
            lr=optimizer.peak_learning_rate,
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.epsilon,
            fused=True,
        )
        self.finished_steps = 0
        self._recipe = recipe
        self._features = their_features(task, rows)
        self._batches = self._endless_batches()

    def step(self) -> None:
        """One step, from collating its examples to the optimizer, without waiting for a GPU."""
        recipe = self._recipe
        batch = self._on_device(self.data_collator(next(self._batches)))
        with autocast(recipe.device, recipe.dtype):
            loss = self.model(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), recipe.optimizer.max_gradient_norm)
        share = linear_schedule(
            self.finished_steps, total_steps=recipe.total_steps, warmup_steps=recipe.warmup_steps
        )
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.optimizer.peak_learning_rate * share
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.finished_steps += 1

    def _on_device(self, batch: dict[str, Any]) -> dict[str, Any]:
        if self._recipe.device.type != "cuda":
            return dict(batch)
        device = self._recipe.device
        return {
            name: each.pin_memory().to(device, non_blocking=True) for name, each in batch.items()
        }

    def _endless_batches(self) -> Iterator[list[dict[str, Any]]]:
        """Yields the features of each step, grouped by length per epoch, as the Trainer does."""
        from transformers.trainer_pt_utils import get_length_grouped_indices

        lengths = [len(each["input_ids"]) for each in self._features]
        size, random = self._recipe.batch_size, torch.Generator().manual_seed(self._recipe.seed)
        while True:
            order = get_length_grouped_indices(lengths, size, generator=random)
            for first in range(0, len(order), size):
                yield [self._features[index] for index in order[first : first + size]]
