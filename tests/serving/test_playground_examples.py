"""The playground offers the example in a model's folder, which `/info` returns."""

import json

import pytest
from browsing import Visitor, open_browser
from running import start

from bert_core.example_answers import example_of_task
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tasks.catalog import task_of
from bert_core.tasks.classification import Text
from bert_core.tasks.squad import Question
from bert_core.tasks.tagged_sentences import TaggedSentence
from serving.engine import Engine
from serving.models import close_models, load_models

EXAMPLES = {
    "sentiment": Text("the cat sat", None, None),
    "paraphrase": Text("the cat sat", "it ran", None),
    "entities": TaggedSentence(["Ann", "ran"]),
    "answers": Question("", "who sat", "Ann and Bob sat on a mat. The cat ran.", None),
}
OWN, GENERAL = "From the model's data", "A journey"


@pytest.fixture(scope="module")
def served(small_models, tmp_path_factory):
    """A server of models with an example in their folders, and of `bare` entities without one."""
    root = tmp_path_factory.mktemp("with_examples")
    folders = {"bare": small_models["entities"]}
    for name, item in EXAMPLES.items():
        _, model, tokenizer = load_model_folder(small_models[name])
        config = json.loads((small_models[name] / "config.json").read_text())
        example = example_of_task(model, tokenizer, task_of(config)[1], [item])
        folders[name] = root / name
        save_model_folder(root / name, model, tokenizer, "", extra_config=config, example=example)
    models = load_models(folders)
    running, stop = start(Engine(models), folders)
    yield running
    stop()
    close_models(list(models.values()))


def test_the_route_of_an_example_answers_it_as_it_says(served):
    _, info = served.ask("/info")
    assert "example" not in info["models"]["bare"]
    for name in EXAMPLES:
        example = info["models"][name]["example"]
        written = json.loads((served.folders[name] / "example.json").read_text())
        assert example == written
        body = {"model": name, "inputs": example["inputs"]}
        status, content = served.ask(f"/v1/{example['kind']}", body)
        assert status == 200, content
        if name == "sentiment":
            assert content["results"][0]["label"] == example["answer"]["label"]


def test_the_page_offers_the_example_of_the_chosen_model(served):
    with open_browser() as browser:
        visitor = Visitor(browser, served)
        page = visitor.open("classify")
        names = page.locator(".examples button")
        assert names.all_inner_texts() == [OWN]
        names.click()
        visitor.wait()
        assert "Predicted: " in visitor.answer.inner_text()
        assert page.get_by_label("Text", exact=True).input_value() == "the cat sat"
        visitor.choose("Model", "paraphrase")
        names.click()
        visitor.wait()
        assert page.get_by_label("Second text").input_value() == "it ran"

        visitor.go("Questions")
        assert names.all_inner_texts() == [OWN]
        names.click()
        visitor.wait()
        assert page.get_by_label("Question", exact=True).input_value() == "who sat"

        visitor.go("Named entities")
        visitor.choose("Model", "entities")
        assert names.all_inner_texts() == [OWN]
        visitor.choose("Model", "bare")
        assert OWN not in names.all_inner_texts() and GENERAL in names.all_inner_texts()

        visitor.go("Tokens")
        visitor.choose("Model", "entities")
        names.first.click()
        visitor.wait()
        assert page.get_by_label("Text", exact=True).input_value() == "Ann ran"
        visitor.check()
