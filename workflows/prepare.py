"""Turns text into token shards: `python workflows/prepare.py --text PATH… --output DIR`.

Killed at any moment, the same command finishes the rest; the result is equal to the byte.
"""

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from bert_core.command_help import Example, Guide
from bert_core.new_pieces import refuse_other_kinds
from bert_core.special_tokens import SPECIAL_TOKENS
from bert_core.text.near_duplicates import require_minhash
from bert_core.text.quality import chosen_rules
from bert_core.text.screening import require_languages
from bert_core.text.shards import HELDOUT_BYTES, ShardIndex, read_index
from bert_core.text.sources import CorpusPart, evaluation_parts, find_parts
from bert_core.tokenizer import load_tokenizer, tokenizer_hash
from bert_core.tokenizer_training import TokenizerKind
from workflows.command import command
from workflows.output_folder import (
    absolute_output,
    check_disk,
    files_hash,
    is_finished,
    work_folder,
)
from workflows.progress import duration
from workflows.settings import (
    CommandLineSettings,
    parse_command_line,
    settings_hash,
)

_NOT_IN_THE_PLAN = {"output", "fresh", "num_workers"}
_LATER_OPTIONS = (
    "new_pieces",
    "scrub",
    "keep_languages",
    "quality",
    "exclude",
    "near_duplicates",
    "report",
)
_OF_TRAINING = ("vocabulary_size", "cased", "alphabet_coverage")
"""What a tokenizer has that is trained, besides its kind and its sample."""
_SAMPLE = "tokenizer_sample_bytes"
"""New pieces are learned from it, too."""
_LEAST_BYTES = 256 + len(SPECIAL_TOKENS)
"""Entries of a vocabulary that joins bytes, before it has joined any."""
_DISK_FACTOR = 1.8
"""Bytes on disk at the worst moment for each byte of text: the text again, and its tokens twice."""


_MUCH_UNKNOWN = 0.01


class PrepareSettings(CommandLineSettings):
    """Converts text to token shards."""

    guide: ClassVar[Guide] = Guide(
        examples=(
            Example("a folder of text files", "--text texts --output shards"),
            Example(
                "the documentation of Python's standard library",
                "--text docs:// --output shards --vocabulary_size 8000",
            ),
            Example(
                "a data set of the Hugging Face Hub, with a tokenizer from a file",
                "--text hf://Salesforce/wikitext:wikitext-103-raw-v1:train"
                " --tokenizer vocab.txt --output shards",
            ),
        ),
        common=(
            "text",
            "output",
            "tokenizer",
            "vocabulary_size",
            "cased",
            "heldout_share",
            "text_column",
            "language",
            "num_workers",
            "fresh",
        ),
    )

    text: list[str] = Field(
        min_length=1,
        description=(
            "files, folders or globs (.txt, .jsonl, also .xz, .gz, .bz2; .parquet;"
            " wiki_NN), s3:// or gs:// addresses, hf://OWNER/NAME[:CONFIG[:SPLIT]],"
            " docs://[PACKAGE,…] for documentation, or task://NAME=DATA for a task's training texts"
        ),
    )
    output: Path = Field(description="folder of the shards, visible to all nodes of a cluster")
    tokenizer: str | None = Field(
        default=None,
        description="vocab.txt, tokenizer.json or their folder; by default a tokenizer is trained",
    )
    new_pieces: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="word pieces to learn from the text and add to those of --tokenizer",
    )
    vocabulary_size: int = Field(
        default=30_000, ge=100, description="size of the trained vocabulary"
    )
    tokenizer_kind: TokenizerKind = Field(
        default="wordpiece",
        description="what to train: wordpiece (BERT), bpe of bytes (RoBERTa, ModernBERT), or"
        " unigram (XLM-RoBERTa)",
    )
    cased: bool = Field(default=False, description="keep capitals and accents when training it")
    alphabet_coverage: float = Field(
        default=0.9995,
        gt=0,
        le=1,
        description="share of the text's characters that the trained vocabulary has; others become"
        " [UNK]",
    )
    tokenizer_sample_bytes: int = Field(
        default=200_000_000,
        ge=1,
        description="text that the tokenizer is trained on, at most",
    )
    heldout_share: float = Field(
        default=0.01,
        ge=0,
        lt=1,
        description="share of documents kept for evaluation",
    )
    shard_tokens: int = Field(
        default=4_000_000, ge=1, description="tokens after which a shard is complete"
    )
    text_column: str = Field(default="text", description="column of .jsonl and .parquet records")
    language: str = Field(default="en", description="language code for splitting sentences")
    scrub: list[Literal["email", "phone", "iban", "card"]] = Field(
        default=[],
        description="personal data to replace: addresses of mail, phone numbers, IBAN and card"
        " numbers with a valid checksum",
    )
    keep_languages: list[str] = Field(
        default=[], description="codes of languages; documents in any other are dropped"
    )
    quality: list[str] = Field(
        default=[],
        description="rules of quality, or sets of them: gopher, c4, fineweb; documents that"
        " fail one are dropped",
    )
    exclude: list[str] = Field(
        default=[],
        description="NAME=DATA, labelled data of tasks; documents that share 13 words in a row"
        " with its dev or test examples are dropped",
    )
    near_duplicates: float | None = Field(
        default=None,
        ge=0.5,
        le=1,
        description="drop documents whose 5-grams of words are as similar as this to those of an"
        " earlier one (Jaccard index, estimated by MinHash), 0.8 for example",
    )
    report: bool = Field(
        default=False,
        description="write prepare-report.html: documents dropped by each rule, with examples,"
        " lengths, languages and words",
    )
    strict: bool = Field(
        default=False, description="refuse invalid UTF-8 and JSON; else replace, drop and count"
    )
    num_workers: int | None = Field(
        default=None,
        ge=1,
        description="tasks at a time; by default one for each CPU",
    )
    fresh: bool = Field(
        default=False, description="start over; what stands in the output folder is renamed"
    )

    @model_validator(mode="after")
    def _pieces_are_added_to_a_tokenizer(self) -> Self:
        if self.new_pieces and self.tokenizer is None:
            raise ValueError("new_pieces are added to those of a tokenizer: give --tokenizer")
        return self

    @model_validator(mode="after")
    def _what_is_trained_has_these(self) -> Self:
        fields = type(self).model_fields
        of_training = ["tokenizer_kind", *_OF_TRAINING]
        of_training += [] if self.new_pieces else [_SAMPLE]
        changed = [name for name in of_training if getattr(self, name) != fields[name].default]
        if self.tokenizer is not None and changed:
            raise ValueError(f"no tokenizer is trained: leave out --{changed[0]}, or --tokenizer")
        if self.tokenizer_kind == "bpe" and "alphabet_coverage" in changed:
            raise ValueError("bytes make up all characters: leave out --alphabet_coverage")
        if self.tokenizer_kind == "bpe" and self.vocabulary_size < _LEAST_BYTES:
            raise ValueError(
                f"bytes and special tokens are {_LEAST_BYTES}: raise --vocabulary_size above them"
            )
        return self


def prepare(settings: PrepareSettings) -> Path:
    """Prepares the text, or finishes it, or finds it finished; returns the folder of the shards.

    Raises `UserError`, before anything is written, for what the user can mend.
    """
    start = time.monotonic()
    output = absolute_output(settings.output)
    skipped: Counter[str] = Counter()
    parts = list(find_parts(settings.text, settings.text_column, skipped))
    plan = _plan_of(settings, parts)
    _check_rules(settings)
    if is_finished(output, plan, fresh=settings.fresh):
        print(f"complete already: {output}")
        print("\n".join(describe(read_index(output))))
        return output
    check_disk(output, _DISK_FACTOR * sum(part.text_bytes for part in parts))
    # Not at the top: --help and whatever is wrong until here answer before Ray is loaded.
    from workflows.clusters.tasks import connect, refuse_folder_out_of_reach
    from workflows.preparation import Preparation, run

    with work_folder(output, plan) as work:
        connect()
        refuse_folder_out_of_reach(work, {"CPU": 1})
        values = settings.model_dump(exclude={"text", "output", "fresh"})
        logged = plan["settings"]
        index = run(
            Preparation(output=output, work=work, parts=parts, logged_settings=logged, **values)
        )
    seconds = time.monotonic() - start
    print("\n".join(describe(index)))
    if skipped["files_of_unknown_format"]:
        print(f"files of no known format left out: {skipped['files_of_unknown_format']:,}")
    rate = index.counts["characters"] / 1e6 / seconds
    print(f"{duration(seconds)}, {rate:.1f} million characters a second: {output}")
    return output


def _check_rules(settings: PrepareSettings) -> None:
    """Raises `UserError` for rules that cannot be applied, before anything is written."""
    chosen_rules(settings.quality)
    if settings.report:
        require_languages((), "--report")
    if settings.keep_languages:
        require_languages(settings.keep_languages)
    if settings.near_duplicates is not None:
        require_minhash()


def plan_hash(settings: PrepareSettings) -> str:
    """Eight hexadecimal digits that change with the settings and with any file of the text."""
    parts = list(find_parts(settings.text, settings.text_column, Counter()))
    return settings_hash(_plan_of(settings, parts))


def _plan_of(settings: PrepareSettings, parts: Sequence[CorpusPart]) -> dict[str, Any]:
    """What decides the result: the settings, and a hash of names, sizes and times of the files."""
    files = files_hash([*parts, *evaluation_parts(settings.exclude)])
    values = settings.model_dump(mode="json", exclude=_NOT_IN_THE_PLAN)
    if settings.tokenizer:
        tokenizer = load_tokenizer(settings.tokenizer)
        if settings.new_pieces:
            refuse_other_kinds(tokenizer)  # before the text is read
        files.update(tokenizer_hash(tokenizer).encode())
        trained = [*_OF_TRAINING, *([] if settings.new_pieces else [_SAMPLE])]
        values |= dict.fromkeys(trained)
    if values["tokenizer_kind"] == "wordpiece":
        del values["tokenizer_kind"]
    for name in _LATER_OPTIONS:  # unused, they leave the plan as it was before there were any
        if not values[name]:
            del values[name]
    return {"settings": values, "files_sha256": files.hexdigest()}


def describe(index: ShardIndex) -> list[str]:
    """The lines of the summary: what there is of each split, and all that was dropped."""
    lines = [f"{'':10}{'documents':>12}{'sentences':>14}{'tokens':>16}{'shards':>8}"]
    num_tokens = 0
    for split, entries in index.splits.items():
        documents = sum(entry.num_documents for entry in entries)
        sentences = sum(entry.num_sentences for entry in entries)
        tokens = sum(entry.num_tokens for entry in entries)
        num_tokens += tokens
        lines.append(f"{split:10}{documents:12,}{sentences:14,}{tokens:16,}{len(entries):8,}")
    counts = Counter(index.counts)
    read, characters = counts.pop("documents_read"), counts.pop("characters_read")
    kept, unknown = counts.pop("characters"), counts.pop("unknown_tokens")
    single = counts.pop("documents_of_one_sentence")
    sample = counts.pop("tokenizer_sample_bytes", 0)
    counts.pop(HELDOUT_BYTES, 0)
    drawn = f", trained on {sample / 1e6:,.1f} MB of whole documents drawn by hash"
    lines += [
        f"read: {read:,} documents, {characters:,} characters",
        f"kept: {kept:,} characters, {kept / max(num_tokens, 1):.2f} to a token",
        f"vocabulary: {index.vocab_size:,} entries{drawn if sample else ''}",
        f"unknown tokens: {unknown:,} ({unknown / max(num_tokens, 1):.4%})",
        f"documents of one sentence: {single:,}",
        "dropped, replaced or cut:" + ("" if any(counts.values()) else " nothing"),
    ]
    for reason, number in sorted(counts.items()):
        if number:
            lines.append(f"  {reason.replace('_', ' '):40}{number:>14,}")
    documents = sum(entry.num_documents for split in index.splits.values() for entry in split)
    lost = counts["characters_of_words_too_long"] / max(kept, 1)
    return lines + _warnings(index.settings, unknown / max(num_tokens, 1), lost, single, documents)


def _warnings(
    settings: Mapping[str, Any],
    unknown_share: float,
    lost_share: float,
    single: int,
    documents: int,
) -> list[str]:
    """What makes a poor encoder, and what to do about it; `lost_share` is that of characters."""
    lines = []
    if lost_share > _MUCH_UNKNOWN:
        lines.append(
            f"warning: {lost_share:.1%} of the characters are in words longer than 100 characters,"
            " which become [UNK]; put spaces between words, as a word segmenter for Thai does"
        )
    elif unknown_share > _MUCH_UNKNOWN:
        remedy = (
            "the vocabulary does not fit the text: leave --tokenizer out to train one on it, and "
            "add --fresh"
        )
        if not settings.get("tokenizer"):
            coverage = settings.get("alphabet_coverage") or 0
            remedy = "where words have more than 100 characters, put spaces between words"
            if coverage < 1:
                remedy = f"raise --alphabet_coverage above {coverage:g} and add --fresh"
        lines.append(f"warning: {unknown_share:.1%} of the tokens are unknown; {remedy}")
    if documents == 1:
        lines.append(
            "warning: the corpus is one document, of which nothing can be held out: a file, a "
            "blank line or a line `= Title =` begins another"
        )
    elif single > documents / 2:
        lines.append(
            f"warning: {single:,} of {documents:,} documents have one sentence, too few for "
            "next-sentence prediction: leave blank lines between documents alone, or pre-train "
            "with --rows.objective mlm"
        )
    return lines


main = command(lambda given: bool(prepare(parse_command_line(PrepareSettings, given))))


if __name__ == "__main__":
    sys.exit(main())
