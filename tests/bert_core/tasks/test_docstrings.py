import ast
import sys
from collections import Counter
from pathlib import Path

import pytest

from bert_core.tasks.docstrings import (
    ALWAYS_THERE,
    Module,
    divide_by_split,
    modules_of,
    packages_of,
    parameter_entries,
    passages,
)
from bert_core.tasks.tables import TaskDataError
from bert_core.text.documentation import DocumentationError

SOURCE = '''"""The module."""
import no_such_module
class Shape(Base):
    """A shape."""
    def __init__(self, width, *sizes: int, name="", **rest):
        self.width = width
    @classmethod
    def of(cls, text, /):
        """From a text."""
class ShapeError(ValueError): pass
async def draw(shape): """Draws."""
'''


def test_an_address_names_packages():
    assert packages_of("docs://numpy, torch,numpy") == ("numpy", "torch")
    assert packages_of("docs://")[0] == "stdlib"
    assert set(packages_of("docs://")) <= set(ALWAYS_THERE)
    assert "torch" in packages_of("docs://")


@pytest.mark.parametrize("data", ["numpy", Path("docs://numpy"), "hf://numpy", "/tmp"])
def test_what_is_no_address_is_refused(data):
    with pytest.raises(TaskDataError, match="docs://"):
        packages_of(data)


def test_a_package_that_is_not_there_is_named():
    with pytest.raises(DocumentationError, match="docs://no_such_package"):
        modules_of(packages_of("docs://no_such_package"))


def test_definitions_know_their_arguments(write_package):
    write_package("drawing", {"__init__": "", "shapes": SOURCE, "broken": "def (:"})
    modules = {module.name: module for module in modules_of(["drawing"])}
    assert modules.keys() == {"drawing", "drawing.shapes", "drawing.broken"}
    assert list(modules["drawing.broken"].definitions()) == []
    found = {definition.name: definition for definition in modules["drawing.shapes"].definitions()}
    assert list(found) == ["", "Shape", "Shape.of", "draw"]
    arguments = {name: [arg.arg for arg in each.arguments] for name, each in found.items()}
    assert arguments == {
        "": [],
        "Shape": ["width", "name", "sizes", "rest"],
        "Shape.of": ["text"],
        "draw": ["shape"],
    }
    assert found["Shape.of"].where == "drawing.shapes.Shape.of"
    assert found[""].where == "drawing.shapes" and isinstance(found[""].node, ast.Module)
    assert found["draw"].classes == {"Shape", "ShapeError"}
    assert "drawing" not in sys.modules


def test_copies_of_other_packages_are_left_out(write_package):
    write_package("drawing", {"shapes": SOURCE, "_vendor/other": SOURCE})
    assert [module.name for module in modules_of(["drawing"])] == ["drawing.shapes"]


def test_the_name_alone_decides_the_split():
    names = [f"package.module_{number}" for number in range(2000)]
    splits = [Module("package", name, Path("a")).split for name in names]
    assert splits == [Module("other", name, Path("b")).split for name in names]
    counts = Counter(splits)
    assert 1270 < counts["train"] < 1400
    assert 280 < counts["dev"] < 390 and 280 < counts["test"] < 390


def test_the_order_of_modules_is_shuffled_and_always_the_same():
    modules = modules_of(["email", "asyncio"])
    assert modules == modules_of(["asyncio", "email"])
    names = [module.name for module in modules]
    assert names != sorted(names) and len(names) > 40
    assert {module.package for module in modules[:15]} == {"asyncio", "email"}


def test_a_text_belongs_to_the_module_that_had_it_first():
    modules = {split: find_module(split) for split in ("train", "dev", "test")}
    examples = [
        (modules["dev"], "quoted", 0),
        (modules["train"], "quoted", 1),
        (modules["train"], "own", 2),
        (modules["dev"], "quoted", 3),
        (modules["test"], "own", 4),
    ]
    found = divide_by_split(examples, 100)
    assert found == {"train": [2], "dev": [0, 3], "test": []}


def test_reading_stops_when_all_splits_are_full():
    modules = [find_module(split) for split in ("train", "dev", "test")]

    def endless():
        number = 0
        while True:
            for module in modules:
                yield module, str(number), number
                number += 1

    found = divide_by_split(endless(), 16)
    assert {split: len(some) for split, some in found.items()} == {"train": 16, "dev": 4, "test": 4}


def find_module(split):
    every = (Module("package", f"package.{number}", Path()) for number in range(10_000))
    return next(module for module in every if module.split == split)


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
            entry.name,
            entry.text[slice(*entry.type)] if entry.type else None,
            entry.text[slice(*entry.description)] if entry.description else None,
        )
        for entry in parameter_entries(docstring)
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
