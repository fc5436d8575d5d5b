import pytest

from bert_core.tasks.documentation.sections import HEADERS, parameter_entries

NUMPY = """Draws.

Parameters
----------
x : int or float, optional
    The width, in
    pixels.

    More about it.
name : {'a', 'b'}, default='a'
    One of:

    - a
    - b
**rest
    Whatever else.

Returns
-------
y : int
    The result.

Other Parameters
----------------
z : `numpy.ndarray`
    The depth.
"""

GOOGLE = """Draws.

Args:
    x (int, optional): The width, in
        pixels. Default: 1
    mapping (dict[str, tuple(int, int)]): The
        places.
    name: The name
    **rest: Whatever else.

        Of this a second paragraph.

Returns:
    y: The result.
"""

SPHINX = """Draws.

:param int x: The width, in
    pixels.
:param name: The name.

    Longer.
:returns: The result.
"""


def told(docstring):
    return [
        (
            each.name,
            each.text[slice(*each.type)] if each.type else None,
            each.text[slice(*each.description)] if each.description else None,
        )
        for each in parameter_entries(docstring)
    ]


def test_numpys_style():
    assert told(NUMPY) == [
        ("x", "int or float", "The width, in pixels."),
        ("name", "{'a', 'b'}", None),
        ("rest", None, "Whatever else."),
        ("z", "numpy.ndarray", "The depth."),
    ]
    assert parameter_entries(NUMPY)[0].text == "x : int or float, optional\nThe width, in pixels."


def test_googles_style():
    assert told(GOOGLE) == [
        ("x", "int", "The width, in pixels. Default: 1"),
        ("mapping", "dict[str, tuple(int, int)]", "The places."),
        ("name", None, "The name"),
        ("rest", None, "Whatever else."),
    ]
    assert parameter_entries(GOOGLE)[0].text.startswith("x (int, optional): The width")


def test_sphinx_fields():
    assert told(SPHINX) == [("x", "int", "The width, in pixels."), ("name", None, "The name.")]


@pytest.mark.parametrize("docstring", ["", "Draws.", "Args are ignored.\n\nx : int", "Parameters"])
def test_no_list_no_entries(docstring):
    assert parameter_entries(docstring) == []


@pytest.mark.parametrize("docstring", [NUMPY, GOOGLE, SPHINX])
def test_the_source_of_a_module_shows_whether_there_are_lists(docstring):
    indented = "\n".join(f"    {line}" for line in docstring.splitlines())
    assert HEADERS.search(f'def f():\n    """{indented}"""\n'.encode())
    assert not HEADERS.search(b'def f(params, args):\n    """Parameters: none."""\n')
