"""Tagged sentences from CoNLL files and tables, with their tags in IOB2, or plain.

A CoNLL file has a word a line, a blank line after each sentence, and perhaps a -DOCSTART- line
before each document (Tjong Kim Sang and De Meulder 2003). A record of a table has a list of words
and a list of tags, which may be numbers, as the library `datasets` writes them. In CSV a list is a
text in brackets, or each record has one word and names its sentence.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bert_core.tasks.delimited import line_end
from bert_core.tasks.label_values import label_of, stripped
from bert_core.tasks.tables import Record, TaskDataError, column, parse_cell, text_of, value_of
from bert_core.tasks.tag_schemes import OUTSIDE, Scheme, Tags, detect_scheme, is_plain, respelled
from bert_core.text_encoding import open_text

_CONLL_U_COLUMNS, _NOT_A_WORD = 10, re.compile(r"\d+[-.]\d+")

CONLL_SUFFIXES = (".txt", ".conll", ".bio", ".iob", ".tsv", "")  # eng.train has none

_DOCUMENT_START, _ENCLOSED_QUOTE = "-DOCSTART-", '""""'


@dataclass(frozen=True)
class TaggedSentence:
    """One example: the words of a sentence, and their tags, None where they are not known.

    Sentences that follow each other and have the same `document` are parts of it; None is a
    document of its own. `file` and `line` are the place of the first word, or `file` that of the
    record, without a line. `scheme` is that of the data, None where its tags are plain;
    `num_invalid` counts the tags that it forbids, `num_respelled` those that were written otherwise
    (`bert_core.tasks.tag_schemes.respelled`). `columns` are all of a record's, for slices.
    """

    words: Sequence[str]
    tags: Sequence[str] | None = None
    document: str | None = None
    file: str = ""
    line: int | None = None
    scheme: Scheme | None = "iob2"
    num_invalid: int = 0
    num_respelled: int = 0
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The place of the sentence in its file; its first words without a file."""
        if self.line is not None:
            return f"{self.file}:{self.line}"
        return self.file or " ".join(self.words)[:60]

    def where_is(self, word: int) -> str:
        """Returns the place of a word (from 0)."""
        if self.line is not None:
            return f"{self.file}:{self.line + word}"
        return f"{self.where}, word {word + 1}"


@dataclass(frozen=True)
class WordColumns:
    """Which columns are read: by name, or by number, from 0 or from the end (-1 is the last).

    `names` are those of a CoNLL file from left to right, where they have names. What begins with
    `comment`, if that is not empty, is left out where a sentence may begin. `tag_names` are those
    of tags that are numbers.
    """

    words: str
    tags: str
    names: tuple[str, ...] = ()
    document: str | None = None
    comment: str = ""
    tag_names: tuple[str, ...] = ()


def read_conll(path: Path, columns: WordColumns) -> list[TaggedSentence]:
    """Reads the sentences of a CoNLL file, with columns divided by tabs or spaces.

    A file of one column has words and no tags. Tags come as they are written. Raises
    `TaskDataError`, with file and line, for a line with too many or too few columns, and for a
    column that is not there.
    """
    sentences: list[TaggedSentence] = []
    width = word_column = tag_column = 0
    for document, line, rows in _blocks(path, columns.comment):
        if not sentences:
            width = 1 if len(rows[0]) == 1 else len(columns.names) or len(rows[0])
            if width > 1:
                word_column = _index(columns.words, columns.names, width, f"{path}:{line}")
                tag_column = _index(columns.tags, columns.names, width, f"{path}:{line}")
        for number, cells in enumerate(rows, start=line):
            if len(cells) != width:
                remedy = "fix the line"
                if rows[0][0].startswith("#") and not columns.comment:
                    remedy += ", or leave comments out with --options.comment '#'"
                raise TaskDataError(
                    f"{len(cells)} columns, expected {width}", f"{path}:{number}", remedy
                )
        words = [cells[word_column] for cells in rows]
        tags = [cells[tag_column] for cells in rows] if width > 1 else None
        sentences.append(TaggedSentence(words, tags, document, str(path), line))
    _refuse_enclosed(sentences)
    return sentences


def _refuse_enclosed(sentences: Sequence[TaggedSentence]) -> None:
    """Raises `TaskDataError` where quotes enclose words as in CSV: a quote is four of them."""
    found = next((sentence for sentence in sentences if _ENCLOSED_QUOTE in sentence.words), None)
    if found is not None and not any('"' in sentence.words for sentence in sentences):
        where = found.where_is(found.words.index(_ENCLOSED_QUOTE))
        remedy = "write the file without quoting; pandas: quoting=csv.QUOTE_NONE"
        raise TaskDataError(f"a word in CSV's quotes, {_ENCLOSED_QUOTE}", where, remedy)


def in_iob2(
    sentences: Sequence[TaggedSentence],
    scheme: Scheme | Literal["auto", "io", "none"],
    *,
    refuse: bool,
) -> list[TaggedSentence]:
    """The sentences with their tags as IOB2, and counts of those that their scheme forbids.

    A scheme that is not given is found out from all of them. Where none of the tags belongs to one
    they are plain, and stay as they are. With `refuse` the first tag that the scheme forbids
    raises `TaskDataError`, with its line; what is not a tag always does. A sentence of which a word
    has no tag (`bert_core.tasks.label_values`) has none.
    """
    sentences = _as_usual(sentences, scheme)
    known = [index for index, sentence in enumerate(sentences) if sentence.tags is not None]
    tagged = [sentences[index] for index in known]
    if scheme in ("io", "none") or (scheme == "auto" and _are_plain(tagged)):
        return [
            sentence if sentence.tags is None else replace(sentence, scheme=None)
            for sentence in sentences
        ]
    _refuse_plain(tagged)
    tags = Tags.of([each.tags or () for each in tagged])
    found: Scheme = detect_scheme(tags) if scheme == "auto" else scheme
    invalid = tags.invalid(found)
    bounds = np.cumsum([0, *(len(each.words) for each in tagged)])
    if refuse and invalid.any():
        word = int(np.flatnonzero(invalid)[0])
        number = int(np.searchsorted(bounds, word, side="right")) - 1
        within = word - int(bounds[number])
        raise TaskDataError(
            f"{(tagged[number].tags or ())[within]} is not allowed here in {found.upper()}",
            tagged[number].where_is(within),
            "fix it, or let it be counted: invalid_tags count",
        )
    strings, iob2 = tags.strings("iob2"), list(sentences)
    counts = np.diff(np.concatenate([[0], np.cumsum(invalid)])[bounds]).tolist()
    for index, begin, end, count in zip(known, bounds[:-1], bounds[1:], counts, strict=True):
        iob2[index] = replace(
            sentences[index], tags=strings[begin:end], scheme=found, num_invalid=count
        )
    return iob2


def _are_plain(tagged: Sequence[TaggedSentence]) -> bool:
    """Whether no tag belongs to a scheme; where all words are outside it cannot be told."""
    names = {tag for each in tagged for tag in each.tags or ()} - {OUTSIDE}
    return bool(names) and all(map(is_plain, names))


def _refuse_plain(tagged: Sequence[TaggedSentence]) -> None:
    names = {tag for each in tagged for tag in each.tags or ()}
    wrong = set(filter(is_plain, names))
    for each in tagged if wrong else ():
        for number, tag in enumerate(each.tags or ()):
            if tag in wrong:
                raise TaskDataError(
                    f"{tag!r} is not a tag",
                    each.where_is(number),
                    "a tag is O, or B-, I-, E- or S- before a type; or all are without those"
                    + ("; if this line names the columns, remove it" if each.line == 1 else ""),
                )


def _as_usual(
    sentences: Sequence[TaggedSentence], scheme: Scheme | Literal["auto", "io", "none"]
) -> list[TaggedSentence]:
    """The sentences with tags as they are usually written, or without, where one has none."""
    written = {tag for sentence in sentences for tag in sentence.tags or ()}
    usual = {tag: label_of(tag) for tag in written}
    names = set(filter(None, usual.values()))
    others = respelled(names) if scheme != "none" else {}
    if all(tag == name for tag, name in usual.items()) and not others:
        return list(sentences)
    found = []
    for sentence in sentences:
        tags = [usual[tag] for tag in sentence.tags or ()]
        if sentence.tags is None or None in tags:
            found.append(replace(sentence, tags=None))
            continue
        known = [others.get(tag, tag) for tag in tags if tag is not None]
        count = sum(tag in others for tag in tags)
        found.append(replace(sentence, tags=known, num_respelled=count))
    return found


def _blocks(path: Path, comment: str) -> Iterator[tuple[str | None, int, list[list[str]]]]:
    """The document, the first line and the cells of the lines of each sentence."""
    document: str | None = None
    rows: list[list[str]] = []
    for line, cells in _lines(path):
        if cells and _DOCUMENT_START not in cells:
            if not _is_left_out(cells, comment, is_first=not rows):
                rows.append(cells)
            continue
        if rows:
            yield document, line - len(rows), rows
            rows = []
        if cells:
            document = f"{path}:{line}"


def _is_left_out(cells: Sequence[str], comment: str, *, is_first: bool) -> bool:
    """Whether a line is no word: a comment, or of CoNLL-U a range (`1-2`) or a word left out."""
    is_comment = comment and " ".join(cells).startswith(comment)
    if is_first and (is_comment or cells[0].startswith("# ")):  # only tabs leave a space in a cell
        return True
    return len(cells) == _CONLL_U_COLUMNS and _NOT_A_WORD.fullmatch(cells[0]) is not None


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Number and cells of each line; a blank line has none, and one follows the last."""
    line = 0
    try:
        newline = line_end(path)
        with open_text(path, TaskDataError, newline=newline) as file:
            words = (text for text in file if text.strip() and not text.startswith(("#", "-DOC")))
            is_tabbed = all("\t" in text for text in words)
        with open_text(path, TaskDataError, newline=newline) as file:
            for line, text in enumerate(file, start=1):
                if not text.strip("\r\n\t "):
                    yield line, []
                elif "\t" in text or (is_tabbed and text.startswith("# ")):
                    yield line, text.rstrip("\r\n").split("\t")
                else:
                    # Other white space, such as a no-break space, may be a word.
                    yield line, [cell for cell in text.rstrip("\r\n").split(" ") if cell]
    except OSError as error:
        raise TaskDataError("cannot read", str(path), error.strerror or "check the file") from error
    yield line + 1, []


def _index(name: str, names: Sequence[str], width: int, where: str) -> int:
    if name in names:
        return names.index(name)
    index = column_number(name)
    if index is not None and -width <= index < width:
        return index % width
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    near = f", did you mean {close[0]}" if close else ""
    known = ", ".join(names) or f"there are {width}"
    raise TaskDataError(f"no column {name}{near}", f"{where}: {known}", "name another column")


def column_number(name: str) -> int | None:
    """The number that a column is given by, None for a name."""
    return int(name) if name.removeprefix("-").isdecimal() else None


LIST_SUFFIXES, OTHER_LIST_SUFFIXES = (".jsonl", ".parquet"), (".csv", ".json")

_SENTENCES = ("sentence #", "sentence_id", "sent_id", "sentence_idx", "sentence_number", "sentence")
"""What the column may be called that says which sentence a word is of."""


def read_word_lists(records: Iterable[Record], columns: WordColumns) -> list[TaggedSentence]:
    """The sentences of a table, which has a list of words and a list of tags in each record.

    A record without tags has None. Raises `TaskDataError`, with the place of the record, for what
    is not such a list.
    """
    listed = list(records)
    if listed and listed[0].has_header:
        listed = _of_csv(listed, columns)
    return [_from_record(record, columns) for record in listed]


def _of_csv(records: Sequence[Record], columns: WordColumns) -> list[Record]:
    """Records of CSV with lists: those written in brackets, or those of the words of a sentence."""
    names = list(records[0].values)
    if isinstance(parse_cell(value_of(records[0], _key(records[0], columns.words))), list):
        return [
            replace(record, values={name: parse_cell(record.values[name]) for name in names})
            for record in records
        ]
    folded = {name.casefold().strip(): name for name in names}
    of_sentence = next((folded[name] for name in _SENTENCES if name in folded), None)
    if of_sentence is None:
        raise TaskDataError(
            "no column of lists of words, and no column of sentences",
            f"{records[0].where}: {', '.join(names)}",
            "name --options.word_column (evaluate.py: --options word_column=NAME), or call the"
            f" column of the sentence {_SENTENCES[1]}",
        )
    starts = _sentence_starts([stripped(record.values[of_sentence]) for record in records])
    names.remove(of_sentence)
    words = [
        replace(record, values={name: record.values[name] for name in names}) for record in records
    ]
    word_column = _key(words[0], columns.words)
    found = []
    for some in (words[start:end] for start, end in pairwise([*starts, len(words)])):
        for each in some:
            text_of(each, word_column)
        values = {name: [each.values[name] for each in some] for name in names}
        if columns.document is not None:
            values[columns.document] = column(some[0], columns.document)
        found.append(replace(some[0], values=values))
    return found


def _sentence_starts(names: Sequence[str]) -> list[int]:
    """Where the sentence's name is another than that before; where it is empty it is the same."""
    starts, last = [], None
    for index, name in enumerate(names):
        if last is None or (name and name != last):
            starts.append(index)
            last = name
    return starts


def _from_record(record: Record, columns: WordColumns) -> TaggedSentence:
    word_column = _key(record, columns.words)
    words = _strings(record, word_column, column(record, word_column))
    if not words:
        raise TaskDataError(f"no words in column {word_column}", record.where, "remove the record")
    tag_column = _key(record, columns.tags)
    found = None if tag_column == word_column else record.values.get(tag_column)
    if found is not None:
        found = _named_tags(record, found, columns.tag_names)
    tags = _tags(record, tag_column, found)
    if tags is not None and len(tags) != len(words):
        raise TaskDataError(
            f"{len(tags)} tags for {len(words)} words", record.where, "fix the record"
        )
    document = None
    if columns.document is not None:
        document = str(column(record, columns.document))
    return TaggedSentence(words, tags, document, record.where, columns=record.values)


def _key(record: Record, name: str) -> str:
    """The name of a column that may be given by its number, or as a CoNLL file calls it.

    The Hub has `tokens` and `ner_tags` for `token` and `ner`.
    """
    index, names = column_number(name), list(record.values)
    if name not in record.values and index is not None and -len(names) <= index < len(names):
        return names[index]
    return next((each for each in (name, f"{name}s", f"{name}_tags") if each in names), name)


def _named_tags(record: Record, found: Any, names: Sequence[str]) -> Any:  # noqa: ANN401 - as in the table
    """Tags with names in place of numbers; without names the numbers are the tags."""
    if names and isinstance(found, list) and all(_is_number(each) for each in found):
        found = list(map(int, found))
    if not isinstance(found, list) or not all(type(each) is int for each in found):
        return found
    if any(each < 0 for each in found):  # -1 and -100 mean no tag
        return None
    wrong = next((each for each in found if names and each >= len(names)), None)
    if wrong is not None:
        known = f"--options.tag_names has {len(names)}, counted from 0"
        raise TaskDataError(f"no name for the tag {wrong}", record.where, known)
    return [names[each] if names else str(each) for each in found]


def _is_number(value: object) -> bool:
    return isinstance(value, str) and value.removeprefix("-").isdecimal()


def _tags(record: Record, name: str, found: Any) -> list[str] | None:  # noqa: ANN401 - as in the table
    if found is None or found != found:  # noqa: PLR0124 - NaN
        return None
    if isinstance(found, list) and any(each is None or each != each for each in found):  # noqa: PLR0124
        return None
    return _strings(record, name, found)


def _strings(record: Record, name: str, value: Any) -> list[str]:  # noqa: ANN401 - as in the table
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return value
    raise TaskDataError(
        f"no list of strings in column {name}",
        f"{record.where}: {', '.join(record.values)}",
        "fix it, or name another with --options.word_column and --options.tag_column (evaluate.py:"
        " --options word_column=NAME)",
    )
