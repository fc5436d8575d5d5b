"""Models of the modern block over HTTP: what they answer in Python, whatever else is asked."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from running import serving, write_encoder, write_modern

from bert_core.predictor import load_predictor

POOLINGS = {"words": None, "first": "cls", "mean": "mean"}
TEXTS = [f"the cat sat on {'a mat ' * count}".strip() for count in (1, 3, 9, 20, 2, 14)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("modern")
    encoder = write_encoder(root / "encoder")
    return {name: write_modern(root / name, encoder, each) for name, each in POOLINGS.items()}


@pytest.fixture(scope="module")
def server(folders):
    with serving(folders) as running:
        yield running


def test_classifiers_of_one_encoder_read_it_each_in_its_way(server, folders):
    models = server.engine.models
    assert models["first"].batcher is models["mean"].batcher, "they are computed together"
    questions = [(name, text) for text in TEXTS for name in ("first", "mean")]

    def ask(question):
        name, text = question
        return server.ask("/v1/classify", {"model": name, "inputs": text})

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, questions))
    wanted = {name: load_predictor(folders[name]).predict(TEXTS) for name in ("first", "mean")}
    for (name, text), (status, answer) in zip(questions, found, strict=True):
        assert status == 200, answer
        scores = {each["label"]: each["score"] for each in answer["results"][0]["scores"]}
        of_python = wanted[name][TEXTS.index(text)].scores
        assert scores == pytest.approx({each.label: each.score for each in of_python}, abs=1e-5)
    spread = {name: {each.scores[0].score for each in wanted[name]} for name in wanted}
    assert all(max(each) - min(each) > 0.01 for each in spread.values())


def test_the_mean_is_explained_by_all_its_tokens(server):
    status, found = server.ask("/v1/explain", {"model": "mean", "inputs": TEXTS[2]})
    assert status == 200, found
    assert len(found["attributions"]) == found["n_tokens"]
    assert all(abs(each) > 0 for each in found["attributions"])


def test_words_are_filled_in(server, folders):
    text = "the cat sat on a [MASK]"
    status, found = server.ask("/v1/fill-mask", {"model": "words", "inputs": text})
    assert status == 200, found
    wanted = load_predictor(folders["words"]).fill_mask([text])[0].masks[0].candidates
    answered = found["results"][0]["masks"][0]["candidates"]
    assert [each["token"] for each in answered[:3]] == [each.token for each in wanted[:3]]
