"""What the demo asks: chosen from real documentation, readable, true, and the same every time."""

import pytest
from finished_demos import QUESTIONS

from bert_core.errors import UserError
from bert_core.tasks.catalog import TASKS
from bert_core.tasks.classification import Text
from bert_core.tasks.squad import Answer, Question
from bert_core.tasks.tagged_sentences import TaggedSentence
from workflows.demonstration.questions import (
    FILE,
    described_parameters,
    entities_of,
    original_text,
    passages_of_libraries,
    question_of_a_line,
    read_questions,
    with_a_mask,
    write_questions,
)

DATA = "docs://networkx"
LINE = "Returns the number of nodes of a tree of it."


def passage(text, library="networkx"):
    return Text(text, None, library)


def test_passages_are_read_easily_and_of_the_library_they_say():
    chosen = passages_of_libraries(
        [
            passage("Short."),
            passage("numpy_like(x)[0] == {1: 2} and so on and on.", "numpy"),
            passage(LINE),
            passage("Draws the edges of the graph, no nodes."),
            passage("Returns an array of this shape full of ones.", "numpy"),
            passage("Colours a map. No neighbours are alike."),
        ]
    )
    assert (chosen["passage"], chosen["library"]) == (LINE, "networkx")
    assert chosen["beside"] == "Draws the edges of the graph, no nodes."
    assert chosen["elsewhere"] == "Returns an array of this shape full of ones."
    assert chosen["other_library"] == "numpy"
    assert (chosen["before"], chosen["sentence"]) == ("Colours a map.", "No neighbours are alike.")


def test_the_mask_stands_for_one_token_where_there_is_one():
    assert with_a_mask(LINE, {"number", "of"}) == (
        "Returns the [MASK] of nodes of a tree of it.",
        "number",
    )
    text, missing = with_a_mask(LINE, set())
    assert text.replace("[MASK]", missing) == LINE and text != LINE
    assert with_a_mask("X 1", set()) == ("X [MASK]", "1")


def test_what_is_described_is_what_stands_in_the_docstring():
    options = TASKS["docs_parameters"].model_copy(update={"max_examples": 200})
    examples = options.examples(DATA, "dev")
    chosen = described_parameters(examples)
    assert chosen is described_parameters(examples)
    assert len({kind for kind, _ in entities_of(chosen)}) == 2
    text = original_text(chosen, DATA)
    assert text.split() != list(chosen.words), "words are not spaced out as they were tagged"
    assert "".join(text.split()) == "".join(chosen.words)
    for kind, name in entities_of(chosen):
        assert name in text and kind in {"PARAM", "TYPE", "EXC"}


def test_documentation_that_is_gone_leaves_the_words():
    example = TaggedSentence(
        ["x", ":", "np", ".", "ndarray"],
        ["B-PARAM", "O", "B-TYPE", "I-TYPE", "I-TYPE"],
        file="networkx.gone",
        columns={"module": "networkx.gone"},
    )
    assert original_text(example, DATA) == "x : np . ndarray"
    assert entities_of(example) == [("PARAM", "x"), ("TYPE", "np.ndarray")]


def test_a_question_has_an_answer_that_is_read_easily():
    def question(text, answer):
        return Question(text, text, f"{answer} and more", (Answer(answer, 0),))

    examples = [
        question("What?", "int"),
        question("Of what type is the parameter x of the thing?", "Tuple[int, list[Sequence[float]], Any | None]"),  # noqa: E501
        question("What does the parameter x of the thing do?", "The number of all nodes of the whole graph"),  # noqa: E501
    ]  # fmt: skip
    assert question_of_a_line(examples) is examples[2]


def test_what_is_written_is_read_and_what_is_damaged_is_one_line(tmp_path):
    write_questions(QUESTIONS, tmp_path)
    assert read_questions(tmp_path) == QUESTIONS
    (tmp_path / FILE).write_text((tmp_path / FILE).read_text()[:-20])
    with pytest.raises(UserError, match="cannot read what the demo asks"):
        read_questions(tmp_path)
