"""Zero-shot classification, beside the pipeline of transformers and the client of Hugging Face."""

import pytest
from huggingface_hub import InferenceClient
from transformers import pipeline

TEXT = "the cat sat on a mat"
LABELS = ["cat", "dogs run", "far"]
TEMPLATE = "the {} sat."


@pytest.fixture(scope="module")
def theirs(server):
    return pipeline(
        "zero-shot-classification", model=str(server.folders["entailment"]), device="cpu"
    )


@pytest.mark.parametrize("multi_label", [False, True])
def test_scores_are_those_of_transformers(server, theirs, multi_label):
    options = {"hypothesis_template": TEMPLATE, "multi_label": multi_label}
    expected = theirs(TEXT, LABELS, **options)
    wanted = dict(zip(expected["labels"], expected["scores"], strict=True))
    client = InferenceClient(base_url=None, provider="hf-inference", token="none")
    address = f"http://{server.host}:{server.port}/hf/zero-shot-classification?model=entailment"
    found = client.zero_shot_classification(TEXT, LABELS, model=address, **options)
    assert [each.label for each in found] == expected["labels"]
    assert {each.label: each.score for each in found} == pytest.approx(wanted, abs=1e-5)
    body = {"inputs": [TEXT, "a"], "labels": LABELS, "template": TEMPLATE}
    status, ours = server.ask("/v1/zero-shot", body | {"multi_label": multi_label})
    assert status == 200 and len(ours["results"]) == 2
    (first, _) = ours["results"]
    tokenizer = server.engine.models["entailment"].tokenizer
    pairs = [(TEXT, TEMPLATE.format(label)) for label in LABELS]  # each of which is read
    assert first["n_tokens"] == sum(map(len, tokenizer.encode_batch(pairs)))
    scores = {each["label"]: each["score"] for each in first["scores"]}
    assert scores == pytest.approx(wanted, abs=1e-5)
    if multi_label:
        assert first["labels"] == [name for name, score in wanted.items() if score > 0.5]
    else:
        assert first["label"] == expected["labels"][0]


def test_they_are_no_drift_of_the_entailment_model(server):
    def num_counted():
        (lengths,) = (
            family
            for family in server.engine.drift.collect()
            if family.name == "bertline_text_length"
        )
        return sum(
            sample.value
            for sample in lengths.samples
            if sample.labels["model"] == "entailment" and sample.name.endswith("_count")
        )

    before = num_counted()
    server.ask("/v1/zero-shot", {"inputs": TEXT, "labels": LABELS})
    assert num_counted() == before, "a label is no hypothesis like those it was trained on"
    server.ask("/v1/classify", {"inputs": {"text": TEXT, "text_pair": "a"}, "model": "entailment"})
    assert num_counted() == before + 1


@pytest.mark.parametrize("label", LABELS)
def test_a_single_label_has_a_probability_of_its_own(server, theirs, label):
    (wanted,) = theirs(TEXT, [label], hypothesis_template=TEMPLATE)["scores"]
    body = {"inputs": TEXT, "labels": [label], "template": TEMPLATE}
    _, found = server.ask("/v1/zero-shot", body)
    (score,) = found["results"][0]["scores"]
    assert score["score"] == pytest.approx(wanted, abs=1e-5) and wanted < 1


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"labels": []}, 422, "labels"),
        ({"labels": ["cat", "cat"]}, 422, "label"),
        ({"template": "no place"}, 422, "{}"),
        ({"model": "sentiment"}, 422, "entailment"),
        ({"inputs": "a cat " * 100}, 422, "tokens"),
        ({"labels": [str(number) for number in range(1001)]}, 422, "labels"),
    ],
)
def test_what_makes_no_sense_is_refused(server, change, status, said):
    body = {"inputs": TEXT, "labels": LABELS} | change
    found, problem = server.ask("/v1/zero-shot", body)
    assert found == status and said in str(problem)
