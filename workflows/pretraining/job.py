"""The driver's half of pre-training: the workers' job, and the model that a run continues from.

In: settings and shards. Out: what workers need, what MLflow is told, and refusals of what does not
fit together.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from bert_core.disk import file_sha256
from bert_core.errors import UserError, refusal
from bert_core.new_pieces import old_pieces
from bert_core.special_tokens import num_embeddings
from bert_core.text.shards import TOKEN_COUNTS_NAME, TokenShards, open_shards
from bert_core.tokenizer import load_tokenizer, tokenizer_hash
from bert_core.tokenizer_settings import MODULES
from bert_core.training.checkpoint_folder import MANIFEST
from bert_core.word_marks import CONTINUING
from workflows.model_location import EncoderFolder, model_name, open_encoder
from workflows.pretraining.settings import PretrainSettings
from workflows.runs.folder import RunFolder
from workflows.runs.storage import RemoteRun, Storage
from workflows.runs.tracker import DatasetInput
from workflows.settings import differences, given_names, parse_command_line

if TYPE_CHECKING:
    from bert_core.features.sentence_pooling import SentencePooling
    from bert_core.training.checkpoint import CheckpointInfo
    from workflows.training.run import WorkerJob


Settings = TypeVar("Settings", bound=PretrainSettings)

WARMUPS = ("optimizer.warmup_steps", "optimizer.warmup_share")
"""The options of the warm-up, of which the second has precedence."""


@dataclass(frozen=True)
class Start:
    """The model that a run continues from; of its heads `fresh` are lacking, `unused` left out."""

    encoder: EncoderFolder
    fresh: tuple[str, ...]
    unused: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its version, or the name of its folder or run: no path of this machine."""
        return self.encoder.version or model_name(self.encoder.path)

    def described(self) -> list[str]:
        """The lines of the run's first output."""
        lines = [f"start    {self.name}, {self.encoder.sha256[:12]}"]
        if self.fresh:
            lines.append(f"         without {_named(self.fresh)}: drawn from the seed")
        if self.unused:
            lines.append(f"         {_named(self.unused)}: not trained and left out")
        if self.pooling is None and (self.encoder.path / MODULES).is_file():
            lines.append(f"         {MODULES}: what it does besides pooling is left out")
        return lines

    @cached_property
    def pooling(self) -> "SentencePooling | None":
        """How it makes vectors of texts, which the new model does too.

        None where its folder does not say, or where vectors are made of more than pooled states.
        """
        from bert_core.features.sentence_pooling import read_sentence_pooling

        path, positions = self.encoder.path, self.encoder.config.max_position_embeddings
        if not (path / MODULES).is_file():
            return None
        try:
            said = read_sentence_pooling(path, positions)
        except UserError:  # of sparse vectors, or of scores
            return None
        return None if said.dense else said


@dataclass
class PretrainingJob:
    """One pre-training run (a `TrainingJob`)."""

    kind: ClassVar[str] = "pretraining"
    settings_comment: ClassVar[str] = (
        "python workflows/pretrain.py --preset THIS_FILE --shards FOLDER_OF_THE_SAME_SHARDS"
    )

    settings: PretrainSettings
    storage: Storage
    folder: RunFolder
    shards: TokenShards
    remote: RemoteRun | None = None
    title: str = ""
    start: Start | None = None
    teacher: EncoderFolder | None = None
    decayed: "CheckpointInfo | None" = None
    """The checkpoint that the learning rate falls from."""

    @property
    def source(self) -> str:
        """The text, as the user named it."""
        settings = self.settings
        return ", ".join(settings.text) if settings.shards is None else self.shards.folder.name

    def checkpoint_bytes(self) -> int:
        """Weights and moments of the model with all its heads."""
        import torch

        from bert_core.model.bert import Bert
        from bert_core.training.checkpoint import checkpoint_bytes

        with torch.device("meta"):
            config = self.settings.architecture(self.vocab_size, pad_token_id=0)
            return checkpoint_bytes(Bert.for_pretraining(config), self.settings.optimizer.name)

    @property
    def vocab_size(self) -> int:
        """Rows of the table of word pieces; a start model may have more than its tokenizer."""
        of_start = 0 if self.start is None else self.start.encoder.config.vocab_size
        return max(self.shards.vocab_size, of_start)

    def worker_job(self) -> "WorkerJob":
        """See `workflows.pretraining.worker.open_pretraining`."""
        from workflows.pretraining.worker import open_pretraining
        from workflows.training.run import WorkerJob

        settings = for_workers(self.settings)
        shards = self.shards.folder.absolute()
        start = None if self.start is None else self.start.encoder.path
        teacher = None if self.teacher is None else self.teacher.path.absolute()
        opened = partial(open_pretraining, settings, shards, start, teacher=teacher)
        return WorkerJob(opened, self.folder.path, self.settings.storage)

    def described(self) -> tuple[dict[str, str], dict[str, str], DatasetInput]:
        """Preset and profile, the hashes of shards and tokenizer, the shards."""
        settings, shards = self.settings, self.shards
        params = {"preset": Path(settings.preset).stem, "profile": Path(settings.profile).stem}
        tags = {"data.sha256": shards.data_hash, "tokenizer.sha256": shards.tokenizer_hash}
        if self.start is not None:
            from workflows.reproduction.run_origin import encoder_tags

            tags = encoder_tags(self.start.encoder) | tags
        if self.teacher is not None:
            tags["teacher.name"] = self.teacher.version or model_name(self.teacher.path)
            tags["teacher.sha256"] = self.teacher.sha256
        if settings.decay_from is not None:
            tags["decay_from.sha256"] = file_sha256(settings.decay_from / MANIFEST)
        if settings.replay is not None:
            tags["replay.sha256"] = open_shards(settings.replay, "train").data_hash
        return params, tags, DatasetInput("train", shards.data_hash, self.source)

    def data_description(self) -> dict[str, Any]:
        """Counts and hashes of shards, tokenizer and text."""
        from workflows.reproduction.run_origin import describe_shards

        described = describe_shards(self.shards.folder)
        if self.settings.replay is not None:
            described["replay"] = describe_shards(self.settings.replay)
        return described


def parse_pretraining(kind: type[Settings], arguments: Sequence[str]) -> Settings:
    """The settings of a new run; raises `UserError` for what is wrong, and for what does nothing.

    A preset may set what another option makes useless; a command line may not.
    """
    given = given_names(arguments)
    warmups = [name for name in WARMUPS if name in given]
    if len(warmups) > 1:
        where = " ".join(f"--{name}" for name in warmups)
        raise UserError("a warm-up given twice", where, "leave one out")
    settings = parse_command_line(kind, arguments)
    if settings.decay_from is not None and warmups:
        what, remedy = "a run with --decay_from has no warm-up", "leave it out"
        raise UserError(what, f"--{warmups[0]}", remedy)
    for name in ("text", "text_column", "vocabulary_size", "heldout_share", "new_pieces"):
        is_changed = getattr(settings, name) != kind.model_fields[name].default
        if settings.shards is not None and name in given and is_changed:
            what, remedy = "the text of --shards is prepared already", "leave it out, or --shards"
            raise UserError(what, f"--{name}", remedy)
    _refuse_unfit_warmup(settings)
    return settings


def _refuse_unfit_warmup(settings: PretrainSettings) -> None:
    """Raises `UserError` for a new run whose warm-up leaves no step after it, or meets the decay.

    The settings of older runs, of which some have such a warm-up, are still read.
    """
    optimizer, total = settings.optimizer, settings.total_steps
    warmup, decay = settings.warmup_steps, 0
    if optimizer.schedule == "wsd":
        decay = max(1, round(optimizer.decay_share * total))
    if warmup + decay > total or warmup == total:
        where = f"--optimizer.warmup_steps {optimizer.warmup_steps}"
        if optimizer.warmup_share is not None:
            where = f"--optimizer.warmup_share {optimizer.warmup_share:g}"
        falls = f", and a decay of {decay:,}" if decay else ""
        less = " or lower --optimizer.decay_share" if decay else ""
        what = f"a warm-up of {warmup:,} steps{falls}, in a run of {total:,}"
        remedy = f"give --optimizer.warmup_share, such as 0.06{less}, or more steps in --phases"
        raise UserError(what, where, remedy)


def for_workers(settings: PretrainSettings) -> dict[str, Any]:
    """The settings as JSON, for a process in another folder: no path is relative."""
    paths = {name: getattr(settings, name) for name in ("replay", "decay_from")}
    values: dict[str, Any] = settings.model_dump(mode="json")
    values |= {name: str(path.absolute()) for name, path in paths.items() if path is not None}
    if settings.evaluation.other is not None:
        values["evaluation"]["other"] = str(settings.evaluation.other.absolute())
    return values


def _named(heads: tuple[str, ...]) -> str:
    names = [head.replace("_", "-") for head in heads]
    return f"{', '.join(names)} head{'s' if len(names) > 1 else ''}"


def find_start(settings: PretrainSettings, storage: Storage) -> Start | None:
    """The model of `start_from`, None without one.

    Raises `UserError` where there is none, or it is damaged.
    """
    if settings.start_from is None:
        return None
    uri = settings.tracking.uri_of(storage.folder)
    encoder = open_encoder(settings.start_from, storage.folder, uri)
    return Start(
        replace(encoder, path=encoder.path.absolute()),
        fresh=tuple(head for head in settings.heads if head not in encoder.heads),
        unused=tuple(head for head in encoder.heads if head not in settings.heads),
    )


def find_teacher(
    settings: PretrainSettings, storage: Storage, shards: TokenShards
) -> EncoderFolder | None:
    """The model of `teacher`, None without one.

    Raises `UserError` for one that cannot predict what the student does in these shards.
    """
    if settings.teacher is None:
        return None
    uri = settings.tracking.uri_of(storage.folder)
    teacher = open_encoder(settings.teacher, storage.folder, uri)
    where = f"--teacher {settings.teacher}"
    if tokenizer_hash(teacher.tokenizer) != shards.tokenizer_hash:
        remedy = _preparation(teacher)
        raise UserError("the teacher has another tokenizer than the shards", where, remedy)
    if settings.heads[0] not in teacher.heads:
        what = f"a teacher without a {settings.heads[0].replace('_', '-')} head"
        raise UserError(what, where, "give a pre-trained model of the same objective")
    longest = max(phase.sequence_length for phase in settings.phases)
    positions = teacher.config.max_position_embeddings
    if longest > positions:
        what = f"rows of {longest} tokens, the teacher has {positions} positions"
        raise UserError(what, where, "give shorter --phases, or another teacher")
    return teacher


def continue_from(settings: Settings, start: Start | None) -> Settings:
    """The settings with the start model's architecture.

    Raises `UserError` where they contradict it.
    """
    if start is None:
        return settings
    try:
        return settings.continued_from(start.encoder.config)
    except ValueError as error:
        where = f"--start_from {settings.start_from}"
        raise UserError(refusal(error), where, "see --help") from error


def refuse_another_tokenizer(start: Start, shards: TokenShards, settings: PretrainSettings) -> None:
    """Raises `UserError` where the shards were made with another tokenizer than the start's.

    With `vocabulary` extend, where they were made with one that does not extend it.
    """
    if shards.tokenizer_hash == tokenizer_hash(start.encoder.tokenizer):
        return
    from bert_core.adaptation import extends  # loads torch

    what = "the shards were made with another tokenizer than the start model's"
    extended = extends(load_tokenizer(shards.folder), start.encoder.tokenizer)
    if extended and settings.vocabulary == "extend":
        return
    if extended:
        what = "the shards were made with more word pieces than the start model has"
        raise UserError(what, str(shards.folder), "add --vocabulary extend")
    new_pieces = settings.new_pieces if settings.vocabulary == "extend" else 0
    raise UserError(what, str(shards.folder), _preparation(start.encoder, new_pieces))


def _preparation(encoder: EncoderFolder, new_pieces: int = 0) -> str:
    """The command that makes shards for an encoder; none say where their text lies."""
    options = f"--text PATH… --tokenizer {shlex.quote(str(encoder.path))}"
    options += f" --new_pieces {new_pieces}" if new_pieces else ""
    return f"python workflows/prepare.py {options} --output SHARDS makes the right ones"


def tokens_per_word(start: Start, shards: TokenShards) -> tuple[float, float]:
    """Tokens of a word of the shards' text: with the start model's tokenizer, and with theirs."""
    old, new = start.encoder.tokenizer, load_tokenizer(shards.folder)
    first = num_embeddings(old)
    counts = np.load(shards.folder / TOKEN_COUNTS_NAME, allow_pickle=False)
    vocabulary = new.get_vocab(with_added_tokens=True)
    words = sum(
        int(counts[index])
        for piece, index in vocabulary.items()
        if not piece.startswith(CONTINUING)
    )
    saved = sum(
        int(counts[index]) * (len(old_pieces(old, piece)) - 1)
        for piece, index in vocabulary.items()
        if index >= first
    )
    after = int(counts.sum())
    return (after + saved) / words, after / words


def described_pieces(start: Start, shards: TokenShards) -> list[str]:
    """A line where the shards have more word pieces than the start model: what they save."""
    new = num_embeddings(load_tokenizer(shards.folder)) - num_embeddings(start.encoder.tokenizer)
    if not new:
        return []
    before, after = tokens_per_word(start, shards)
    return [f"pieces   {new:,} new: {after:.3f} tokens a word instead of {before:.3f}"]


def checkpoint_to_decay(settings: PretrainSettings, path: Path, tokenizer_hash: str) -> str:
    """The sha256 of a checkpoint that the learning rate falls from.

    Raises `UserError` where it is damaged, of another model, learning rate, tokenizer or other rows
    than the first phase has, or not of the stable part of a schedule.
    """
    from bert_core.training.checkpoint import read_checkpoint  # loads torch

    info = read_checkpoint(path)
    before = PretrainSettings.model_validate(info.extra["settings"])
    decay = round(before.optimizer.decay_share * before.total_steps)
    # The first step of the decay still has the peak.
    last_at_peak = before.total_steps - decay + 1
    is_stable = before.warmup_steps <= info.step <= last_at_peak
    if before.optimizer.schedule != "wsd" or not is_stable:
        raise UserError(
            "not a checkpoint of the stable part of a run",
            str(path),
            "give one of a run with --optimizer.schedule wsd, between warm-up and decay",
        )
    phase, _ = before.phase_at(max(info.step - 1, 0))  # of the last step that it has finished
    old, new = _kept_in_decay(before, phase), _kept_in_decay(settings, 0)
    for name in ("warmup_steps", "warmup_share", "schedule", "decay_share"):
        del old["optimizer"][name], new["optimizer"][name]
    changed = differences(old, new)
    if changed:
        raise UserError(
            "the checkpoint was made with other settings",
            f"--decay_from {path}",
            f"keep them: {changed[0]}",
        )
    if info.extra.get("tokenizer_hash", tokenizer_hash) != tokenizer_hash:  # older ones have none
        raise UserError(
            "the shards were made with another tokenizer than the checkpoint's",
            f"--decay_from {path}",
            "give the same shards, or prepare the text with workflows/prepare.py --tokenizer SHARDS"
            " of the run before",
        )
    return file_sha256(path / MANIFEST)


def _kept_in_decay(settings: PretrainSettings, phase: int) -> dict[str, dict[str, Any]]:
    """What a decay takes over from the run before it, as it is in a phase."""
    theta = {"global_rope_theta": settings.global_rope_theta_of(phase)}
    return {
        "model": settings.model.model_dump() | theta,
        "optimizer": settings.optimizer.model_dump(),
        "rows": settings.rows_of(phase).model_dump(),
    }
