import ast

import pytest

from bert_core.tasks.documentation.definitions import modules_of
from bert_core.tasks.documentation.parameters import (
    Names,
    ParametersInDocstring,
    tag_words,
)

SOURCE = '''
class Canvas:
    """A canvas."""

class PaintError(Exception):
    """Raises nothing."""

def draw(shape: "Shape", width: int | graphics.Length, *colours, on=None, line_width=1) -> Picture:
    """Draws."""
    def inner():
        raise TooLarge(width)
    if width:
        raise graphics.OffCanvas
    raise PaintError from error
'''


@pytest.fixture
def names(write_package):
    write_package("drawing", {"shapes": SOURCE})
    (module,) = modules_of(["drawing"])
    return next(Names.of(each) for each in module.definitions() if each.name == "draw")


def test_names_come_from_the_syntax_tree(names):
    assert names.parameters == {"shape", "width", "colours", "on", "line_width"}
    assert {"Shape", "Length", "Picture", "Canvas", "int"} <= names.types
    assert {"TooLarge", "OffCanvas", "PaintError", "ValueError"} <= names.exceptions
    assert not {"graphics", "None", "PaintError", "ValueError"} & names.types


@pytest.mark.parametrize(
    ("passage", "tags"),
    [
        ("Draws the shape of that width.", "O O O O O O O"),  # they may be words of English
        ("Draws the *shape* if width is 1", "O O O B-PARAM O O B-PARAM O O"),
        ("shape: A shape. width: A width", "B-PARAM O O O O B-PARAM O O O"),
        ("The line_width argument", "O B-PARAM O"),
        ("A list of Shape, on a Canvas", None),  # "on" may be a word of English
        ("Draws `on`: a Canvas", "O O B-PARAM O O O B-TYPE"),
        ("width : int The width.", "B-PARAM O B-TYPE O O O"),
        ("A graphics.Length or int", "O B-TYPE I-TYPE I-TYPE O B-TYPE"),
        ("Calls Canvas.clear or self.width", "O O O O O O O O"),
        ("Also `line_width.value` of it", "O O B-PARAM O O O O O"),
        ("A list of this list", "O B-TYPE O O O"),
        ("A KeyError or PageFullError", "O B-EXC O B-EXC"),
        ("Warning: it draws", None),
        ("Raises graphics.OffCanvas", "O B-EXC I-EXC I-EXC"),
        ("ValueError: a width under 0", "B-EXC O O O O O"),
        ("Shapes are drawn", "O O O"),
        ("Shape it", None),  # a type, or a word that begins a sentence
    ],
)
def test_words_are_tagged(names, passage, tags):
    found = tag_words(passage, names)
    assert found == (None if tags is None else (found[0], tags.split()))


def test_examples_are_passages_of_text_whose_tags_are_true():
    task = ParametersInDocstring(max_examples=200)
    sentences = task.examples("docs://sklearn", "train")
    assert len(sentences) == 200
    modules = modules_of(["sklearn"])
    for each in sentences[:50]:
        assert len(each.words) == len(each.tags)
        for word, tag in zip(each.words, each.tags, strict=True):
            if tag == "B-PARAM":
                assert word in arguments_of(each.file, modules)
            if tag == "B-EXC":
                assert word[0].isupper()
    labels = task.with_labels(sentences).labels
    assert {"O", "B-PARAM", "B-TYPE", "B-EXC"} <= set(labels)


def arguments_of(where, modules):
    """The arguments of a function, by its dotted name, found in another way."""
    found = [each for each in modules if where.startswith(f"{each.name}.")]
    module = max(found, key=lambda each: len(each.name))
    node = ast.parse(module.path.read_bytes())
    for name in where.removeprefix(f"{module.name}.").split("."):
        node = next(each for each in ast.walk(node) if getattr(each, "name", "") == name)
    return {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}


def test_no_text_is_in_two_splits():
    task, data = ParametersInDocstring(max_examples=200), "docs://sklearn"
    seen = {}
    for split in ("train", "dev", "test"):
        for each in task.examples(data, split):
            assert seen.setdefault(" ".join(each.words).lower(), split) == split
            assert seen.setdefault(each.columns["module"], split) == split
