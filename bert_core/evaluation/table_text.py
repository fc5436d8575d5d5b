"""Tables as text: cells and notes go in; columns for a terminal, or lines of Markdown, come out."""

import textwrap
from collections.abc import Sequence

_WIDTH = 96


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
