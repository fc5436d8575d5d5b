import time
from collections import Counter

import pytest

from bert_core.text.wiki import clean_wiki_line, is_doc_tag, is_title


def write_file(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_wiki_residue_is_dropped_where_there_are_titles(tmp_path, read):
    text = (
        '= T =\nAs of 2013[ [update]], x.<br>y<ref name="z"></ref>\n'
        "See [[page|the page]] and [[it]].\n{{a|b}}\n| cell\n! Office\n#if: x\n}}{{\n"
        "1 < 2 and [3] {4} stay\nleft {{over\n"
    )
    documents, dropped = read(write_file(tmp_path / "a.txt", text))
    assert documents == [
        "As of 2013, x. y\nSee the page and it.\n1 < 2 and [3] {4} stay\nleft  over"
    ]
    assert dropped["wiki_markup_lines"] == 5 and dropped["wiki_markup_characters"] > 30
    documents, dropped = read(write_file(tmp_path / "b.txt", "a {{b}} <br>\n| c\n"))
    assert documents == ["a {{b}} <br>\n| c"] and dropped == {}


@pytest.mark.parametrize(
    "line",
    [
        "#switch:",
        "#ifeq: | 1910",
        "#invoke:Coord|x",
        '">em;',
        '">Paleogene',
        "em;",
        "px; width:px;",
        'class="wikitable" style="margin:0.5em auto; font-size:95%;clear:both;"',
        'title="ctx_ver=Z39.88-2004&rft_val_fmt=info"',
        "height:31.9em;",
        "margin: 0 auto 0;",
        'tright" style="width:280px;">',
        "box-shadow: 1px 1px 3px rgba(0,0,0,0.2);",
    ],
)
def test_residue_of_templates_and_tables_is_dropped(line):
    dropped = Counter()
    assert clean_wiki_line(line, dropped) == ""
    assert dropped == {"wiki_markup_lines": 1}


@pytest.mark.parametrize("name", ["History", "See also.", "References:", "Weblinks", "参见"])
def test_a_section_name_alone_is_a_heading(name):
    dropped = Counter()
    assert clean_wiki_line(name, dropped) == "" and dropped == {"heading_lines": 1}


@pytest.mark.parametrize(
    "line",
    [
        "History is written by the victors.",
        "He wrote: #1 was first; all else followed.",
        "Width: see the table; height: unknown.",
        "red: the colour of blood;",
        "x < y and y > z = 3",
        'The value "n">3 is odd.',
        "AT&T &c. and R&D",
    ],
)
def test_ordinary_text_stays(line):
    assert clean_wiki_line(line, Counter()) == line


def test_character_references_are_read():
    line = (
        "Fish &amp; chips&#160;&lt;br&gt;cost &pound;5 &#99999999; &unknown; &#" + "9" * 5000 + ";"
    )
    cleaned = clean_wiki_line(line, Counter())
    assert cleaned.startswith("Fish & chips\xa0 cost £5 &#99999999; &unknown; &#9999")


@pytest.mark.parametrize("begin", ["", "=", "[[", "{{", "<doc ", "= ", "margin:"])
@pytest.mark.parametrize(
    "repeated", ["=", " =", "= ", "[[", "]]", "{{", "<a", "<!--", "&#1", "a|", '="', "em;", "\t"]
)
def test_no_line_takes_more_than_linear_time(begin, repeated):
    line = begin + repeated * (1_000_000 // len(repeated)) + "x"
    started = time.process_time()
    clean_wiki_line(line, Counter())
    is_title(line)
    is_doc_tag(line)
    assert time.process_time() - started < 5  # 0.2 s; the quadratic ones would take hours


@pytest.mark.parametrize(
    "heading",
    ["脚注", "出典", "参考资料", "參考資料", "참고 문헌", "อ้างอิง", "ดูเพิ่ม", "المراجع", "Примечания"],
)
def test_names_of_sections_in_other_scripts_are_headings(heading):
    dropped = Counter()
    assert clean_wiki_line(heading, dropped) == "" and dropped["heading_lines"] == 1
    text = f"{heading} 東京"
    assert clean_wiki_line(text, dropped) == text
