"""Models are opened, checked by their examples, and say what they can do."""

import json
import queue
import shutil
import threading
from functools import partial

import numpy as np
import pytest
import torch
from example_requests import example_requests
from small_tasks import write_data, write_encoder

from bert_core.errors import UserError
from bert_core.example import ModelExample, check_example
from bert_core.example_answers import answered_by, example_of_task, question_of
from bert_core.features.extractor import FeatureChoice, load_extractor
from bert_core.features.units import cut_texts, unit_rows
from bert_core.model.bert import Bert
from bert_core.model.strategies import STRATEGIES
from bert_core.model_folder import CHECKSUMS, load_model_folder, save_model_folder
from bert_core.predictor import load_predictor
from bert_core.tasks.catalog import TASKS, task_config, task_of
from bert_core.tasks.classification import Text
from bert_core.tasks.reranking import Candidates, Reranking
from bert_core.tasks.squad import Question
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.task import add_task_head
from bert_core.tasks.text_embedding import TextEmbedding
from serving.batching import Work
from serving.models import ModelLoader, close_models, load_models, open_model, warm_up
from serving.routes.operations import reads_pairs, routes_of


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """An encoder, and two models that were fine-tuned from it without changing it; their data."""
    root = tmp_path_factory.mktemp("models")
    data = {}
    for name in ("sst2", "squad"):
        data[name] = write_data(name, root / "data" / name)
        _, model, tokenizer = load_model_folder(write_encoder(root / "encoder"))
        task = TASKS[name].with_labels(TASKS[name].examples(data[name], "train"))
        add_task_head(model, task)
        config = task_config(name, task)
        save_model_folder(root / name, model, tokenizer, card="", extra_config=config)
    return root, data


@pytest.fixture
def served(folders):
    root, _ = folders
    models = load_models({name: root / name for name in ("encoder", "sst2", "squad")})
    yield models
    close_models(list(models.values()))


@pytest.mark.parametrize("name", ["sst2", "squad"])
def test_answers_are_those_of_the_offline_predictor(name, served, folders):
    root, data = folders
    offline = load_predictor(root / name)
    examples = offline.task.examples(data[name], "dev")
    expected, rows = offline.predict_examples(examples)
    model = served[name]
    (outputs,) = model.batcher.submit(model.work(rows)).result(30)
    assert model.task_name == name and model.task == offline.task
    for found, wanted in zip(model.task.decode(outputs, rows, examples), expected, strict=True):
        assert found.get("text") == wanted.get("text")
        assert found.get("label") == wanted.get("label")
        score = "score" if name == "squad" else "scores"
        assert found[score] == pytest.approx(wanted[score], abs=1e-5)


def test_a_language_model_is_served_as_an_encoder_that_fills_no_mask(folders, tmp_path):
    root, _ = folders
    config, _, tokenizer = load_model_folder(root / "encoder", changes={"is_decoder": True})
    save_model_folder(tmp_path / "decoder", Bert.for_pretraining(config), tokenizer, card="")
    models = load_models({"encoder": root / "encoder", "decoder": tmp_path / "decoder"})
    try:
        served = models["decoder"]
        assert served.task is None and "masked_token" not in served.model.heads
        assert served.batcher is not models["encoder"].batcher
        rows = unit_rows(
            cut_texts(tokenizer, ["the cat sat", "the cat sat on a mat"], offsets=False),
            tokenizer,
            unit="token",
            pooling=None,
            max_length=32,
        ).rows
        (states,) = served.batcher.submit(Work(rows, (1,))).result(30)
        assert states[:3] == pytest.approx(states[3:6], abs=1e-5), "what follows is not seen"
    finally:
        close_models(list(models.values()))


def test_equal_encoders_are_one_and_others_are_others(served, folders, tmp_path):
    assert len({id(model.batcher) for model in served.values()}) == 1
    assert len({id(model.model.encoder) for model in served.values()}) == 1
    assert served["encoder"].task is None and served["encoder"].head is None
    root, _ = folders
    _, model, tokenizer = load_model_folder(root / "encoder")
    model.encoder.layers[0].output.weight.data[0, 0] += 1
    save_model_folder(tmp_path / "other", model, tokenizer, card="")
    models = load_models({"a": root / "encoder", "b": tmp_path / "other"})
    assert models["a"].batcher is not models["b"].batcher
    close_models(list(models.values()))


def test_vectors_and_scores_of_one_encoder_are_computed_at_once(folders, tmp_path):
    """A model of embeddings and a reranker: what is asked of both is one micro-batch."""
    root, _ = folders
    tasks = {"embedding": TextEmbedding(max_length=32), "rerank": Reranking(max_length=32)}
    for name, task in tasks.items():
        _, model, tokenizer = load_model_folder(root / "encoder")
        add_task_head(model, task)
        save_model_folder(
            tmp_path / name, model, tokenizer, card="", extra_config=task_config(name, task)
        )
    texts = ["the cat sat", "dogs run far away", "a mat"]
    models = load_models({name: tmp_path / name for name in tasks})
    try:
        embedder, reranker = models.values()
        assert embedder.batcher is reranker.batcher
        choice = FeatureChoice()
        of_texts = embedder.extractor(choice).encode(texts, "error").rows.rows
        of_pairs = reranker.task.encode([Candidates("cat", tuple(texts), None)], tokenizer)
        works = [embedder.feature_work(of_texts, choice), reranker.work(of_pairs)]
        opened, batches = threading.Event(), queue.Queue()

        def watch(batch):
            batches.put(batch.num_requests)
            assert opened.wait(30)

        embedder.batcher.watch = watch
        before = embedder.batcher.submit(works[0])  # the others wait for it
        assert batches.get(timeout=30) == 1
        later = [embedder.batcher.submit(work) for work in works]
        opened.set()
        (alone,), (states,), (scores,) = (each.result(30) for each in (before, *later))
        assert batches.get(timeout=30) == 2
        np.testing.assert_allclose(states, alone, atol=1e-5)
        expected = load_predictor(tmp_path / "rerank").predict_examples(
            [Candidates("cat", tuple(texts), None)]
        )[0][0]["scores"]
        np.testing.assert_allclose(scores[:, 0], expected, atol=1e-5)
    finally:
        close_models(list(models.values()))


def test_layers_are_those_of_the_extractor(served, folders):
    root, _ = folders
    choice = FeatureChoice(strategy=STRATEGIES["embeddings"], unit="token")
    extractor = load_extractor(root / "encoder", choice)
    texts = ["the cat sat", "dogs run far away"]
    model = served["encoder"]
    cut = extractor.rows(cut_texts(extractor.tokenizer, texts))
    (found,) = model.batcher.submit(model.feature_work(cut.rows, choice)).result(30)
    np.testing.assert_allclose(found, extractor.of_texts(texts), atol=1e-5)


def test_a_warm_model_has_computed(served):
    batches = []
    served["sst2"].batcher.watch = batches.append
    warm_up(served["sst2"])
    close_models(list(served.values()))
    assert sum(batch.num_tokens for batch in batches) > 384


def test_what_the_folder_says_is_known_when_it_is_gone(folders, tmp_path):
    folder = shutil.copytree(folders[0] / "encoder", tmp_path / "encoder")
    (folder / "1_Pooling").mkdir()
    kinds = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": path}
        for kind, path in kinds.items()
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    (model,) = load_models({"encoder": folder}).values()
    try:
        shutil.rmtree(folder)
        assert model.sha256 and model.version and model.created > 0
        assert model.sentence_pooling.pooling == "cls"
    finally:
        close_models([model])


def test_a_folder_that_is_no_model_or_of_another_kind_is_named(folders, tmp_path):
    with pytest.raises(UserError, match=r"config\.json"):
        load_models({"a": tmp_path})
    root, _ = folders
    shutil.copytree(root / "encoder", tmp_path / "other")
    path = tmp_path / "other" / "config.json"
    config = json.loads(path.read_text()) | {"architectures": ["BertForSomethingElse"]}
    path.write_text(json.dumps(config))
    (tmp_path / "other" / CHECKSUMS).unlink()
    with pytest.raises(UserError, match="no known task"):
        load_models({"a": tmp_path / "other"})


def test_a_model_answers_at_the_routes_that_it_names_and_at_no_other(server):
    """Each of the documented routes, asked of each model with the route's own example."""
    bodies = {
        path: body
        for path, body in example_requests("encoder").items()
        if path.startswith("/v1/") and path != "/v1/embeddings"
    }
    pairs = {"inputs": {"text": "a", "text_pair": "b"}}
    assert len(bodies) > 8
    for name, model in server.engine.models.items():
        answered = set()
        for path, body in bodies.items():
            if reads_pairs(model) and path in ("/v1/classify", "/v1/explain"):
                body = body | pairs
            status, content = server.ask(path, body | {"model": name})
            if status == 200:
                answered.add(path)
            else:
                said = content.get("title") or content["message"]  # Cohere's routes have this
                assert status == 422 and "Wrong model" in said, (name, path, content)
        assert answered == set(routes_of(model)), name


def test_a_model_that_computes_no_numbers_is_not_opened(small_models, tmp_path):
    _, model, tokenizer = load_model_folder(small_models["encoder"])
    with torch.no_grad():
        model.encoder.layers[0].output.weight.fill_(torch.finfo(torch.float32).max)
    save_model_folder(tmp_path / "broken", model, tokenizer, card="")
    loader = ModelLoader()
    well = open_model(loader, "well", small_models["encoder"], [])
    with pytest.raises(UserError, match="not finite"):
        open_model(loader, "broken", tmp_path / "broken", [well])
    again = open_model(loader, "again", small_models["sentiment"], [well])
    assert again.batcher is well.batcher and well.batcher.is_alive
    close_models([well])


def test_a_model_that_answers_otherwise_than_it_did_is_not_opened(small_models, tmp_path):
    _, model, tokenizer = load_model_folder(small_models["sentiment"])
    task = task_of(json.loads((small_models["sentiment"] / "config.json").read_text()))
    assert task is not None
    example = example_of_task(model, tokenizer, task[1], [Text("the cat sat", None, None)])
    config = task_config(*task)
    save_model_folder(
        tmp_path / "mood", model, tokenizer, card="", extra_config=config, example=example
    )
    close_models([open_model(ModelLoader(), "mood", tmp_path / "mood", [])])
    with torch.no_grad():
        for head in model.heads.values():
            for parameter in head.parameters():
                parameter.mul_(0.5)
    save_model_folder(
        tmp_path / "other", model, tokenizer, card="", extra_config=config, example=example
    )
    with pytest.raises(UserError, match="does not answer as it should: scores.*, was 0"):
        open_model(ModelLoader(), "mood", tmp_path / "other", [])


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
