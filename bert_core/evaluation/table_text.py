"""Tables as text: cells and notes go in; columns for a terminal, or lines of Markdown, come out."""

import re
import textwrap
from collections.abc import Sequence
from html import escape

from bert_core.errors import one_line

_WIDTH = 96
_MARKUP = re.compile(r"[\\`*\[\]|~$]|(?<!\w)_|_(?!\w)")
"""What Markdown takes for markup, besides HTML; an underscore at the edge of a word alone."""


def aligned_table(lines: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """The cells in columns, the notes under them; all lines have as many cells."""
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    text = [
        "  ".join(each.ljust(width) for each, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    wrapped = [textwrap.fill(f"- {note}", _WIDTH, subsequent_indent="  ") for note in notes]
    return "\n".join([*text, "", *wrapped]) + "\n"


def markdown_line(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(each.replace("|", "\\|") for each in cells) + " |"


def markdown_text(text: str) -> str:
    """A text of any origin as Markdown shows it as it is, on one line and in a table too."""
    line = " ".join(one_line(text).split())
    return _MARKUP.sub(r"\\\g<0>", escape(line, quote=False))
