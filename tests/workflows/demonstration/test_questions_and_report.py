"""The demo's questions, chosen from real documentation, and its table, figure and report."""

import re
from dataclasses import replace

import pytest
from finetuning_runs import finetune_here, write_encoder, write_task
from finished_demos import QUESTIONS

from bert_core.errors import UserError
from bert_core.evaluation.intervals import Interval
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
from workflows.demonstration.report import (
    ADAPTATION,
    PRETRAINING,
    Compared,
    compared,
    text_table,
    write_report,
)
from workflows.finetuning.data import read_task_data
from workflows.finetuning.job import FinetuningJob
from workflows.model_location import open_encoder
from workflows.runs.storage import open_storage

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


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Two runs of one task: of the first little was asked."""
    storage = tmp_path_factory.mktemp("storage")
    write_task(storage / "data")
    write_encoder(storage / "encoder")
    made = []
    for name, rate in (("little", 1e-6), ("much", 3e-3)):
        changed = {"name": name, "optimizer.peak_learning_rate": rate}
        run, _, _ = finetune_here(storage, **changed)
        encoder = open_encoder(run.parts.settings.model, storage, "sqlite://")
        data = read_task_data(run.parts.settings, encoder.tokenizer)
        place = open_storage(str(storage))
        made.append(FinetuningJob(run.parts.settings, place, run.folder, encoder, data))
    return made


def best_score(job):
    return job.folder.last_checkpoint().extra["notes"]["best"]["score"]


def test_the_figures_are_those_of_the_best_epochs(jobs):
    found = compared(*jobs)
    assert (found.task, found.metric, found.num_train, found.num_dev) == (
        "classification",
        "accuracy",
        90,
        40,
    )
    assert found.before.value == best_score(jobs[0])
    assert found.after.value == best_score(jobs[1]) > found.before.value
    difference = found.difference
    assert difference.value == pytest.approx(found.after.value - found.before.value)
    assert 0 < difference.low < difference.value < difference.high
    same = compared(jobs[1], jobs[1]).difference
    assert (same.low, same.value, same.high) == (0, 0, 0)


RESULT = Compared(
    task="docs_library",
    metric="accuracy",
    num_train=4000,
    num_dev=541,
    epochs=4,
    before=Interval(0.279, 0.241, 0.318),
    after=Interval(0.468, 0.425, 0.510),
    difference=Interval(0.189, 0.148, 0.231),
)
SAME = replace(RESULT, task="docs_parameters", metric="f1", difference=Interval(0.0, -0.02, 0.021))
WORSE = replace(RESULT, task="docs_answers", difference=Interval(-0.1, -0.2, -0.05))


def test_the_table_says_what_is_known_and_what_is_not():
    lines = text_table([RESULT, SAME, WORSE], PRETRAINING).splitlines()
    titles = ["task", "metric", "untrained", "pre-trained", "difference (95 % interval)"]
    assert re.split("  +", lines[0]) == titles
    assert lines[1] == (
        "docs_library     accuracy      0.279        0.468   +0.189 (+0.148 to +0.231)"
    )
    assert len({line.rindex(")") for line in lines[1:4]}) == 1, "columns are aligned"
    assert lines[4] == (
        "docs_library: better for the pre-training; docs_answers: worse for the pre-training; "
        "docs_parameters: these examples do not tell the two apart"
    )


def test_the_words_are_those_of_the_training():
    first, _, verdict = text_table([RESULT], ADAPTATION).splitlines()
    assert re.split("  +", first)[2:4] == ["start model", "adapted"]
    assert verdict == "docs_library: better for the adaptation"


def test_the_report_holds_table_and_picture_and_says_what_it_leaves_out(tmp_path):
    write_report([RESULT, SAME, WORSE], tmp_path, PRETRAINING)
    report = (tmp_path / "report.md").read_text()
    assert "| docs_library | accuracy | 0.279 | 0.468 | +0.189 (+0.148 to +0.231) |" in report
    assert "4,000 examples, 4 epochs; 541 dev examples" in report and "(comparison.png)" in report
    assert "+0.189 (+0.148 to +0.231)" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "comparison.png").read_bytes().startswith(b"\x89PNG")
    table = (tmp_path / "table.txt").read_text()
    assert table.startswith(text_table([RESULT, SAME, WORSE], PRETRAINING))
    assert str(tmp_path / "comparison.png") in table
