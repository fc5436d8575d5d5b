"""Training a reranker in a worker, and the folder that comes out."""

import json
import random

import numpy as np
import pytest
from finetuning_runs import WORDS, finetune_here, write_encoder
from sentence_transformers import CrossEncoder

import bert_core
from bert_core.example import check_example, read_example
from bert_core.example_answers import answer_of
from workflows.finetuning.data import read_task_data
from workflows.finetuning.job import FinetuningJob
from workflows.finetuning.results import DEV_REPORT, write_results
from workflows.model_location import open_encoder
from workflows.runs.storage import open_storage
from workflows.versions.model_pyfunc import _load_pyfunc, signature_and_example


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    """The relevant passage begins with the query's word; the first stage has any order."""
    storage, choose = tmp_path_factory.mktemp("storage"), random.Random(3)
    write_encoder(storage / "encoder")
    (storage / "data").mkdir()
    for split, count in (("train", 60), ("dev", 20)):
        lines = []
        for _ in range(count):
            passages = [" ".join(choose.choices(WORDS[5:], k=4)) for _ in range(4)]
            place = choose.randrange(4)
            passages[place] = f"{choose.choice(WORDS[:5])} {passages[place]}"
            scores = [int(number == place) for number in range(4)]
            lines.append({"query": choose.choice(WORDS), "passages": passages, "scores": scores})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (storage / "data" / f"{split}.jsonl").write_text(text)
    return storage


@pytest.fixture(scope="module")
def job(storage):
    options = {"task": "rerank", "epochs": 6, "options__objective": "listwise"}
    run, _, _ = finetune_here(storage, **options)
    (run.folder.path / "artifacts").mkdir()
    encoder = open_encoder(run.parts.settings.model, storage, "sqlite://")
    settings = run.parts.settings
    data = read_task_data(settings, encoder.tokenizer)
    return FinetuningJob(settings, open_storage(str(storage)), run.folder, encoder, data)


@pytest.fixture(scope="module")
def results(job):
    return write_results(job)


def test_it_learns_to_order_better_than_the_first_stage(job, results):
    figures = results.figures
    assert figures["dev/ndcg_at_10"] > figures["dev/first_stage_ndcg_at_10"] + 0.1
    report = json.loads((job.folder.path / "artifacts" / DEV_REPORT / "report.json").read_text())
    before = report["metrics"]["first_stage_ndcg_at_10"]
    assert before["low"] < figures["dev/first_stage_ndcg_at_10"] < before["high"]


def test_the_folder_is_a_cross_encoder(job, results):
    folder, pairs = job.folder.model, [("ba", "keli to vuza"), ("to", "noka rume bali")]
    theirs = CrossEncoder(str(folder), device="cpu").predict(pairs)
    ours = bert_core.load(folder)
    found = ours.predict([{"text": first, "text_pair": second} for first, second in pairs])
    values = np.array([each.value for each in found])
    np.testing.assert_allclose(1 / (1 + np.exp(-values)), theirs, atol=1e-5)
    example = read_example(folder)
    assert example.kind == "classify" and check_example(example, answer_of(folder, example)) is None
    rows = [{"text": first, "text_pair": second} for first, second in pairs]
    assert [each["value"] for each in _load_pyfunc(str(folder)).predict(rows)] == pytest.approx(
        values
    )
    signature, _ = signature_and_example(folder)
    assert signature.inputs.input_names() == ["text", "text_pair"]
