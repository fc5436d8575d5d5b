"""A line of an extracted wiki goes in, the line without markup residue comes out."""

import re
from collections import Counter

_TITLE = re.compile(r"=\s[^=](?:.*[^=])?\s=$")
_HEADING = re.compile(r"(=+)\s?.*\s?\1$")
_MARKUP_SIGNS = re.compile(r"[<\[{|}]")
_MARKUP_LINE = re.compile(r"[|!]|\{\||\{\{|\}\}|#if:")
_UPDATE_MARK = re.compile(r"\[ ?\[update\]\]")
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
_LINK = re.compile(r"\[ ?\[(?:[^\[\]|]*\|)*([^\[\]|]*)\]\]")
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,300}>")
_REMAINS = re.compile(r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}")


def is_title(line: str) -> bool:
    """Whether the line is `= Title =`, which begins a document."""
    return line.startswith("= ") and _TITLE.match(line) is not None


def clean_wiki_line(line: str, dropped: Counter[str]) -> str:
    """Takes out headings (Devlin et al. 2018, section 3.1, ignore headers) and markup residue."""
    if line.startswith("=") and _HEADING.match(line):
        dropped["heading_lines"] += 1
        return ""
    if _MARKUP_LINE.match(line):
        dropped["wiki_markup_lines"] += 1
        return ""
    if not _MARKUP_SIGNS.search(line):
        return line
    cleaned = _UPDATE_MARK.sub("", line)
    cleaned = _TEMPLATE.sub("", cleaned)
    cleaned = _LINK.sub(r"\1", cleaned)
    cleaned = _TAG.sub(" ", cleaned)
    cleaned = _REMAINS.sub(" ", cleaned).strip()
    dropped["wiki_markup_characters"] += len(line) - len(cleaned)
    return cleaned
