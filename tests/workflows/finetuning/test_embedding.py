"""Training vectors of texts in a worker, and the folder that comes out."""

import json
import random
import shutil

import numpy as np
import pytest
from finetuning_runs import WORDS, arguments, finetune_here, write_encoder
from running import serving
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

import bert_core
from bert_core.errors import UserError
from bert_core.example import check_example, read_example
from bert_core.example_answers import answer_of
from bert_core.training.checkpoint import newest_checkpoint
from workflows import evaluate, quantize
from workflows.finetune import parse
from workflows.finetuning.data import read_task_data, refuse_encoder
from workflows.finetuning.job import FinetuningJob
from workflows.finetuning.results import write_results
from workflows.messages import Outcome
from workflows.model_location import open_encoder
from workflows.runs.journal import read_records
from workflows.runs.storage import open_storage
from workflows.versions.model_pyfunc import _load_pyfunc, signature_and_example


def write_pairs(folder, *, train=90, dev=40):
    """Queries of words, and passages that hold them."""
    choose = random.Random(3)
    folder.mkdir(parents=True)
    for name, count in (("train", train), ("dev", dev)):
        lines = []
        for _ in range(count):
            words = choose.sample(WORDS, 3)
            passage = words + choose.choices(words, k=6)
            choose.shuffle(passage)
            lines.append({"query": " ".join(words), "passage": " ".join(passage)})
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    storage = tmp_path_factory.mktemp("storage")
    write_pairs(storage / "data")
    write_encoder(storage / "encoder")
    return storage


def embed_here(storage, stop_after=-1, **changed):
    settings = {"task": "embedding", "checkpoint__every_steps": 5, "max_tokens": 64, **changed}
    return finetune_here(storage, stop_after, **settings)


def records(run):
    path = run.folder.path / "journal.jsonl"
    return [(record.step, record.metrics) for record in read_records(path)]


@pytest.fixture(scope="module")
def whole(storage):
    return embed_here(storage, name="whole")


def test_it_learns_which_passage_belongs_to_a_query(whole):
    run, outcome, _ = whole
    assert outcome == Outcome(36, stopped=False)
    measured = [each for _, each in records(run) if "dev/loss" in each]
    assert measured[-1]["dev/ndcg_at_10"] > measured[0]["dev/ndcg_at_10"] > 0
    assert measured[-1]["dev/loss"] < measured[0]["dev/loss"]


@pytest.mark.slow
def test_stopped_anywhere_and_going_on_it_writes_the_same_bits(storage, whole):
    for stop_after in (17, 8):
        _, outcome, _ = embed_here(storage, stop_after, name="parts")
        assert outcome.stopped
    run, outcome, _ = embed_here(storage, name="parts")
    assert outcome == Outcome(36, stopped=False)
    assert records(run) == records(whole[0])
    paths = [newest_checkpoint(each.folder.checkpoints)[0] for each in (run, whole[0])]
    first, second = ((path / "model.safetensors").read_bytes() for path in paths)
    assert first == second


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("kind", "criterion"), [("scores", "spearman"), ("labels", "accuracy"), ("texts", "spearman")]
)
def test_other_kinds_are_learned_too(storage, kind, criterion):
    choose = random.Random(1)
    (storage / kind).mkdir()
    for split, count in (("train", 48), ("dev", 24)):
        lines = []
        for number in range(count):
            first, second = (" ".join(choose.choices(WORDS, k=6)) for _ in range(2))
            if kind == "labels":
                half = WORDS[:5] if number % 2 else WORDS[5:]
                lines.append({"text": " ".join(choose.choices(half, k=6)), "label": number % 2})
            elif kind == "texts" and split == "train":
                lines.append({"text": first})
            else:
                shared = {*first.split()} & {*second.split()}
                lines.append({"query": first, "passage": second, "score": len(shared)})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (storage / kind / f"{split}.jsonl").write_text(text)
    given = {"name": kind, "data": storage / kind, "options__kind": kind, "epochs": 2}
    run, outcome, _ = embed_here(storage, **given)
    assert outcome == Outcome(12, stopped=False)
    measured = [each for _, each in records(run) if "dev/loss" in each]
    assert len(measured) == 2 and all(each["dev/loss"] > 0 for each in measured)
    assert measured[-1][f"dev/{criterion}"] > (0.7 if kind == "labels" else 0.2)


@pytest.mark.some(1)
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_folder_is_one_of_sentence_transformers(storage, pooling):
    options = {"options__pooling": pooling, "options__query_prompt": "ba: "}
    run, _, _ = embed_here(storage, name=f"folder-{pooling}", epochs=1, **options)
    (run.folder.path / "artifacts").mkdir()
    encoder = open_encoder(run.parts.settings.model, storage, "sqlite://")
    data = read_task_data(run.parts.settings, encoder.tokenizer)
    settings = run.parts.settings
    job = FinetuningJob(settings, open_storage(str(storage)), run.folder, encoder, data)
    results = write_results(job)
    assert "ndcg_at_10" in "\n".join(results.lines)
    folder = run.folder.model
    ours, theirs = bert_core.load(folder), SentenceTransformer(str(folder), device="cpu")
    texts = [" ".join(WORDS[:count]) for count in (1, 4, 10)] + ["ba " * 100]
    assert theirs.max_seq_length == 32 and theirs.prompts["query"] == "ba: "
    with pytest.warns(UserWarning, match="1 of 4 texts are cut"):
        found = ours.embed(texts, overflow="right")
    np.testing.assert_allclose(found, theirs.encode(texts), atol=1e-5)
    queries = ours.embed(texts[:3], prompt_name="query")
    np.testing.assert_allclose(queries, theirs.encode_query(texts[:3]), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    assert not np.allclose(queries, found[:3])
    example = read_example(folder)
    assert check_example(example, answer_of(folder, example)) is None
    predictions, _ = ours.predict_examples(data.dev.examples)
    metrics = ours.task.metrics(predictions, data.dev.examples)
    served = _load_pyfunc(str(folder)).predict(["ba keli"])
    np.testing.assert_allclose(served[0]["vector"], theirs.encode("ba keli"), atol=1e-5)
    signature, inputs = signature_and_example(folder)
    assert signature.outputs is None and inputs[0]
    assert metrics["ndcg_at_10"] == pytest.approx(results.figures["dev/ndcg_at_10"], abs=1e-4)


@pytest.fixture(scope="module")
def trained(storage, whole):
    """The folder of the whole run."""
    return exported(storage, whole[0])


def exported(storage, run):
    """The folder of a run."""
    (run.folder.path / "artifacts").mkdir(exist_ok=True)
    settings = run.parts.settings
    encoder = open_encoder(settings.model, storage, "sqlite://")
    data = read_task_data(settings, encoder.tokenizer)
    write_results(FinetuningJob(settings, open_storage(str(storage)), run.folder, encoder, data))
    return run.folder.model


def test_it_is_measured_as_any_model(storage, trained, tmp_path, capsys):
    given = ["--model", str(trained), "--data", str(storage / "data"), "--report", str(tmp_path)]
    assert evaluate.main([*given, "--storage", str(storage)]) == 0
    assert "ndcg_at_10" in capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["metrics"]["mrr_at_10"]["low"] < report["metrics"]["mrr_at_10"]["high"]
    assert report["mistakes"], "queries whose passage is not the first"
    assert "<html" in (tmp_path / "report.html").read_text()


def test_in_int8_its_search_is_measured(storage, trained, tmp_path, capsys):
    given = ["--model", str(trained), "--data", str(storage / "data"), "--storage", str(storage)]
    assert quantize.main([*given, "--output", str(tmp_path / "int8")]) == 0
    assert "ndcg_at_10" in capsys.readouterr().out
    texts = [" ".join(WORDS[:3]), " ".join(WORDS[3:8])]
    ours, small = (bert_core.load(each).embed(texts) for each in (trained, tmp_path / "int8"))
    assert not np.array_equal(ours, small) and ((ours * small).sum(1) > 0.98).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"options__matryoshka": "32"}, "a size of 32"),
        ({"model": "dense"}, "further (Dense)"),
        ({"model": "dense", "task": "sparse"}, "no masked-token head"),
    ],
)
def test_an_encoder_that_cannot_learn_it_is_refused(storage, change, said):
    model = storage / change.get("model", "encoder")
    if not model.exists():
        transformer = Transformer(str(storage / "encoder"))
        pooling = Pooling(transformer.get_embedding_dimension())
        SentenceTransformer(modules=[transformer, pooling, Dense(32, 8)], device="cpu").save(
            str(model)
        )
    settings = parse(arguments(storage, **{"task": "embedding"} | change | {"model": model}))
    encoder = open_encoder(settings.model, storage, "sqlite://")
    with pytest.raises(UserError) as refused:
        refuse_encoder(settings, encoder)
    assert said in str(refused.value)


SPARSE = {"task": "sparse", "epochs": 6, "options__query_prompt": "ba: "}
STRONG = {"options__query_flops": 0.01, "options__passage_flops": 0.01}


@pytest.fixture(scope="module")
def sparse(storage):
    run, outcome, _ = embed_here(storage, name="sparse", **SPARSE, **STRONG)
    assert outcome == Outcome(72, stopped=False)
    return run, exported(storage, run)


@pytest.mark.slow
def test_words_are_learned_that_a_query_and_its_passage_share(storage, sparse):
    measured = [each for _, each in records(sparse[0]) if "dev/loss" in each]
    assert measured[-1]["dev/ndcg_at_10"] > measured[0]["dev/ndcg_at_10"]
    assert measured[-1]["dev/passage_words"] < 0.9 * measured[0]["dev/passage_words"]
    for stop_after in (17, 8):
        embed_here(storage, stop_after, name="sparse-parts", **SPARSE, **STRONG)
    again, _, _ = embed_here(storage, name="sparse-parts", **SPARSE, **STRONG)
    assert records(again) == records(sparse[0])
    paths = [newest_checkpoint(each.folder.checkpoints)[0] for each in (again, sparse[0])]
    first, second = ((path / "model.safetensors").read_bytes() for path in paths)
    assert first == second


def test_the_folder_of_words_is_one_of_sparse_encoders(storage, sparse, capsys):
    run, folder = sparse
    theirs = SparseEncoder(str(folder), device="cpu")
    ours = bert_core.load(folder)
    texts = [" ".join(WORDS[:count]) for count in (1, 4, 10)]
    vocabulary = ours.tokenizer.get_vocab()
    for name, encode in ((None, theirs.encode), ("query", theirs.encode_query)):
        found = ours.embed_sparse(texts, prompt_name=name)
        expected = encode(texts, convert_to_sparse_tensor=False).numpy()
        for words, wanted in zip(found, expected, strict=True):
            assert len(words) == np.count_nonzero(wanted[: len(vocabulary)]) > 0
            assert list(words.values()) == sorted(words.values(), reverse=True)
            for word, weight in words.items():
                assert weight == pytest.approx(wanted[vocabulary[word]], abs=1e-5)
    long = ours.embed_sparse([" ".join(WORDS * 8)], overflow="window")[0]
    assert {*WORDS} & {*long}
    with pytest.raises(UserError, match=r"texts\[0\]"):
        ours.embed_sparse([" ".join(WORDS * 8)])
    with pytest.raises(UserError, match="a model of sparse vectors"):
        ours.embed(texts)
    served = _load_pyfunc(str(folder)).predict(texts[:1])
    assert served[0]["words"] == pytest.approx(ours.embed_sparse(texts[:1])[0])
    example = read_example(folder)
    assert check_example(example, answer_of(folder, example)) is None
    given = ["--model", str(folder), "--data", str(storage / "data"), "--storage", str(storage)]
    assert evaluate.main(given) == 0
    assert "passage_words" in capsys.readouterr().out


def test_words_that_are_weighed_otherwise_are_refused(sparse, tmp_path):
    folder = shutil.copytree(sparse[1], tmp_path / "other")
    path = folder / "1_SpladePooling" / "config.json"
    path.write_text(json.dumps({"pooling_strategy": "sum", "activation_function": "relu"}))
    with pytest.raises(UserError, match="pooling_strategy sum"):
        bert_core.load(folder).embed_sparse(["ba"])


def test_a_server_weighs_words_as_the_model_does(storage, sparse, trained):
    folders = {"sparse": sparse[1], "dense": trained, "encoder": storage / "encoder"}
    ours = bert_core.load(sparse[1])
    texts = [" ".join(WORDS[:3]), WORDS[5]]
    with serving(folders) as server:
        for name in (None, "query"):
            body = {"inputs": texts, "prompt_name": name}
            status, found = server.ask("/embed_sparse", body)
            assert status == 200
            for pairs, words in zip(found, ours.embed_sparse(texts, prompt_name=name), strict=True):
                named = {ours.tokenizer.id_to_token(each["index"]): each["value"] for each in pairs}
                named.pop(None, None)  # the table is longer than the vocabulary
                assert named == pytest.approx(words, abs=1e-5)
        status, found = server.ask("/embed_sparse", {"inputs": texts[0], "prompt_name": "other"})
        assert status == 422 and "other" in found["error"]
        status, found = server.ask("/embed_sparse?model=encoder", {"inputs": texts[0]})
        assert status == 200 and found[0]
        status, found = server.ask("/embed_sparse?model=dense", {"inputs": texts[0]})
        assert status == 422 and "sparse" in found["error"]
        status, found = server.ask("/embed", {"inputs": texts})
        expected = bert_core.load(trained).embed(texts)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        status, found = server.ask("/v1/fill-mask", {"inputs": "ba [MASK]"})
        assert status == 200 and found["model"] == "encoder"


def test_one_file_of_plain_text_is_enough(storage, tmp_path):
    texts = [[" ".join(WORDS[n % 9 :] * 3)] * 2 for n in range(150)]
    documents = [f"{number}\n{first}\n{second}" for number, (first, second) in enumerate(texts)]
    (tmp_path / "corpus.txt").write_text("\n\n".join(documents))
    data = tmp_path / "corpus.txt"
    settings = parse(arguments(storage, task="text_search", data=data))
    encoder = open_encoder(settings.model, storage, "sqlite://")
    read = read_task_data(settings, encoder.tokenizer)
    assert len(read.train.examples) > 100 and len(read.dev.examples) > 3
