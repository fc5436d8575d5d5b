"""What reports are made of: sections, sentences and tables, of a page that needs nothing else.

And the same as Markdown, and numbers as JSON can hold them. All text is escaped here.
"""

import math
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from workflows.reporting.render import markdown_line
from workflows.vector_charts import COLORS
from workflows.vector_charts import STYLE as CHART_STYLE

_EXPONENT = re.compile(r"[\d.]+e-\d+")


def page(title: str, about: Sequence[str], sections: Sequence[str], script: str = "") -> str:
    """The whole page, light and dark, wide and narrow; `about` are lines below its title."""
    return _PAGE.format(
        title=escape(title),
        about="<br>".join(map(escape, about)),
        style=COLORS + _STYLE + CHART_STYLE,
        sections="\n".join(sections),
        script=f"<script>\n{script}</script>\n" if script else "",
    )


def section(title: str, content: str) -> str:
    """A part of a page, `content` being HTML."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>"


def paragraphs(sentences: Sequence[str]) -> str:
    """Each sentence as a paragraph."""
    return "\n".join(f"<p>{unbroken(each)}</p>" for each in sentences)


def unbroken(text: str) -> str:
    """Escaped text whose numbers, such as 5e-5, stay on one line."""
    return _EXPONENT.sub(r'<span class="nb">\g<0></span>', escape(text))


def notes(sentences: Sequence[str]) -> str:
    """Sentences as a list in small type."""
    return "<ul>" + "".join(f"<li>{escape(each)}</li>" for each in sentences) + "</ul>"


def named_rows(rows: Sequence[tuple[str, str]]) -> str:
    """A table of names and what is said of each."""
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="words">{escape(said)}</td></tr>\n'
        for name, said in rows
    )
    return f'<table class="costs"><tbody>\n{lines}</tbody></table>'


def troubles_table(rows: Sequence[tuple[str, str, str]]) -> str:
    """A table of runs that came to nothing, what each was, and why."""
    heads = "".join(f'<th scope="col" class="words">{each}</th>' for each in TROUBLE_HEADS)
    lines = "".join(
        "<tr>" + "".join(f'<td class="words">{escape(each)}</td>' for each in row) + "</tr>\n"
        for row in rows
    )
    return (
        f'<div class="wide"><table class="troubles"><thead><tr>{heads}</tr></thead>\n'
        f"<tbody>\n{lines}</tbody></table></div>"
    )


TROUBLE_HEADS = ("run", "setting", "why")


def markdown_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[bool] = ()
) -> str:
    """A table; `numbers` says which columns stand at the right."""
    cells = [markdown_line([plain(each) for each in line]) for line in [heads, *rows]]
    ruler = [("--:" if right else "---") for right in numbers or [False] * len(heads)]
    return "\n".join([cells[0], f"|{'|'.join(ruler)}|", *cells[1:]])


def markdown_list(sentences: Sequence[str]) -> str:
    """Sentences as a list."""
    return "\n".join(f"- {plain(each)}" for each in sentences)


def plain(text: str) -> str:
    """Text on one line that no reader of Markdown takes for HTML."""
    return escape(" ".join(text.split()), quote=False)


def finite(content: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    """The same, with null for numbers that JSON does not have."""
    if isinstance(content, dict):
        return {str(name): finite(each) for name, each in content.items()}
    if isinstance(content, list | tuple):
        return [finite(each) for each in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


_STYLE = """\
:root { --ours: #eef4fb; }
@media (prefers-color-scheme: dark) { :root { --ours: #1e2b3d; } }
body { margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: var(--ink);
  background: var(--ground); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin-top: 2.5rem; }
p, li { max-width: 60rem; overflow-wrap: anywhere; }
p { margin: .5rem 0; }
.about, li { color: var(--quiet); font-size: .875rem; }
li { margin: .25rem 0; }
ul { padding-left: 1.2rem; }
.best { background: var(--ours); padding: .25rem 1rem 1rem; border-radius: .5rem; }
.best h2 { margin-top: .75rem; }
.headline { font-size: 1.2rem; font-weight: 600; }
pre { overflow-x: auto; padding: .6rem .8rem; border: 1px solid var(--line); border-radius: .4rem;
  background: var(--ground); font-size: .8125rem; line-height: 1.45; }
summary { cursor: pointer; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9375rem; }
th, td { padding: .35rem .7rem; text-align: right; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
thead th { border-bottom: 2px solid var(--quiet); }
th.words, td.words, tbody th { text-align: left; }
tbody th { font-weight: normal; }
.points .ours > * { background: var(--ours); }
.points tr.on > * { outline: 1px solid var(--mark); outline-offset: -1px; }
.points .missing { color: var(--quiet); }
.points th button { all: unset; cursor: pointer; }
.points th button:focus-visible { outline: 2px solid var(--mark); }
.points th[aria-sort=ascending] button::after { content: " \\2191"; }
.points th[aria-sort=descending] button::after { content: " \\2193"; }
.paper thead th[colspan] { text-align: center; }
.paper .own { font-weight: 600; }
.costs td, .troubles td:nth-child(n+2) { white-space: normal; overflow-wrap: anywhere; }
.troubles td:nth-child(n+2) { min-width: 7.5rem; }
.nb { white-space: nowrap; }
.command { white-space: pre-wrap; overflow-wrap: anywhere; }
.chart { display: block; width: 100%; height: auto; }
.chart.bars { max-width: 25rem; }
.chart.if-narrow { max-width: 28rem; }
.panels { display: grid; gap: 1.5rem 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); }
.panels .chart { max-width: 28rem; }
@media (min-width: 64rem) { .if-narrow { display: none !important; } }
@media (max-width: 63.99rem) { .if-wide { display: none !important; } }
@media (max-width: 30rem) {
  th, td { padding: .35rem .4rem; }
  table { font-size: .875rem; }
  body { margin-top: 1rem; }
  .paper tbody th { white-space: normal; min-width: 6rem; }
}
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<h1>{title}</h1>
<p class="about">{about}</p>
{sections}
{script}</body>
</html>
"""
