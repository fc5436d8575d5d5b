"""What the demo fine-tunes on: all three tasks, on what is installed with Bertline."""

import ast
import hashlib
import os
import subprocess
import sys
import time
from collections import Counter

import pytest

from bert_core.tasks.catalog import TASKS
from bert_core.tasks.docstring_tasks import (
    AnswersInDocstring,
    LibraryOfPassage,
    Names,
    ParametersInDocstring,
    questions_about,
    tag_words,
)
from bert_core.tasks.docstrings import modules_of
from bert_core.tasks.tables import TaskDataError

SPLITS = ("train", "dev", "test")


def modules(package, count, verb):
    """Modules whose docstrings name their package; a sentence in each says the same."""
    return {
        f"module_{number}": f'"""{package} {verb} value {number} of all the values there are.\n'
        f"\nThis very sentence is the same in all of the many modules.\n"
        f'\n>>> {package}.run()\n"""'
        for number in range(count)
    }


@pytest.fixture
def two_libraries(write_package):
    write_package("upper", modules("upper", 120, "raises"))
    write_package("lowers", modules("Lowers", 120, "sinks"))
    return "docs://upper,lowers"


def test_passages_are_labelled_by_their_package_whose_name_is_masked(two_libraries):
    task = LibraryOfPassage(max_examples=200)
    train, dev = task.examples(two_libraries, "train"), task.examples(two_libraries, "dev")
    for each in [*train, *dev]:
        assert "upper" not in each.first.lower() and "lowers" not in each.first.lower()
        assert ">>>" not in each.first
    masked = [each for each in train if "same in all" not in each.first]
    verbs = {"raises": "upper", "sinks": "lowers"}
    assert all(verbs[each.first.split()[1]] == each.answer for each in masked)
    assert len(masked) >= len(train) - 1
    counts = Counter(each.answer for each in train)
    assert min(counts.values()) > 60
    labelled = task.with_labels(train)
    assert labelled.labels == ("lowers", "upper")
    assert labelled.label_names(dev) == {"lowers", "upper"}


def test_one_library_alone_is_refused(two_libraries):
    with pytest.raises(TaskDataError, match="fewer than two libraries.*docs://upper"):
        LibraryOfPassage(max_examples=200).examples("docs://upper", "train")


def test_few_examples_are_those_of_few_libraries(two_libraries, write_package):
    write_package("small", modules("small", 119, "turns"))
    libraries = {}
    for max_examples in (120, 400):
        task = LibraryOfPassage(max_examples=max_examples)
        train = task.examples(f"{two_libraries},small", "train")
        libraries[max_examples] = {each.answer for each in train}
    assert libraries == {120: {"upper", "lowers"}, 400: {"upper", "lowers", "small"}}


def test_the_parts_of_the_standard_library_are_told_apart():
    examples = LibraryOfPassage(max_examples=200).examples("docs://email,asyncio", "train")
    assert {example.answer for example in examples} == {"email", "asyncio"}


RAISING = '''
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
    write_package("drawing", {"shapes": RAISING})
    (module,) = modules_of(["drawing"])
    return next(
        Names.of(definition) for definition in module.definitions() if definition.name == "draw"
    )


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
    for sentence in sentences[:20]:
        assert len(sentence.words) == len(sentence.tags)
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            if tag == "B-PARAM":
                assert word in arguments_of(sentence.file, modules)
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


DOCUMENTED = '''
class Shape:
    """A :class:`Shape` to draw.

    Args:
        width (int, optional): How wide it is, see pkg.Module for more. Default: 1.
        depth: Deep
        **rest: Passed on.
        unknown: No argument of the constructor.
    """
    def __init__(self, width=1, depth=2, **rest):
        pass
    def draw(self, canvas):
        """
        :param canvas: What to draw on.
        """
'''


@pytest.fixture
def questions(write_package):
    write_package("drawing", {"shapes": DOCUMENTED})
    (module,) = modules_of(["drawing"])
    return [each for some in module.definitions() for each in questions_about(some)]


def test_parameters_become_questions_with_their_answers(questions):
    assert [(question.question, question.answers[0].text) for question in questions] == [
        ("What does the parameter width of Shape do?", "How wide it is, see pkg.Module for more"),
        ("Of what type is the parameter width of Shape?", "int"),
        ("What does the parameter canvas of Shape.draw do?", "What to draw on"),
    ]
    assert questions[0].context == (
        "A Shape to draw.\n"
        "width (int, optional): How wide it is, see pkg.Module for more. Default: 1.\n"
        "depth: Deep\n"
        "**rest: Passed on."
    )
    assert questions[2].context == "\n:param canvas: What to draw on."
    assert [question.id for question in questions] == [
        "drawing.shapes.Shape:width:what",
        "drawing.shapes.Shape:width:type",
        "drawing.shapes.Shape.draw:canvas:what",
    ]


def test_long_lists_are_divided(write_package):
    entries = "".join(f"        p{n} (int): What {n} is for: {'more ' * 20}.\n" for n in range(20))
    arguments = ", ".join(f"p{n}" for n in range(20))
    source = f'def draw({arguments}):\n    """Draws.\n\n    Args:\n{entries}    """\n'
    write_package("drawing", {"shapes": source})
    (module,) = modules_of(["drawing"])
    found = [each for some in module.definitions() for each in questions_about(some)]
    assert len(found) == 40 and len({each.context for each in found}) > 2
    for each in found:
        assert len(each.context) < 1000 and each.context.startswith("Draws.")
        answer = each.answers[0]
        assert each.context[answer.start :].startswith(answer.text)
        assert f"{each.id.split(':')[1]} (int)" in each.context


def test_examples_of_an_installed_package():
    task = AnswersInDocstring(max_examples=200)
    for split in ("train", "dev", "test"):
        questions = task.examples("docs://sklearn", split)
        assert len(questions) == (200 if split == "train" else 50)
        for each in questions:
            (answer,) = each.answers
            assert each.context[answer.start : answer.start + len(answer.text)] == answer.text
            assert answer.text == answer.text.strip() and answer.text
        assert len({question.id for question in questions}) == len(questions)


def test_documentation_without_parameters_is_named(write_package):
    write_package("drawing", {"shapes": '"""Parameters are none."""'})
    with pytest.raises(TaskDataError, match="no examples for train.*docs://drawing"):
        AnswersInDocstring().examples("docs://drawing", "train")


TEXT_OF = {
    "docs_library": lambda each: each.first,
    "docs_parameters": lambda each: " ".join(each.words),
    "docs_answers": lambda each: each.context,
}


def check_splits(name, splits):
    """No text and no module is in two splits."""
    seen = {}
    for split, examples in splits.items():
        for example in examples:
            for part in (
                TEXT_OF[name](example).lower(),
                example.columns.get("module", example.columns.get("title")),
            ):
                assert seen.setdefault(part, split) == split


@pytest.mark.parametrize("name", TEXT_OF)
def test_splits_share_no_text_and_no_module(name):
    task = TASKS[name].model_copy(update={"max_examples": 200})
    splits = {split: task.examples("docs://sklearn,email", split) for split in SPLITS}
    assert all(len(examples) >= 20 for examples in splits.values())
    check_splits(name, splits)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXT_OF)
def test_examples_are_many_and_quick_and_their_splits_share_no_text(name):
    started = time.process_time()
    splits = {split: TASKS[name].examples("docs://", split) for split in SPLITS}
    seconds = time.process_time() - started
    counts = {split: len(examples) for split, examples in splits.items()}
    print(name, counts, f"in {seconds:.1f} s")
    assert counts["train"] >= 2000 and counts["dev"] >= 200 and seconds < 20
    check_splits(name, splits)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXT_OF)
def test_another_process_reads_the_same(name):
    code = (
        "import hashlib; from bert_core.tasks.catalog import TASKS;"
        f"examples = TASKS[{name!r}].examples('docs://', 'dev');"
        "print(hashlib.sha256(repr(examples).encode()).hexdigest())"
    )
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    here = repr(TASKS[name].examples("docs://", "dev"))
    assert done.stdout.strip() == hashlib.sha256(here.encode()).hexdigest()
