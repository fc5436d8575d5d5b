"""Tables -> tagged sentences: a record has a list of words and a list of tags.

The tags may be numbers, as the library `datasets` writes them. In CSV a list is a text in brackets,
or a record has a single word and says which sentence it is of.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from bert_core.tasks.conll import TaggedSentence, WordColumns, column_number
from bert_core.tasks.label_values import stripped
from bert_core.tasks.tables import Record, TaskDataError, column, text_of, value_of, written_value

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
    if isinstance(written_value(value_of(records[0], _key(records[0], columns.words))), list):
        return [
            replace(each, values={name: written_value(each.values[name]) for name in names})
            for each in records
        ]
    folded = {name.casefold().strip(): name for name in names}
    of_sentence = next((folded[name] for name in _SENTENCES if name in folded), None)
    if of_sentence is None:
        raise TaskDataError(
            "no column of lists of words, and none says which sentence a word is of",
            f"{records[0].where}: {', '.join(names)}",
            "name --options.word_column (evaluate.py: --options word_column=NAME), or call the"
            f" column of the sentence {_SENTENCES[1]}",
        )
    starts = _sentence_starts([stripped(each.values[of_sentence]) for each in records])
    names.remove(of_sentence)
    words = [replace(each, values={name: each.values[name] for name in names}) for each in records]
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
            f"{len(tags)} tags for {len(words)} words", record.where, "mend the record"
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
    if any(each < 0 for each in found):  # -1 and -100 stand for what has no tag
        return None
    wrong = next((each for each in found if names and each >= len(names)), None)
    if wrong is not None:
        known = f"--options.tag_names has {len(names)}, counted from 0"
        raise TaskDataError(f"no name for the tag {wrong}", record.where, known)
    return [names[each] if names else str(each) for each in found]


def _is_number(value: object) -> bool:
    return isinstance(value, str) and value.removeprefix("-").isdecimal()


def _tags(record: Record, name: str, found: Any) -> list[str] | None:  # noqa: ANN401 - as in the table
    """The tags; None where a word has none."""
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
        "mend it, or name another with --options.word_column and --options.tag_column (evaluate.py:"
        " --options word_column=NAME)",
    )
