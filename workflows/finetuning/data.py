"""What a fine-tuning run reads: examples of train and dev as rows, and the encoder it starts from.

Driver and workers read alike; a hash says that they have read the same.
"""

import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from bert_core.errors import UserError, nearest
from bert_core.model.strategies import find_strategy
from bert_core.tasks.classification import Classification
from bert_core.tasks.encoded_rows import EncodedRows, tally_text
from bert_core.tasks.tables import TaskDataError
from bert_core.tasks.task import Task, has_answer, refuse_ignored_options
from bert_core.tasks.text_embedding import TextEmbedding
from workflows.finetuning.settings import FeatureSettings, FinetuneSettings, TaskRunSettings
from workflows.finetuning.splits import (
    Division,
    Overlap,
    excluded,
    overlap,
    refuse_other_choices,
    unlabelled_examples,
)
from workflows.model_location import EncoderFolder


@dataclass(frozen=True)
class Split:
    """The examples of one split, and the rows made of them."""

    examples: Sequence[Any]
    rows: EncodedRows


@dataclass(frozen=True)
class TaskData:
    """The task with its labels, and its splits; nothing is learned from `test`, or chosen by it.

    `unlabelled` is learned from the answers of the `teacher`. `division` says how train and dev
    were made of one split. `warnings` are for people to read.
    """

    task: Task
    train: Split
    dev: Split
    sha256: str
    test: Split | None = None
    unlabelled: Split | None = None
    teacher: EncoderFolder | None = None
    division: Division | None = None
    warnings: tuple[str, ...] = ()

    @property
    def num_examples(self) -> int:
        """The examples learned from: those of train, and those that only the teacher answers."""
        others = 0 if self.unlabelled is None else len(self.unlabelled.examples)
        return len(self.train.examples) + others

    @property
    def num_items(self) -> int:
        """What an epoch of training visits: examples, or the windows of long texts."""
        coupled = self.task.is_coupled  # their rows are texts, which examples share
        others = 0 if self.unlabelled is None else self.unlabelled.rows.num_items
        return len(self.train.examples) if coupled else self.train.rows.num_items + others

    @cached_property
    def overlaps(self) -> dict[str, Overlap]:
        """What of dev and test is in train, too, where anything is."""
        splits = {"dev": self.dev, "test": self.test}
        train = self.train.examples
        found = {
            name: overlap(self.task, train, split.examples)
            for name, split in splits.items()
            if split is not None
        }
        return {name: each for name, each in found.items() if each.count}

    def _only_in_dev(self) -> list[str]:
        """The labels of dev, in a line, that a division left none of in train."""
        if self.division is None:
            return []
        train, dev = (self.task.label_names(each.examples) for each in (self.train, self.dev))
        only = sorted({*(dev or ())} - {*(train or ())})
        return [", ".join(only[:5]) + ", …" * (len(only) > 5)] if only else []

    @property
    def tally_lines(self) -> list[str]:
        """What is not in the rows as it was in the files, a line for each split and reason."""
        splits = {"train": self.train, "dev": self.dev, "test": self.test}
        splits |= {"unlabelled": self.unlabelled}
        given = {name: split for name, split in splits.items() if split is not None}
        num_dev = len(self.dev.examples)
        divided = num_dev + len(self.train.examples) + self.train.rows.counts.get(EXCLUDED, 0)
        share = f"{num_dev:,} of {divided:,} examples"
        return [
            *([] if self.division is None else [f"split    {self.division}: {share}"]),
            *(f"{name:8} {tally_text(split.rows.tally)}" for name, split in given.items()),
            *(f"overlap  of {name} {each}" for name, each in self.overlaps.items()),
            *(f"lost     labels that only dev has: {each}" for each in self._only_in_dev()),
            *(
                f"lost     {reason}: {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"
                for split in given.values()
                for reason, names in split.rows.lost.items()
            ),
        ]


def located(data: str) -> str | Path:
    """The data as the task takes it: an address, or a path from the root, for workers elsewhere."""
    return data if "://" in data else Path(data).expanduser().absolute()


EXCLUDED = "excluded"
"""The reason of those that a file names, in what is counted of a split."""

AnsweredExamples = tuple[Sequence[Any], dict[str, int]]
"""Examples with answers, and how many others there were, by the reason."""


def answered_examples(task: Task, data: str, split: str) -> AnsweredExamples:
    """The examples of a split that have an answer, and how many have none, by the reason.

    What a model learns from, and what it is measured on. Raises `TaskDataError` where none has one.
    """
    examples = task.examples(located(data), split)
    refuse_no_answer(task, examples, data, split)
    return [example for example in examples if has_answer(example)], task.unanswered(examples)


def refuse_no_answer(task: Task, examples: Sequence[Any], data: str, split: str) -> None:
    """Raises `TaskDataError` where no example has an answer, or where there are no examples."""
    if any(map(has_answer, examples)):
        return
    where = data if Path(data).is_file() else f"{data}, {split}"
    if not examples:
        raise TaskDataError(f"no examples in the {split} split", where, "give some")
    remedy, column = "give data with answers", getattr(task, "label_column", None)
    # A field within a column may be there, or not, in each.
    if column is not None and not any(
        {column, column.partition(".")[0]} & {*each.columns} for each in examples
    ):
        where += f": {', '.join(examples[0].columns)}"
        remedy = (
            f"there is no column {column}: name that of the answers, --options.label_column NAME"
            " (evaluate.py: --options label_column=NAME)"
        )
    raise TaskDataError("no example has an answer", where, remedy)


def read_task_data(settings: TaskRunSettings, tokenizer: Tokenizer) -> TaskData:
    """Reads and encodes train and dev. Raises `UserError` for what cannot be read or learned.

    Examples without an answer are left out of all splits, and counted.
    """
    options = settings.options
    refuse_ignored_options(options)
    refuse_one_file(settings)
    train = answered_examples(options, settings.source("train"), "train")
    task = options.with_labels(train[0])
    if task.label_names(train[0]) is not None and len(task.labels) < 2:
        labels = ", ".join(task.labels) or "none"
        where = settings.source("train")
        raise TaskDataError(f"fewer than two labels, {labels}", where, "check the column")
    refuse_other_labels(settings, task)
    known = train[0]
    if settings.split is not None and settings.folds is not None:
        train = without_held_out(settings, task, train)
    division = division_of(settings)
    if division is None:
        splits = {"train": train, "dev": answered_examples(task, settings.source("dev"), "dev")}
    else:
        own, dev = division.divide(task, train[0], settings.source("train"))
        splits = {"train": (own, train[1]), "dev": (dev, {})}
    if settings.exclude is not None:
        splits["train"] = without_excluded(task, settings.exclude, known, splits["train"])
    if settings.test is not None:
        splits["test"] = answered_examples(task, settings.test, "test")
    read = {}
    for name, (examples, without) in splits.items():
        rows = task.encode(examples, tokenizer)
        if not rows.num_items:
            what = f"no word of the {name} split has a token"
            raise TaskDataError(what, settings.source(name), "give other texts, or another encoder")
        read[name] = Split(examples, replace(rows, counts=rows.counts | without))
    if not read["train"].rows.label_counts.any():
        lost = ", ".join(read["train"].rows.lost) or "answers without tokens"
        where = settings.source("train")
        raise TaskDataError(f"nothing to learn: {lost}", where, "check the answers of train")
    refuse_unknown_figure(settings, task, read["dev"])
    hashed = [read["train"].rows, read["dev"].rows]
    if isinstance(settings, FinetuneSettings) and settings.unlabelled:
        sources = settings.unlabelled
        examples = unlabelled_examples(task, [located(source) for source in sources])
        rows = task.encode(examples, tokenizer)
        refuse_other_choices(read["train"].rows, rows, sources[0])
        read["unlabelled"] = Split(examples, rows)
        hashed.append(rows)
    sha256 = _hash(task, hashed)
    odd = [] if options.labels else task.label_warnings()  # what was asked for is not odd
    return TaskData(task, **read, sha256=sha256, division=division, warnings=tuple(odd))


def division_of(settings: TaskRunSettings) -> Division | None:
    """How the training examples are divided; raises `UserError` where no fold is named."""
    others = {"group_by": settings.group_by, "seed": settings.split_seed}
    if settings.folds is None:
        share = settings.split
        return None if share is None else Division((share, 1 - share), **others)
    if settings.fold is None:
        remedy = "add --fold 0, or train on all of them: tune.py --folds"
        raise UserError("which fold is dev?", f"--folds {settings.folds}", remedy)
    shares = (1 / settings.folds,) * settings.folds
    return Division(shares, settings.fold, of_folds=True, **others)


def without_held_out(
    settings: TaskRunSettings, task: Task, train: AnsweredExamples
) -> AnsweredExamples:
    """The training examples without those that --split takes as dev, which no fold has then."""
    held_out = division_of(settings.model_copy(update={"folds": None}))
    assert held_out is not None
    return held_out.divide(task, train[0], settings.source("train"))[0], train[1]


def without_excluded(
    task: Task, file: str, known: Sequence[Any], train: AnsweredExamples
) -> AnsweredExamples:
    """Train without the examples that a file names, among all that are `known`.

    Raises `UserError` where it names other ones, or all.
    """
    names = {id(known[number]) for number in excluded(task, file, known)}
    kept = [example for example in train[0] if id(example) not in names]
    if not kept:
        raise TaskDataError("nothing is left to learn from", file, "exclude less")
    return kept, train[1] | {EXCLUDED: len(train[0]) - len(kept)}


def refuse_one_file(settings: TaskRunSettings) -> None:
    """Raises `TaskDataError` where one file would be read as train and as dev."""
    is_file = bool(settings.data) and "://" not in settings.data and Path(settings.data).is_file()
    is_divided = bool(settings.division_given) or settings.options.divides_itself
    if is_file and not is_divided and not (settings.train and settings.dev):
        raise TaskDataError(
            "one file, and two are needed",
            settings.data,
            "add --split 0.1, or give a folder with train and dev files (finetune.py: or --train"
            " FILE and --dev FILE)",
        )


def refuse_settings(settings: TaskRunSettings, encoder: EncoderFolder, task: Task) -> None:
    """Raises `UserError` for settings that do not fit the encoder, or the labels of the task."""
    refuse_encoder(settings, encoder)
    refuse_other_labels(settings, task)


def refuse_other_labels(settings: TaskRunSettings, task: Task) -> None:
    """Raises `UserError` for settings that name other labels than the task has, or more."""
    refuse_unknown_metric(task)
    refuse_other_thresholds(task, asked=settings.decisions.thresholds)
    if isinstance(weights := settings.loss.class_weights, dict):
        from bert_core.tasks.label_loss import check_weights  # loads torch

        check_weights(weights, task.labels)


def refuse_unknown_metric(task: Task, option: str = "--options.metric ") -> None:
    """Raises `UserError` where the metric that is to decide is none of the task's.

    `option` is what it was given by, up to its name.
    """
    if isinstance(task, Classification) and task.criterion not in task.metric_names:
        raise UserError(
            f"unknown metric{nearest(task.criterion, task.metric_names)}",
            f"{option}{task.criterion}",
            f"one of {', '.join(task.metric_names)}",
        )


def refuse_unknown_figure(settings: TaskRunSettings, task: Task, dev: Split) -> None:
    """Raises `UserError` where what is to select the best state is no figure on dev."""
    name = settings.evaluation.metric
    if name in (None, "loss"):
        return
    count = dev.rows.num_answers(per_row=task.head.per_row)
    outputs = np.zeros((count, max(task.head.num_outputs, 1)), dtype=np.float32)
    known = task.metrics(task.decode(outputs, dev.rows, dev.examples), dev.examples)
    if name not in known:
        what = f"unknown figure{nearest(name, known)}"
        raise UserError(what, f"--evaluation.metric {name}", f"one of loss, {', '.join(known)}")


def refuse_other_thresholds(task: Task, *, asked: bool) -> None:
    """Raises `UserError` where thresholds that are given, or `asked` for, do not fit the labels."""
    if asked and "thresholds" not in task.tunable:
        what = f"thresholds are for two labels, or several at once, not {len(task.labels)}"
        raise UserError(what, "--decisions.thresholds", "leave it out")
    if isinstance(task, Classification) and task.threshold_problem:
        known = f"the labels are {', '.join(task.labels)}"
        raise UserError(task.threshold_problem, "--options.thresholds", known)


def _hash(task: Task, splits: Sequence[EncodedRows]) -> str:
    """What was learned from: token ids, lengths, places and labels of both splits."""
    total = hashlib.sha256(json.dumps(task.labels).encode())
    for rows in splits:
        for array in (rows.input_ids, rows.lengths, rows.first_lengths, rows.places, rows.labels):
            total.update(f"{array.dtype} {array.shape}".encode())
            total.update(array.tobytes())
        for name in sorted(rows.notes) if task.is_coupled else ():  # which texts belong together
            total.update(f"{name} {rows.notes[name].shape}".encode())
            total.update(rows.notes[name].tobytes())
    return total.hexdigest()


def refuse_missing_layers(settings: FinetuneSettings, encoder: EncoderFolder) -> None:
    """Raises `UserError` where more layers are kept, frozen or drawn anew than there are."""
    layers, where = encoder.config.num_hidden_layers, str(encoder.path)
    kept = layers if settings.keep_layers is None else settings.keep_layers
    counts = {"keep_layers": (kept, layers)}
    counts |= {name: (getattr(settings, name), kept) for name in ("freeze_layers", "reinit_layers")}
    for name, (count, most) in counts.items():
        if count > most:
            raise UserError(f"{count} layers of {most}", where, f"give --{name} {most}, or less")
    frozen, anew = settings.freeze_layers, settings.reinit_layers
    if frozen + anew > kept:
        what = f"{frozen} layers to freeze and {anew} to draw anew, of {kept}"
        remedy = f"give --freeze_layers {kept - anew}, or less: layers drawn anew have to learn"
        raise UserError(what, where, remedy)


def refuse_encoder(settings: TaskRunSettings, encoder: EncoderFolder) -> None:
    """Raises `UserError` for an encoder that the options do not fit, or that cannot learn them.

    Rows may not be longer than it has positions. Vectors are the encoder's own: one whose folder
    maps them further, or that attends to the left only, is not trained for them.
    """
    positions, longest = encoder.config.max_position_embeddings, settings.options.max_length
    if longest > positions:
        raise UserError(
            f"rows of {longest} tokens, the encoder has {positions} positions",
            str(encoder.path),
            f"give --options.max_length {positions}",
        )
    if isinstance(settings, FinetuneSettings):
        refuse_missing_layers(settings, encoder)
    if isinstance(settings, FeatureSettings):
        find_strategy(settings.strategy).layers_of(encoder.config.num_hidden_layers)
    options = settings.options
    if options.head.reads_mean and not encoder.config.transforms_every_state:
        what = "of the paper's block a classifier reads [CLS], not the mean of all tokens"
        raise UserError(what, "--options.classifier_pooling mean", "leave it out")
    if not isinstance(options, TextEmbedding):
        return
    width, where = encoder.config.hidden_size, str(encoder.path)
    if options.is_sparse:
        if "masked_token" not in encoder.heads:
            remedy = "continue its pre-training first: bertline adapt --start_from"
            raise UserError("no masked-token head, and sparse vectors need one", where, remedy)
        return
    too_wide = [size for size in options.matryoshka if size >= width]
    if too_wide:
        what = f"a size of {too_wide[0]}, and vectors have {width} numbers"
        raise UserError(what, "--options.matryoshka", f"give sizes below {width}")
    if encoder.config.is_decoder:
        raise UserError("a model that attends to the left only", where, "give an encoder")
    from bert_core.features.sentence_pooling import read_sentence_pooling  # loads torch

    if read_sentence_pooling(encoder.path, positions).dense:
        what = "a model that maps its vectors further (Dense)"
        raise UserError(what, where, "train another; this one is served as it is")


def other_vectors(options: Task, encoder: EncoderFolder) -> list[str]:
    """A line where an encoder's folder makes its vectors otherwise than they are learned here."""
    if not isinstance(options, TextEmbedding) or options.is_sparse:
        return []
    from bert_core.features.sentence_pooling import read_sentence_pooling  # loads torch

    said = read_sentence_pooling(encoder.path, encoder.config.max_position_embeddings)
    names = ("pooling", "query_prompt", "passage_prompt")
    theirs = dict(zip(names, (said.pooling, *said.search_prompts()), strict=True))
    keep = [
        f"--options.{name} {shlex.quote(value)}"
        for name, value in theirs.items()
        if value != getattr(options, name)
    ]
    if said.pooling == "max" or not keep:  # which is not learned
        return []
    return [f"vectors  not as the encoder's folder makes them; for those add {' '.join(keep)}"]


def refuse_equal_views(settings: TaskRunSettings) -> None:
    """Raises `UserError` where a bare text is read twice without dropout, which parts its views."""
    options = settings.options
    if not (isinstance(options, TextEmbedding) and options.kind == "texts"):
        return
    if isinstance(settings, FinetuneSettings) and not any(settings.dropout.model_dump().values()):
        what = "without dropout both views of a bare text are equal: nothing is learned"
        raise UserError(what, "--options.kind texts", "add --dropout.hidden_dropout_prob 0.1")
