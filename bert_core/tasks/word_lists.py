"""Tables of lists -> tagged sentences: a record has a list of words and a list of tags.

The tags may be numbers, as the library `datasets` writes them.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from bert_core.tasks.conll import TaggedSentence, WordColumns, column_number
from bert_core.tasks.tables import Record, TaskDataError, column

LIST_SUFFIXES = (".jsonl", ".parquet")


def read_word_lists(records: Iterable[Record], columns: WordColumns) -> list[TaggedSentence]:
    """The sentences of a table, which has a list of words and a list of tags in each record.

    A record without tags has None. Raises `TaskDataError`, with the place of the record, for what
    is not such a list.
    """
    return [_from_record(record, columns) for record in records]


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
    if not isinstance(found, list) or not all(type(each) is int for each in found):
        return found
    if any(each < 0 for each in found):  # -1 and -100 stand for what has no tag
        return None
    wrong = next((each for each in found if names and each >= len(names)), None)
    if wrong is not None:
        known = f"--options.tag_names has {len(names)}, counted from 0"
        raise TaskDataError(f"no name for the tag {wrong}", record.where, known)
    return [names[each] if names else str(each) for each in found]


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
        f"no list of strings in column {name}", record.where, "name another column, or mend it"
    )
