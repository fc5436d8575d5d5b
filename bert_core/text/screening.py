"""Screening of scanned pieces: which documents are dropped, by which rule, with examples.

`screen_piece` applies the rules to a piece and signs what they keep, `take_near_duplicates`
compares the signatures of all pieces. Both write their record last and may be run again at any
time.

Languages are told by the model within the package py3langid, which knows 140 by byte n-grams (Lui
and Baldwin 2012) and needs no network. Documents that share 13 words in a row with the texts that
models are evaluated on are dropped as for GPT-3 (Brown et al. 2020, appendix C), but as a whole.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from os.path import commonprefix
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from bert_core.errors import NoSuchSplitError, UserError, nearest, require
from bert_core.text import near_duplicates
from bert_core.text.pieces import Piece, read_hashes, read_piece
from bert_core.text.quality import first_failure
from bert_core.text.shards import write_array, write_bytes
from bert_core.text.sources import CorpusPart
from bert_core.text.word_ngrams import Words

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

MOST_EXAMPLES = 20
COPIES = "duplicate_documents"
OTHER_LANGUAGE = "documents_in_other_languages"
OVERLAP = "documents_in_evaluation_data"
NEAR_DUPLICATES = "near_duplicate_documents"
_MOST_CHARACTERS, _MOST_COMPARED = 300, 100_000
_CHARACTERS_OF_LANGUAGE = 1000
"""Enough to tell languages apart, at 0.4 ms a document."""

_OVERLAP_WORDS = 13
_SPLITS = ("dev", "test", "dev_mismatched", "validation_mismatched", "test_mismatched")


@dataclass(frozen=True)
class Screening:
    """What documents are screened for, besides exact copies, in this order.

    `languages` are the codes of those to keep, `quality` the names of `QUALITY_RULES`, `excluded`
    the file that `write_ngrams` has written. Languages are counted where they decide, or with
    `identify_languages`.
    """

    languages: tuple[str, ...] = ()
    quality: tuple[str, ...] = ()
    excluded: Path | None = None
    near_duplicates: float | None = None
    identify_languages: bool = False

    @property
    def is_on(self) -> bool:
        """Whether there is any rule."""
        return self != Screening()

    @property
    def names(self) -> tuple[str, ...]:
        """The names under which dropped documents are counted, in the order of the rules."""
        return (
            *([OTHER_LANGUAGE] if self.languages else []),
            *self.quality,
            *([OVERLAP] if self.excluded else []),
            *([NEAR_DUPLICATES] if self.near_duplicates is not None else []),
        )


def require_languages(languages: Iterable[str], option: str = "--keep_languages") -> None:
    """Raises `UserError` where the library is not installed, or does not know a language."""
    what = "telling languages apart needs the package `{}`"
    require(what, "py3langid", where=option, extra="corpus")
    known = sorted(_identifier().labels)
    for language in languages:
        if language not in known:
            what = f"no such language{nearest(language, known)}"
            raise UserError(what, f"{option} {language}", f"give some of {', '.join(known)}")


def language_of(document: str) -> str:
    """The code of the language that the first 1,000 characters are most likely in."""
    return _identifier().classify(document[:_CHARACTERS_OF_LANGUAGE])[0]


@cache
def _identifier() -> "LanguageIdentifier":
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE)


def evaluation_texts(parts: Iterable[CorpusPart]) -> list[str]:
    """The texts of a task's examples in all splits that models are evaluated on.

    Raises `UserError` for data that cannot be read, or that has no such split.
    """
    return [text for part in parts for text in _evaluation_texts_of(part)]


def _evaluation_texts_of(part: CorpusPart) -> Iterator[str]:
    from bert_core.tasks.catalog import TASKS

    name, _, data = part.path.partition("=")
    missing = []
    splits = _SPLITS[:1] if Path(data).is_file() else _SPLITS
    for split in splits:
        try:
            examples = TASKS[name].examples(data, split)
        except NoSuchSplitError as error:
            missing.append(error)
            continue
        for example in examples:
            yield from TASKS[name].texts(example)
    if len(missing) == len(splits):
        raise missing[0]


def write_ngrams(path: Path, texts: Iterable[str]) -> int:
    """Writes the hashes of all 13-grams, sorted; returns how many texts are too short for one."""
    ngrams = Words.of(list(texts)).ngrams(_OVERLAP_WORDS, pad=False)
    write_array(path, np.unique(ngrams.hashes))
    return int((np.diff(ngrams.offsets) == 0).sum())


def overlaps(words: Words, excluded: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """[texts] bool: whether each has one of these sorted 13-grams."""
    ngrams = words.ngrams(_OVERLAP_WORDS, pad=False)
    if not len(excluded):
        return np.zeros(len(words.offsets) - 1, dtype=np.bool_)
    places = np.searchsorted(excluded, ngrams.hashes).clip(max=len(excluded) - 1)
    hits = np.concatenate([np.zeros(1, np.int64), np.cumsum(excluded[places] == ngrams.hashes)])
    return np.diff(hits[ngrams.offsets]) > 0


class Example(BaseModel):
    """A document: its hash, some of its text, and of that of the earlier one that it is like."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int
    text: str
    earlier: str = ""


class ScreenRecord(BaseModel):
    """How many documents each rule dropped, up to `MOST_EXAMPLES` of each, and languages."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dropped: dict[str, int]
    examples: dict[str, list[Example]]
    languages: dict[str, int]


def screen_piece(
    folder: Path, piece: Piece, is_copy: NDArray[np.bool_], screening: Screening
) -> ScreenRecord:
    """Applies the rules to the documents [num_documents] of a piece that are not exact copies.

    Writes to `screened/NAME.*.npy` which documents are dropped, the signatures of those that are
    kept, and the keys of their bands.
    """
    path = folder / "screened" / f"{piece.name}.json"
    if path.is_file():
        return ScreenRecord.model_validate_json(path.read_bytes())
    documents = read_piece(folder, piece)
    dropped_by: dict[str, list[int]] = {name: [] for name in screening.names}
    languages: Counter[str] = Counter()
    kept = []
    for index in np.flatnonzero(~is_copy).tolist():
        reason = _first_reason(documents[index], screening, languages)
        (dropped_by[reason] if reason else kept).append(index)
    if screening.excluded or screening.near_duplicates is not None:
        kept = _compare_words(folder, piece, documents, kept, dropped_by, screening)
    is_dropped = np.ones(len(documents), dtype=np.bool_)
    is_dropped[kept] = False
    is_dropped[is_copy] = False
    write_array(_file(folder, piece, "dropped"), is_dropped)
    ranks = read_hashes(folder, piece)[0]
    shown = {COPIES: np.flatnonzero(is_copy).tolist(), **dropped_by}
    record = ScreenRecord(
        dropped={name: len(some) for name, some in dropped_by.items()},
        examples={
            name: [
                Example(rank=rank, text=beginning(documents[index]))
                for rank, index in first_examples(ranks, some)
            ]
            for name, some in shown.items()
        },
        languages=dict(sorted(languages.items())),
    )
    write_bytes(path, record.model_dump_json().encode())
    return record


def _first_reason(document: str, screening: Screening, languages: Counter[str]) -> str:
    """The first rule that drops a document for what it is by itself, or ""."""
    if screening.languages or screening.identify_languages:
        language = language_of(document)
        languages[language] += 1
        if screening.languages and language not in screening.languages:
            return OTHER_LANGUAGE
    failure = first_failure(document, screening.quality)
    return screening.quality[failure] if failure >= 0 else ""


def _compare_words(
    folder: Path,
    piece: Piece,
    documents: Sequence[str],
    kept: list[int],
    dropped_by: dict[str, list[int]],
    screening: Screening,
) -> list[int]:
    """Drops what overlaps with evaluation data, and signs the rest; returns what is kept."""
    words = Words.of([documents[index] for index in kept])
    indices = np.array(kept, dtype=np.int64)
    stays = np.ones(len(indices), dtype=np.bool_)
    if screening.excluded:
        stays = ~overlaps(words, np.load(screening.excluded, allow_pickle=False))
        dropped_by[OVERLAP] = indices[~stays].tolist()
    if screening.near_duplicates is not None:
        signatures = near_duplicates.sign(words)
        signed = stays & near_duplicates.has_words(signatures)
        keys = near_duplicates.band_keys(signatures[signed], screening.near_duplicates)
        write_array(_file(folder, piece, "signed"), indices[signed])
        write_array(_file(folder, piece, "signatures"), signatures[signed])
        write_array(_file(folder, piece, "bands"), keys)
    return indices[stays].tolist()


def _file(folder: Path, piece: Piece, name: str) -> Path:
    return folder / "screened" / f"{piece.name}.{name}.npy"


def beginning(document: str) -> str:
    """As much of a document as an example shows."""
    is_whole = len(document) <= _MOST_CHARACTERS
    return document if is_whole else f"{document[:_MOST_CHARACTERS].rstrip()}…"


def first_examples(
    ranks: NDArray[np.uint64], documents: Sequence[int] | NDArray[np.int64]
) -> list[tuple[int, int]]:
    """(rank, index) of the documents with the lowest ranks: a draw that hangs on texts alone."""
    indices = np.asarray(documents, dtype=np.int64)
    lowest = indices[np.argsort(ranks[indices], kind="stable")][:MOST_EXAMPLES]
    return [(int(ranks[index]), int(index)) for index in lowest]


def dropped_documents(folder: Path, pieces: Sequence[Piece]) -> NDArray[np.bool_]:
    """[documents of all pieces] bool: which the rules have dropped, near-duplicates aside."""
    return np.concatenate([np.load(_file(folder, piece, "dropped")) for piece in pieces])


def take_near_duplicates(
    folder: Path, pieces: Sequence[Piece], threshold: float
) -> tuple[NDArray[np.bool_], list[Example]]:
    """Compares all signed documents; gives which are dropped [documents of all pieces], examples.

    A document is dropped if an earlier one, in the order of the corpus, is as similar as the
    threshold. Signatures stay on disk: a document takes some 50 bytes of memory.
    """
    path = folder / "near_duplicates.json"
    array = folder / "near_duplicates.npy"
    if path.is_file():
        return np.load(array), _Examples.model_validate_json(path.read_bytes()).examples
    starts = np.cumsum([0, *(piece.num_documents for piece in pieces)])
    signed = [np.load(_file(folder, piece, "signed")) for piece in pieces]
    documents = np.concatenate(
        [start + own for start, own in zip(starts[:-1], signed, strict=True)]
    )
    signatures = near_duplicates.Signatures(_mapped(folder, pieces, "signatures"), threshold)
    earlier = near_duplicates.find_earlier(
        _bands(_mapped(folder, pieces, "bands")), len(documents), signatures.similar
    )
    repeats = np.flatnonzero(earlier >= 0)
    is_dropped = np.zeros(starts[-1], dtype=np.bool_)
    is_dropped[documents[repeats]] = True
    pairs = np.stack([documents[repeats], documents[earlier[repeats]]])
    examples = _Examples(examples=_examples_of_pairs(folder, pieces, pairs))
    write_array(array, is_dropped)
    write_bytes(path, examples.model_dump_json().encode())
    return is_dropped, examples.examples


class _Examples(BaseModel):
    examples: list[Example]


def _mapped(folder: Path, pieces: Sequence[Piece], name: str) -> list[NDArray]:
    return [np.load(_file(folder, piece, name), mmap_mode="r") for piece in pieces]


def _bands(keys: Sequence[NDArray[np.uint64]]) -> Iterator[NDArray[np.uint64]]:
    for band in range(len(keys[0])):
        yield np.concatenate([piece[band] for piece in keys])


def _examples_of_pairs(
    folder: Path, pieces: Sequence[Piece], pairs: NDArray[np.int64]
) -> list[Example]:
    """Those of the pairs [2, pairs] whose later documents have the lowest hashes.

    Shows where the two begin to differ.
    """
    ranks = np.concatenate([read_hashes(folder, piece)[0] for piece in pieces])
    shown = pairs[:, np.argsort(ranks[pairs[0]], kind="stable")[:MOST_EXAMPLES]]
    texts = _texts(folder, pieces, {int(index) for index in shown.flat})
    examples = []
    for later, earlier in shown.T.tolist():
        difference = len(commonprefix([texts[later], texts[earlier]]))
        begin = max(difference - _MOST_CHARACTERS // 2, 0)
        some, others = (beginning(texts[index][begin:]) for index in (later, earlier))
        mark = "…" if begin else ""
        rank = int(ranks[later])
        examples.append(Example(rank=rank, text=mark + some, earlier=mark + others))
    return examples


def _texts(folder: Path, pieces: Sequence[Piece], wanted: set[int]) -> dict[int, str]:
    """Documents, or much of long ones, by their index among those of all pieces."""
    texts = {}
    start = 0
    for piece in pieces:
        mine = [index for index in wanted if start <= index < start + piece.num_documents]
        documents = read_piece(folder, piece) if mine else []
        texts |= {index: documents[index - start][:_MOST_COMPARED] for index in mine}
        start += piece.num_documents
    return texts


@dataclass(frozen=True)
class Screened:
    """What screening has decided: which documents [documents] are dropped, counts, examples.

    `languages` counts documents by language before any is dropped.
    """

    is_dropped: NDArray[np.bool_]
    counts: Counter[str]
    examples: dict[str, list[Example]]
    languages: Counter[str]


def conclude(
    folder: Path, pieces: Sequence[Piece], records: Sequence[ScreenRecord], screening: Screening
) -> Screened:
    """Puts together what the rules have dropped, and compares what they have kept."""
    is_dropped = dropped_documents(folder, pieces)
    counts: Counter[str] = Counter()
    examples: dict[str, list[Example]] = {}
    languages: Counter[str] = Counter()
    for record in records:
        counts.update(record.dropped)
        languages.update(record.languages)
        for name, some in record.examples.items():
            ranked = sorted([*examples.get(name, []), *some], key=lambda example: example.rank)
            examples[name] = ranked[:MOST_EXAMPLES]
    if screening.near_duplicates is not None:
        repeats, shown = take_near_duplicates(folder, pieces, screening.near_duplicates)
        is_dropped |= repeats
        counts[NEAR_DUPLICATES], examples[NEAR_DUPLICATES] = int(repeats.sum()), shown
    return Screened(is_dropped, counts, examples, languages)
