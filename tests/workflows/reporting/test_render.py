import math
import re
from xml.etree import ElementTree

import pytest
from hostile_labels import HOSTILE_LABELS
from read_pages import Page as ReadPage

from workflows.reporting.figures import SHADES, Chart
from workflows.reporting.render import (
    Cell,
    Code,
    Facts,
    Figures,
    Page,
    Row,
    Section,
    Table,
    html,
    markdown,
    markdown_text,
    terminal_table,
    write_report,
)

HOSTILE = '<b>"a" & b | `c`'


def page(text="plain"):
    chart = Chart(text)
    chart.line([1, 2], [1, 2], color=SHADES[2], label=text, key="1")
    figure = chart.finish("curve", caption=text, alt=text)
    rows = [
        Row([Cell(text), Cell("9", 9.0, strong=True)], highlighted=True, key="1"),
        Row([text, Cell("–")]),
    ]
    parts = [
        text,
        Table(text, ["name", text], rows, [text]),
        Facts([(text, text)]),
        Code(text, summary=text),
        Figures([figure]),
    ]
    return Page(text, text, [(text, text)], [Section(text, parts)])


def read(text):
    reader = ReadPage()
    reader.feed(text)
    reader.close()
    assert not reader.open
    return reader


@pytest.mark.parametrize("label", [HOSTILE, "$x$", "nul\0", "\u200b", "long " * 99])
def test_any_text_is_shown_and_none_of_it_is_code(label):
    written, plain = html(page(label)), html(page())
    assert read(written).scripts == read(plain).scripts == 1
    for tag in ("<b>", "<script", "<title", "<img"):
        assert written.count(tag) == plain.count(tag)


def test_any_name_stays_in_its_cell_of_markdown():
    rows = [Row([label, label]) for label in HOSTILE_LABELS]
    lines = markdown(Page("t", "v", (), [Section("s", [Table("c", ["a", "b"], rows)])]))
    table = [each for each in lines.split("\n") if each.startswith("|")]
    assert len(table) == 2 + len(HOSTILE_LABELS)
    assert all(len(re.findall(r"(?<!\\)\|", each)) == 3 for each in table)


def test_a_page_needs_no_other_file():
    reader = read(html(page()))
    assert all(address.startswith("#") for address in reader.addresses)


def test_numbers_stand_at_the_right_and_say_what_they_sort_by():
    text = html(page())
    assert 'class="number" data-order="9"><strong>9</strong>' in text
    assert 'class="number" data-order="">–<' in text
    assert "|---|--:|" in markdown(page()) and "| **9** |" in markdown(page())
    assert Cell("inf", math.inf).sort_key == ""


def test_cells_of_markdown_stay_in_their_column():
    table = markdown(Page("t", "v", (), [Section("s", [Table("c", ["a|b"], [Row(["x|y"])])])]))
    assert "| a\\|b |\n|---|\n| x\\|y |" in table


def test_code_cannot_end_its_fence():
    assert "````\na\n```\nb\n````" in markdown(
        Page("t", "v", (), [Section("s", [Code("a\n```\nb\n")])])
    )


def test_files_are_written_and_figures_that_are_gone_removed(tmp_path):
    write_report(page(), tmp_path)
    names = {each.name for each in tmp_path.iterdir()}
    assert names == {"report.html", "report.md", "curve.svg"}
    (tmp_path / "other.svg").touch()
    write_report(Page("title", "verdict"), tmp_path, outdated=["curve.svg"])
    assert {each.name for each in tmp_path.iterdir()} == {
        "report.html", "report.md", "other.svg"
    }  # fmt: skip


def test_a_table_for_a_terminal_is_aligned_and_its_notes_are_wrapped():
    rows = [Row(["a long name", Cell("9", 9)])]
    head, row, empty, note, rest = terminal_table(
        Table("", ["", "F1"], rows, ["word " * 30])
    ).splitlines()
    assert (head, row, empty) == (f"{'':11}  F1", "a long name   9", "")
    assert note.startswith("- word") and rest.startswith("  word")
    assert max(map(len, (note, rest))) <= 96


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b\n# c", r"a\|b # c"),
        ("<script>&`x`[y](z)$1$", r"&lt;script&gt;&amp;\`x\`\[y\](z)\$1\$"),
        ("f1_macro and _this_ **here**", r"f1_macro and \_this\_ \*\*here\*\*"),
        ("Zoë: 1.5 (few)", "Zoë: 1.5 (few)"),
    ],
)
def test_no_text_is_markup_in_markdown(text, shown):
    assert markdown_text(text) == shown


def test_figures_of_one_name_are_one_file():
    charts = [Chart(f"part {index}") for index in range(4)]
    panels = [each.finish(f"p{n}", caption="", alt=f"panel {n}") for n, each in enumerate(charts)]
    figures = Figures(panels, name="all", caption="Four panels.")
    page = Page("t", "v", (), [Section("s", [figures])])
    assert list(page.files) == ["all.svg"]
    root = ElementTree.fromstring(page.files["all.svg"])
    places = [each for each in root if each.tag.endswith("svg")]
    assert [float(place.get("x", "")) > 0 for place in places] == [False, True, True, False]
    assert [float(place.get("y", "")) > 0 for place in places] == [False, False, False, True]
    text = markdown(page)
    assert "![panel 0; panel 1; panel 2; panel 3](all.svg)" in text and "Four panels." in text
    assert html(page).count("<figure>") == 4 and "Four panels." in html(page)
