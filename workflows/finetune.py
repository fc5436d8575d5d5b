"""Fine-tunes an encoder on a task: `python workflows/finetune.py --task mrpc --help`.

Labelled data, a BERT folder and settings go in; a model folder that knows its task comes out. The
same command goes on after any death; a finished run prints its summary.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from workflows.command import command
from workflows.finetuning.data import (
    TaskData,
    other_vectors,
    read_task_data,
    refuse_encoder,
    refuse_equal_views,
)
from workflows.finetuning.job import FinetuningJob
from workflows.finetuning.settings import (
    FeatureSettings,
    FinetuneSettings,
    TaskRunSettings,
    settings_class,
    task_and_approach,
)
from workflows.model_location import EncoderFolder, open_encoder
from workflows.runs.folder import open_run
from workflows.runs.storage import RemoteRun, Storage, open_storage
from workflows.settings import parse_command_line, settings_hash
from workflows.training.job import train_and_register

main = command(lambda given: finetune(parse(given)))


def parse(arguments: Sequence[str]) -> TaskRunSettings:
    """The settings; which there are is decided by --task and --approach, or by the preset."""
    task, approach = task_and_approach(arguments)
    settings = parse_command_line(settings_class(task, approach), arguments)
    for split in ("train", "dev"):
        settings.source(split)  # there is one
    return settings


def finetune(settings: TaskRunSettings) -> bool:
    """Trains, or goes on training, and registers on request; False when it was told to stop.

    Raises `UserError` for what the user can mend.
    """
    storage = open_storage(settings.storage)
    if storage.uri is not None:
        print(f"address  {storage.uri}")
    print(f"storage  {storage.folder}", flush=True)
    with opened_job(settings, storage) as job:
        announce(job)
        if job.folder.has_answered(settings.asked()):
            print(job.folder.finished_summary())
            return True
        from workflows.finetuning.results import write_results  # loads torch

        return train_and_register([job], write_results)


@contextmanager
def opened_job(
    settings: TaskRunSettings,
    storage: Storage,
    kind: str = "",
    inputs: tuple[EncoderFolder, TaskData] | None = None,
) -> Iterator[FinetuningJob]:
    """The run of these settings, taken for this process alone; new, to go on, or finished.

    Its name is made of the task, `kind` and a hash where the settings give none. What `inputs`
    holds is not read again. Raises `UserError` for what the user can mend.
    """
    encoder, data = inputs or read_inputs(settings, storage)
    settings = settings.for_encoder(encoder.config)
    refuse_equal_views(settings)
    recipe = settings.recipe() | {"data": data.sha256, "encoder": encoder.sha256}
    if data.teacher is not None:
        recipe |= {"teacher": data.teacher.sha256}
    parts = [settings.task, kind, settings_hash(recipe)]
    name = settings.name or "-".join(filter(None, parts))
    remote = None if storage.uri is None else RemoteRun(storage.uri, name)
    adopt = None if remote is None else remote.adopt
    with open_run(storage.folder, name, recipe, fresh=settings.fresh, adopt=adopt) as folder:
        yield FinetuningJob(settings, storage, folder, encoder, data, remote)


def read_inputs(settings: TaskRunSettings, storage: Storage) -> tuple[EncoderFolder, TaskData]:
    """The encoder and the data of a run; raises `UserError` where they do not go together."""
    tracking_uri = settings.tracking.uri_of(storage.folder)
    encoder = open_encoder(settings.model, storage.folder, tracking_uri)
    refuse_encoder(settings, encoder)
    if isinstance(settings, FinetuneSettings) and settings.teacher is not None:
        from workflows.finetuning.teacher import refuse_task, refuse_teacher  # loads torch

        refuse_task(settings)
        teacher = open_encoder(settings.teacher, storage.folder, tracking_uri)
        data = read_task_data(settings, encoder.tokenizer)
        refuse_teacher(settings, data, teacher)
        if settings.compare is not None:
            from workflows.finetuning.students import refuse_compared  # loads torch

            refuse_compared(settings, data.task, storage.folder)
        data = replace(data, teacher=teacher)
    else:
        data = read_task_data(settings, encoder.tokenizer)
    for warning in data.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return encoder, data


def announce(job: FinetuningJob) -> None:
    """Prints what is about to be trained, on what, and where it will lie."""
    from workflows.finetuning.results import shown_labels  # loads torch

    settings, data = job.settings, job.data
    labels = data.task.labels
    steps_per_epoch = -(-data.num_items // settings.batch_size)
    rows, features, teacher = data.train.rows, "", ""
    others = other_vectors(data.task, job.encoder)
    if isinstance(settings, FeatureSettings):
        features = f"features {settings.strategy}, the encoder stays as it is\n"
    if data.teacher is not None:
        count = data.num_examples - len(data.train.examples)
        teacher = f"teacher  {data.teacher.path}, also of {count:,} unlabelled examples\n"
    print(
        f"run      {job.folder.name}\n"
        f"folder   {job.folder.path}\n"
        f"task     {settings.task}{f', labels {shown_labels(labels, 8)}' if labels else ''}\n"
        f"encoder  {job.encoder.path}\n"
        f"{teacher}"
        f"{features}"
        f"data     {len(data.train.examples):,} training examples, "
        f"{len(data.dev.examples):,} dev examples, {data.sha256[:12]}\n"
        f"length   {rows.lengths.mean():.0f} tokens on average, {data.task.max_length} at most\n"
        + "".join(f"{line}\n" for line in [*others, *data.tally_lines])
        + f"steps    {settings.epochs} epochs of {steps_per_epoch:,}, "
        f"{settings.batch_size} "
        f"{'examples' if data.num_items == data.num_examples else 'windows of texts'} each",
        flush=True,
    )
    planned = settings.epochs * steps_per_epoch
    evaluations = planned // (settings.evaluation.every_steps or steps_per_epoch)
    if settings.patience is not None and settings.patience + 1 >= evaluations:
        print(
            f"warning: --patience {settings.patience} cannot end this run early, of which the "
            f"evaluations number {evaluations:,}: give more --epochs, or a smaller "
            "--evaluation.every_steps",
            file=sys.stderr,
        )


if __name__ == "__main__":
    sys.exit(main())
