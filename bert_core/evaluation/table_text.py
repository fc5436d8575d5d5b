"""Lines of Markdown tables."""

from collections.abc import Sequence


def markdown_line(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(each.replace("|", "\\|") for each in cells) + " |"
