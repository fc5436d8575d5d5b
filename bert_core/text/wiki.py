"""Cleans the lines of an extracted wiki of markup residue.

Every pattern is linear in the length of the line: lines come from anywhere and may be a MiB long.
"""

import html
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

_TITLE = re.compile(r"=\s[^=](?:.*[^=])?\s=$")
_DOC = re.compile(r"<doc(?:\s+[a-z][\w:.-]{0,30}\s?=|\s?>)", re.IGNORECASE)
_PROLOGUE = re.compile(r"<(?:[?!][^<>]{0,300}|[A-Za-z]{1,20})>")
_WHOLE_DOC = re.compile(r"""<doc(?:[^<>"']++|"[^"]*+"|'[^']*+')*+>""", re.IGNORECASE)
_MARKUP_SIGNS = re.compile(r"[<>\[{|}&]")
_FUNCTIONS = (
    "babel|categorytree|coordinates|dateformat|default|expr|formatdate|if|ifeq|iferror|ifexist"
    "|ifexpr|invoke|language|lst|lsth|lstx|property|section|statements|switch|tag|time|timel"
    "|titleparts"
)
_MARKUP_LINE = re.compile(
    rf'[|!]|\{{\||\{{\{{|\}}\}}|#(?:{_FUNCTIONS})\s?:|"\s?>|(?:em|px);|[a-z-]{{2,20}}="'
)
_STYLE_LINE = re.compile(
    r"(?:-moz|-webkit|background|border|bottom|box|clear|color|display|float|font|height|left"
    r"|line-height|margin|max|min|overflow|padding|position|right|text|top|vertical-align"
    r"|white-space|width|z-index)[a-z-]{0,30}:\s?[\w #%(),.-]{1,80};"
)
_ATTRIBUTE = re.compile(
    r';">|\b(?:align|bgcolor|cellpadding|cellspacing|class|colspan|rowspan|style|valign)="'
)
_SWITCH = re.compile(r"__[A-Z]{2,30}__")
_UPDATE_MARK = re.compile(r"\[ ?\[update\]\]")
_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
_LINK = re.compile(r"\[ ?\[(?:[^\[\]|]*\|)*([^\[\]|]*)\]\]")
_TAG = re.compile(
    r"<(?:/?[A-Za-z]|!--)[^<>]{0,300}>|<(?:br|div|noinclude|ref|small|span)\b[^<>]{0,300}$"
)
_REMAINS = re.compile(r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")

_SECTIONS = frozenset(
    """
    abstract|aftermath|awards|background|bibliography|biography|books|career|characteristics
    citations|classification|climate|criticism|culture|death|definition|definitions|demographics
    description|design|development|discography|early history|early life|early years|economy
    education|etymology|examples|external links|family|features|filmography|footnotes
    further reading|gallery|geography|government|history|in popular culture|influence
    infrastructure|introduction|languages|later life|legacy|life|literature|media|military|music
    notable people|notes|notes and references|origin|origins|overview|personal life|politics
    plot|population|production|properties|publications|reception|references|release|religion
    see also|selected works|sources|sport|sports|structure|terminology|tourism|transport
    transportation|types|usage|uses|works
    anmerkungen|belege|einzelnachweise|geschichte|leben|literatur|quellen|siehe auch|weblinks
    annexes|articles connexes|bibliographie|biographie|histoire|liens externes
    notes et références|références|voir aussi
    bibliografía|biografía|enlaces externos|historia|notas|referencias|véase también
    bibliografia|biografia|collegamenti esterni|note|storia|voci correlate
    bibliografia|história|ligações externas|notas e referências|referências|ver também
    bronnen|externe links|geschiedenis|zie ook|przypisy|linki zewnętrzne|zobacz też
    история|литература|примечания|см. также|ссылки
    参考文献|参见|外部链接|參考文獻|參見|外部連結|脚注
    参考资料|參考資料|注释|註釋|延伸阅读|延伸閱讀|相关条目|相關條目|外部連接
    関連項目|外部リンク|概要|出典|注釈|関連文献|각주|같이 보기|외부 링크|참고 문헌|참고문헌
    อ้างอิง|ดูเพิ่ม|แหล่งข้อมูลอื่น|เชิงอรรถ|المراجع|مراجع|انظر أيضا|وصلات خارجية|منابع|جستارهای وابسته
    """.replace("\n", "|")
    .replace("  ", "")
    .split("|")
) - {""}
"""Names of sections that extractors leave alone on a line, in lower case."""


def is_title(line: str) -> bool:
    """Whether the line is `= Title =`, which begins a document."""
    return line.startswith("= ") and _TITLE.match(line) is not None


def is_doc_tag(line: str) -> bool:
    """Whether the line begins with `<doc id="…" url="…" title="…">`, as WikiExtractor writes it."""
    return line[:4].lower() == "<doc" and _DOC.match(line) is not None


def is_prologue(line: str) -> bool:
    """Whether the line is what may stand before the first document's tag: `<?xml …>`, `<docs>`."""
    return _PROLOGUE.fullmatch(line) is not None and not is_doc_tag(line)


def doc_tag_end(line: str) -> int:
    """The place after the tag that a line begins with; 0 where the tag has no end."""
    whole = _WHOLE_DOC.match(line)
    if whole is not None:
        return whole.end()
    return len(line) if line.endswith(">") else 0


def is_title_of(line: str, doc_tag: str) -> bool:
    """Whether the line repeats the title that WikiExtractor's tag gives."""
    titles = (f'title="{line}"'.lower(), f"title='{line}'".lower())
    return any(title in tag.lower() for tag in (doc_tag, _unescape(doc_tag)) for title in titles)


def is_wiki_record(record: Mapping[str, Any]) -> bool:
    """Whether a record is a page of a wiki, as WikiExtractor and the published dumps have them."""
    url = record.get("url")
    return isinstance(record.get("title"), str) and isinstance(url, str) and "/wiki" in url


def _unescape(text: str) -> str:
    """Replaces character references such as `&amp;` and `&#160;`.

    `html.unescape` alone raises ValueError for a number of more than 4,300 digits.
    """
    return _ENTITY.sub(lambda entity: html.unescape(entity.group()), text) if "&" in text else text


def clean_wiki_line(line: str, dropped: Counter[str]) -> str:
    """Takes out headings (Devlin et al. 2018, section 3.1, ignore headers) and markup residue."""
    if (len(line) > 1 and line[0] == line[-1] == "=") or line.startswith("Section::::"):
        dropped["heading_lines"] += 1
        return ""
    if line.startswith("BULLET::::"):
        line = line.removeprefix("BULLET::::").lstrip("- ")
    if len(line) < 40 and line.rstrip(".:").strip().lower() in _SECTIONS:
        dropped["heading_lines"] += 1
        return ""
    if (
        _SWITCH.fullmatch(line)
        or _MARKUP_LINE.match(line)
        or _STYLE_LINE.match(line)
        or line.endswith("  em;")
    ):
        dropped["wiki_markup_lines"] += 1
        return ""
    if not _MARKUP_SIGNS.search(line):
        return line
    cleaned = _UPDATE_MARK.sub("", _unescape(line))
    cleaned = _TEMPLATE.sub("", cleaned)
    cleaned = _LINK.sub(r"\1", cleaned)
    cleaned = _TAG.sub(" ", cleaned)
    if _ATTRIBUTE.search(cleaned):
        dropped["wiki_markup_lines"] += 1
        return ""
    cleaned = _REMAINS.sub(" ", cleaned).strip()
    dropped["wiki_markup_characters"] += len(line) - len(cleaned)
    return cleaned
