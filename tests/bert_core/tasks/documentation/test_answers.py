import pytest

from bert_core.tasks.documentation.answers import AnswersInDocstring, questions_about
from bert_core.tasks.documentation.definitions import modules_of
from bert_core.tasks.tables import TaskDataError

SOURCE = '''
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
    write_package("drawing", {"shapes": SOURCE})
    (module,) = modules_of(["drawing"])
    return [each for some in module.definitions() for each in questions_about(some)]


def test_parameters_become_questions_with_their_answers(questions):
    assert [(each.question, each.answers[0].text) for each in questions] == [
        (
            "What does the parameter width of Shape do?",
            "How wide it is, see pkg.Module for more",
        ),
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
    assert [each.id for each in questions] == [
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
    task, data, seen = AnswersInDocstring(max_examples=200), "docs://sklearn", {}
    for split in ("train", "dev", "test"):
        questions = task.examples(data, split)
        assert len(questions) == (200 if split == "train" else 50)
        for each in questions:
            (answer,) = each.answers
            assert each.context[answer.start : answer.start + len(answer.text)] == answer.text
            assert answer.text == answer.text.strip() and answer.text
            assert seen.setdefault(each.context, split) == split
            assert seen.setdefault(each.title, split) == split
        assert len({each.id for each in questions}) == len(questions)


def test_documentation_without_parameters_is_named(write_package):
    write_package("drawing", {"shapes": '"""Parameters are none."""'})
    with pytest.raises(TaskDataError, match="no examples for train.*docs://drawing"):
        AnswersInDocstring().examples("docs://drawing", "train")
