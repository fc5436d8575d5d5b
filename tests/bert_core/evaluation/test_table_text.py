from bert_core.evaluation.table_text import aligned_table, markdown_line, markdown_text


def test_columns_are_as_wide_as_their_widest_cell():
    text = aligned_table([["", "F1"], ["a long name", "9"]], ["word " * 30])
    head, row, empty, note, rest = text.splitlines()
    assert head == f"{'':11}  F1"
    assert row == "a long name  9"
    assert empty == ""
    assert note.startswith("- word")
    assert rest.startswith("  word")
    assert max(map(len, (note, rest))) <= 96


def test_a_bar_in_a_cell_is_no_new_cell():
    assert markdown_line(["a|b", "c"]) == "| a\\|b | c |"


def test_a_text_of_any_origin_is_no_markup():
    assert markdown_text("a|b\n# c") == r"a\|b # c"
    assert markdown_text("<script>&`x`[y](z)$1$") == r"&lt;script&gt;&amp;\`x\`\[y\](z)\$1\$"
    assert markdown_text("f1_macro and _this_ **here**") == r"f1_macro and \_this\_ \*\*here\*\*"
    assert markdown_text("Zoë: 1.5 (few)") == "Zoë: 1.5 (few)"
