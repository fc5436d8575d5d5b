"""Text to token shards as Ray tasks: a plan goes in, a folder of shards comes out.

Every step leaves files in the folder of unfinished work, so a restart goes on where it was killed.
"""

import functools
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from bert_core.disk import atomic_write, write_atomically
from bert_core.new_pieces import extend_tokenizer
from bert_core.special_tokens import num_embeddings
from bert_core.text import pieces, screening
from bert_core.text.corpus_statistics import PieceStatistics, describe_corpus, describe_piece
from bert_core.text.encoding import SentenceEncoder
from bert_core.text.pieces import (
    Corpus,
    EncodeRecord,
    Piece,
    SampleTexts,
    ScanRecord,
    describe_sources,
    group_parts,
    take_inventory,
)
from bert_core.text.quality import chosen_rules
from bert_core.text.screening import Screened, Screening, ScreenRecord
from bert_core.text.shards import (
    TOKEN_COUNTS_NAME,
    TOKENIZER_NAME,
    ShardEntry,
    ShardIndex,
    describe_file,
    token_dtype,
    write_array,
    write_index,
)
from bert_core.text.sources import CorpusError, CorpusPart, evaluation_parts
from bert_core.tokenizer import load_tokenizer, save_tokenizer, tokenizer_hash
from bert_core.tokenizer_training import TokenizerKind, train_tokenizer
from workflows.clusters.tasks import run_tasks
from workflows.corpus_report import REPORT_NAME, corpus_page
from workflows.output_folder import LOCK_NAME, PLAN_NAME
from workflows.progress import ProgressLine
from workflows.reporting.render import Page, html

_WORK_VERSION = "2"
"""Of what unfinished work holds; before 2 long sentences were not cut."""


@dataclass(frozen=True)
class Preparation:
    """What is to be prepared, and how; the work folder and the output share a file system."""

    output: Path
    work: Path
    parts: list[CorpusPart]
    tokenizer: str | None
    vocabulary_size: int
    cased: bool
    alphabet_coverage: float
    tokenizer_sample_bytes: int
    heldout_share: float
    shard_tokens: int
    strict: bool
    text_column: str
    language: str
    num_workers: int | None
    logged_settings: dict[str, Any]
    tokenizer_kind: TokenizerKind = "wordpiece"
    new_pieces: int = 0
    scrub: Sequence[str] = ()
    keep_languages: Sequence[str] = ()
    quality: Sequence[str] = ()
    exclude: Sequence[str] = ()
    near_duplicates: float | None = None
    report: bool = False

    @property
    def screening(self) -> Screening:
        """What documents are dropped for."""
        return Screening(
            languages=tuple(self.keep_languages),
            quality=chosen_rules(self.quality),
            excluded=self.work / "evaluation_ngrams.npy" if self.exclude else None,
            near_duplicates=self.near_duplicates,
            identify_languages=self.report,
        )


def run(plan: Preparation) -> ShardIndex:
    """Runs or finishes all steps; raises `UserError` for what is wrong with the text."""
    discard_older_work(plan.work)
    units = list(group_parts(plan.parts))
    num_short = _read_evaluation_data(plan)  # first: it may be wrong, and takes seconds
    records = _scan(plan, units)
    screened = _screen(plan, records) if plan.screening.is_on else None
    corpus = take_inventory(
        plan.work,
        records,
        plan.heldout_share,
        plan.tokenizer_sample_bytes,
        screened.is_dropped if screened else None,
    )
    corpus.counts.update(screened.counts if screened else {})
    corpus.counts.update(num_short)
    vocab_size = _provide_tokenizer(plan, corpus)
    encoded = _encode(plan, corpus, vocab_size)
    return _finish(plan, corpus, encoded, units, records, vocab_size, screened)


def discard_older_work(work: Path) -> None:
    """Empties a folder of unfinished work of an older version, whose pieces are of other shards."""
    version = work / "version"
    if version.is_file() and version.read_text() == _WORK_VERSION:
        return
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (PLAN_NAME, LOCK_NAME):
            path.unlink()
    write_atomically(version, _WORK_VERSION)


def _read_evaluation_data(plan: Preparation) -> dict[str, int]:
    """Writes the n-grams of --exclude; counts the texts that are too short for one."""
    path = plan.screening.excluded
    if path is None:
        return {}
    texts = screening.evaluation_texts(evaluation_parts(plan.exclude))
    num_short = screening.write_ngrams(path, texts)
    return {"evaluation_texts_of_fewer_than_13_words": num_short}


def _scan(plan: Preparation, units: list[list[CorpusPart]]) -> list[ScanRecord]:
    sizes = [sum(part.text_bytes for part in unit) for unit in units]
    calls = [
        functools.partial(
            _scan_task.remote,
            plan.work,
            f"{index:06d}",
            unit,
            plan.text_column,
            plan.strict,
            list(plan.scrub),
        )
        for index, unit in enumerate(units)
    ]
    records: dict[int, ScanRecord] = {}
    finished = 0.0
    with ProgressLine("reading the text", sum(sizes)) as line:
        for index, record in run_tasks(
            calls, plan.num_workers, lambda: line.reach(pieces.written_bytes(plan.work))
        ):
            records[index] = ScanRecord.model_validate(record)
            finished += sizes[index]
            line.reach(finished)
    return [records[index] for index in range(len(units))]


@ray.remote(num_cpus=1)
def _scan_task(
    folder: Path,
    name: str,
    parts: Sequence[CorpusPart],
    text_column: str,
    strict: bool,
    scrubbed: Sequence[str],
) -> dict[str, Any]:
    record = pieces.scan_parts(
        folder, name, parts, text_column=text_column, strict=strict, scrubbed=scrubbed
    )
    return record.model_dump()


def _screen(plan: Preparation, scanned: list[ScanRecord]) -> Screened:
    """Applies the rules to all documents but exact copies."""
    of_corpus = pieces.pieces_of(scanned)
    rules = plan.screening
    hashes = [pieces.read_hashes(plan.work, piece)[0] for piece in of_corpus]
    bounds = np.cumsum([len(own) for own in hashes])[:-1]
    copies = np.split(pieces.find_copies(np.concatenate(hashes)), bounds)
    calls = [
        functools.partial(_screen_task.remote, plan.work, piece, is_copy, rules)
        for piece, is_copy in zip(of_corpus, copies, strict=True)
    ]
    records: dict[int, ScreenRecord] = {}
    with ProgressLine("screening", sum(piece.num_bytes for piece in of_corpus)) as line:
        for index, record in run_tasks(calls, plan.num_workers, line.refresh):
            records[index] = ScreenRecord.model_validate(record)
            line.advance(of_corpus[index].num_bytes)
        in_order = [records[index] for index in range(len(calls))]
        return screening.conclude(plan.work, of_corpus, in_order, rules)


@ray.remote(num_cpus=1)
def _screen_task(
    folder: Path, piece: Piece, is_copy: NDArray[np.bool_], rules: Screening
) -> dict[str, Any]:
    return screening.screen_piece(folder, piece, is_copy, rules).model_dump()


def _provide_tokenizer(plan: Preparation, corpus: Corpus) -> int:
    """Leaves the tokenizer in the work folder; returns the size of its vocabulary."""
    path = plan.work / TOKENIZER_NAME
    total = corpus.sample_bytes
    if plan.tokenizer and not plan.new_pieces:
        save_tokenizer(load_tokenizer(plan.tokenizer), path)
    elif path.is_file():
        pass  # of an earlier start
    elif plan.tokenizer:
        with ProgressLine(f"learning word pieces from {total / 1e6:,.1f} MB", total) as line:
            texts = SampleTexts(plan.work, corpus, line.advance)
            save_tokenizer(
                extend_tokenizer(load_tokenizer(plan.tokenizer), texts, plan.new_pieces), path
            )
    else:
        size = total if plan.tokenizer_kind == "bpe" else 2 * total  # others read it twice
        with ProgressLine(f"training the tokenizer on {total / 1e6:,.1f} MB", size) as line:
            note = "then the vocabulary"
            texts = SampleTexts(plan.work, corpus, lambda size: line.advance(size, note))
            trained = train_tokenizer(
                plan.tokenizer_kind,
                texts,
                plan.vocabulary_size,
                lowercase=not plan.cased,
                alphabet_coverage=plan.alphabet_coverage,
            )
        save_tokenizer(trained, path)
    return num_embeddings(load_tokenizer(path))


def _encode(plan: Preparation, corpus: Corpus, vocab_size: int) -> list[EncodeRecord]:
    path = plan.work / TOKENIZER_NAME
    key = describe_file(path).sha256
    dtype = token_dtype(vocab_size)
    calls = [
        functools.partial(
            _encode_task.remote,
            plan.work,
            piece,
            choice,
            (str(path), key, dtype),
            plan.language,
            plan.report,
        )
        for piece, choice in zip(corpus.pieces, corpus.choices, strict=True)
    ]
    records: dict[int, EncodeRecord] = {}
    with ProgressLine("encoding", sum(piece.num_bytes for piece in corpus.pieces)) as line:
        for index, record in run_tasks(calls, plan.num_workers, line.refresh):
            records[index] = EncodeRecord.model_validate(record)
            line.advance(corpus.pieces[index].num_bytes)
    return [records[index] for index in range(len(calls))]


@ray.remote(num_cpus=1)
def _encode_task(
    folder: Path,
    piece: Piece,
    choice: NDArray[np.int8],
    tokenizer: tuple[str, str, str],
    language: str,
    report: bool,
) -> dict[str, Any]:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a task has one CPU; its neighbours the others
    encoder = _encoder(*tokenizer)
    if report:
        describe_piece(folder, piece, choice, encoder)
    return pieces.encode_piece(folder, piece, choice, encoder, language).model_dump()


@functools.lru_cache(maxsize=1)
def _encoder(path: str, key: str, dtype: str) -> SentenceEncoder:
    """Kept from task to task, with the words it has learnt; `key` is the hash of the file."""
    del key
    return SentenceEncoder(load_tokenizer(path), dtype)


def _finish(
    plan: Preparation,
    corpus: Corpus,
    encoded: list[EncodeRecord],
    units: list[list[CorpusPart]],
    scanned: list[ScanRecord],
    vocab_size: int,
    screened: Screened | None,
) -> ShardIndex:
    """Joins pieces to shards and moves them to their place; the index comes last."""
    joined = plan.work / "joined"
    shutil.rmtree(joined, ignore_errors=True)
    joined.mkdir()
    splits, token_counts = _join(plan, encoded, joined, vocab_size)
    if not splits["train"]:
        raise CorpusError("empty corpus", "no document gives a token", "add text")
    with atomic_write(joined / TOKENIZER_NAME) as beside:
        shutil.copyfile(plan.work / TOKENIZER_NAME, beside)
    write_array(joined / TOKEN_COUNTS_NAME, token_counts)
    counts = Counter(corpus.counts)
    if not plan.tokenizer:
        counts["tokenizer_sample_bytes"] = corpus.sample_bytes
    for record in encoded:
        counts.update(record.counts)
    index = ShardIndex(
        dtype=token_dtype(vocab_size),
        vocab_size=vocab_size,
        tokenizer_sha256=tokenizer_hash(load_tokenizer(joined)),
        splits=splits,
        files={name: describe_file(joined / name) for name in (TOKENIZER_NAME, TOKEN_COUNTS_NAME)},
        counts=dict(sorted(counts.items())),
        settings=plan.logged_settings,
        sources=describe_sources(plan.work, units, scanned),
    )
    if plan.report and screened:
        write_atomically(joined / REPORT_NAME, html(_report(plan, corpus, index, screened)))
    for path in sorted(joined.iterdir()):
        path.replace(plan.output / path.name)
    write_index(plan.output, index)
    return index


def _report(plan: Preparation, corpus: Corpus, index: ShardIndex, screened: Screened) -> Page:
    records = (
        PieceStatistics.model_validate_json(
            (plan.work / "statistics" / f"{piece.name}.json").read_bytes()
        )
        for piece in corpus.pieces
    )
    shards = (entry.name for entries in index.splits.values() for entry in entries)
    return corpus_page(index, screened, describe_corpus(records, plan.work / "joined", shards))


def _join(
    plan: Preparation, encoded: list[EncodeRecord], joined: Path, vocab_size: int
) -> tuple[dict[str, list[ShardEntry]], NDArray[np.int64]]:
    names: list[tuple[str, int]] = []
    calls: list[Callable[[], Any]] = []
    for split in pieces.ENCODED_SPLITS:
        entries = [record.splits[split] for record in encoded if split in record.splits]
        for number, group in enumerate(_groups(entries, plan.shard_tokens)):
            names.append((split, number))
            name = f"{split}-{number:05d}"
            calls.append(
                functools.partial(_join_task.remote, plan.work, joined, name, group, vocab_size)
            )
    splits: dict[str, list[ShardEntry]] = {split: [] for split in pieces.ENCODED_SPLITS}
    token_counts = np.zeros(vocab_size, dtype=np.int64)
    for index, (entry, counts) in run_tasks(calls, plan.num_workers):
        split = names[index][0]
        splits[split].append(ShardEntry.model_validate(entry))
        if split == "train":
            token_counts += counts
    for entries in splits.values():
        entries.sort(key=lambda entry: entry.name)
    return splits, token_counts


@ray.remote(num_cpus=1)
def _join_task(
    folder: Path, joined: Path, name: str, entries: Sequence[ShardEntry], vocab_size: int
) -> tuple[dict[str, Any], NDArray[np.int64]]:
    entry, counts = pieces.join_pieces(folder, joined, name, entries, vocab_size)
    return entry.model_dump(), counts


def _groups(entries: Iterable[ShardEntry], shard_tokens: int) -> Iterator[list[ShardEntry]]:
    held: list[ShardEntry] = []
    for entry in entries:
        held.append(entry)
        if sum(entry.num_tokens for entry in held) >= shard_tokens:
            yield held
            held = []
    if held:
        yield held
