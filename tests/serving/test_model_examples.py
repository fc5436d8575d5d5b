"""The example in a model folder can be asked of a server: over HTTP, and of what computes there."""

from functools import partial

import pytest

from bert_core.example import ModelExample, check_example
from bert_core.example_answers import answered_by, example_of_task, question_of
from bert_core.features.extractor import FeatureChoice
from bert_core.predictor import load_predictor
from bert_core.tasks.classification import Text
from bert_core.tasks.squad import Question
from bert_core.tasks.tagged_sentences import TaggedSentence

SENTENCE = "the cat sat on a mat"
EXAMPLES = {
    "sentiment": Text(SENTENCE, None, None),
    "paraphrase": Text(SENTENCE, "dogs run far", None),
    "topics": Text(SENTENCE, None, None),
    "grade": Text(SENTENCE, None, None),
    "entities": TaggedSentence([*SENTENCE.split(), ",", "dogs", "run"]),
    "answers": Question("", "the cat", SENTENCE, None),
}
ENCODER = {"fill-mask": "the [MASK] sat on a mat", "features": SENTENCE}


def example_for(folder, name, kind):
    if kind is not None:
        asked = ModelExample(
            kind=kind, inputs=ENCODER[kind], answer={}, precision="float32", tolerance=1e-3
        )
        return answered_by(folder, asked)
    predictor = load_predictor(folder)
    return example_of_task(predictor.model, predictor.tokenizer, predictor.task, [EXAMPLES[name]])


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, None) for name in EXAMPLES), *(("encoder", kind) for kind in ENCODER)],
)
def test_a_server_answers_it_alike(server, small_models, name, kind):
    example = example_for(small_models[name], name, kind)
    status, content = server.ask(f"/v1/{example.kind}", {"model": name, "inputs": example.inputs})
    assert status == 200, content
    (result,) = content["results"]
    assert example.answer and check_example(example, result) is None

    model = server.engine.models[name]
    question = question_of(
        example, model.task, model.tokenizer, model.config.max_position_embeddings
    )
    rows = question.rows(model.tokenizer)
    works = {
        "task": model.work,
        "masked_token": model.masked_token_work,
        "states": partial(model.feature_work, choice=FeatureChoice()),
    }
    (outputs,) = model.batcher.submit(works[question.source](rows)).result()
    assert check_example(example, question.answer(outputs, rows), model.precision) is None
    wrong = question.answer(outputs[::-1] * -1, rows)
    assert check_example(example, wrong) is not None
