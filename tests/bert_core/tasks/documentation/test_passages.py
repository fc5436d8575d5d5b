from bert_core.tasks.documentation.passages import passages, without_markup

DOCSTRING = """Draws a shape. It is fast.
It is exact. It is fun.

It returns a list that holds one value for each of the shapes that were drawn, in their
order. A shape may be left out. Then nothing is drawn.

Parameters
----------
width, height : int
    How large it is.
name
    What it is called.

Raises:
    ValueError: If it is too large.
"""


def test_a_passage_is_one_to_three_sentences_or_an_entry_with_its_description():
    assert list(passages(DOCSTRING)) == [
        "Draws a shape. It is fast. It is exact.",
        "It is fun.",
        "It returns a list that holds one value for each of the shapes that were drawn, in their"
        " order. A shape may be left out.",
        "Then nothing is drawn.",
        "width, height : int How large it is.",
        "name What it is called.",
        "ValueError: If it is too large.",
    ]


def test_a_sentence_is_never_divided():
    sentence = " ".join(["Word", *["word"] * 90]) + "."
    assert list(passages(f"{sentence} Short one. {sentence}")) == [
        sentence,
        "Short one.",
        sentence,
    ]


def test_markup_becomes_what_it_shows():
    assert without_markup(":class:`~a.B` and :py:func:`the name <a.b.c>`") == "a.B and the name"
    assert without_markup("``x`` or `~.Axes.plot`") == "`x` or `Axes.plot`"
