import ast
import sys
from collections import Counter
from pathlib import Path

import pytest

from bert_core.tasks.documentation.definitions import (
    ALWAYS_THERE,
    Module,
    divide_by_split,
    examples_of,
    modules_of,
    packages_of,
    some_of,
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
    found = {each.name: each for each in modules["drawing.shapes"].definitions()}
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
    assert {split: len(some) for split, some in found.items()} == {
        "train": 16,
        "dev": 4,
        "test": 4,
    }


def find_module(split):
    every = (Module("package", f"package.{number}", Path()) for number in range(10_000))
    return next(module for module in every if module.split == split)


def test_some_are_spread_evenly():
    assert list(some_of(range(10), 3)) == [0, 4, 8]
    assert list(some_of(range(3), 5)) == [0, 1, 2]


def test_a_split_without_examples_is_named():
    with pytest.raises(TaskDataError, match=r"no examples for dev.*docs://tiny"):
        examples_of({"train": [1], "dev": []}, "dev", "docs://tiny")
    with pytest.raises(TaskDataError, match="no examples for other"):
        examples_of({"train": [1]}, "other", "docs://tiny")
