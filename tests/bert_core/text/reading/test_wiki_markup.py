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
