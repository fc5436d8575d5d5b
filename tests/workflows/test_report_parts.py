import math

from workflows.report_parts import (
    finite,
    markdown_list,
    markdown_table,
    named_rows,
    notes,
    page,
    paragraphs,
    plain,
    section,
    troubles_table,
    unbroken,
)

NAME = '<b>"a" & b'


def test_nothing_of_the_text_is_code():
    for text in (
        page(NAME, [NAME], []),
        section(NAME, ""),
        paragraphs([NAME]),
        notes([NAME]),
        named_rows([(NAME, NAME)]),
        troubles_table([(NAME, NAME, NAME)]),
        unbroken(NAME),
        plain(NAME),
        markdown_table([NAME], [[NAME]]),
        markdown_list([NAME]),
    ):
        assert "<b>" not in text and "&lt;b&gt;" in text


def test_a_page_has_a_script_only_where_it_is_given():
    assert "<script>" not in page("title", ["one", "two"], ["<p>three</p>"])
    text = page("title", ["one", "two"], ["<p>three</p>"], "let x;\n")
    assert "one<br>two" in text and "<p>three</p>" in text
    assert text.count("<script>\nlet x;\n</script>") == 1


def test_numbers_with_exponents_stay_whole():
    assert unbroken("at 5e-5 or 1.5e-4") == (
        'at <span class="nb">5e-5</span> or <span class="nb">1.5e-4</span>'
    )


def test_a_markdown_table_says_which_columns_are_numbers():
    assert markdown_table(["a", "b"], [["x|y", "1"]], [False, True]).splitlines() == [
        "| a | b |", "|---|--:|", "| x\\|y | 1 |"
    ]  # fmt: skip
    assert markdown_list(["one\ntwo", "three"]) == "- one two\n- three"


def test_json_has_no_infinities():
    assert finite({"a": [1.5, math.nan], 2: (math.inf,), "c": "text"}) == {
        "a": [1.5, None], "2": [None], "c": "text"
    }  # fmt: skip
