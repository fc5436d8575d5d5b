"""The drift figures of small models are those of the rows and answers that they were told."""

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from running import SMALL_TASKS

from bert_core.features.units import cut_texts, unit_rows
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tasks.answers import LabelScores
from bert_core.tasks.catalog import TASKS, task_config
from bert_core.tasks.classification import Text
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Question
from bert_core.tasks.text_tagging import TextTagging
from bert_core.training_statistics import Lengths, TrainingStatistics
from serving.models import close_models, load_models
from serving.telemetry.drift import WINDOW, Drift

LONG = "the cat sat on a mat " * 6


@pytest.fixture(scope="module")
def models(small_models, tmp_path_factory):
    """Small models; the one of sentiment has learned from short texts, half of them good."""
    _, model, tokenizer = load_model_folder(small_models["sentiment"])
    folder = tmp_path_factory.mktemp("models") / "sentiment"
    statistics = TrainingStatistics(
        num_examples=4,
        unknown_token_share=0.01,
        lengths=Lengths.of(np.array([3, 6, 7, 8])),
        label_shares={"bad": 0.5, "good": 0.5},
    )
    config = task_config(*SMALL_TASKS["sentiment"])
    save_model_folder(folder, model, tokenizer, "", extra_config=config, statistics=statistics)
    found = load_models({**small_models, "sentiment": folder})
    yield found
    close_models(list(found.values()))


class Figures:
    """What a registry shows of one model."""

    def __init__(self):
        self.registry = CollectorRegistry()
        self.drift = Drift(self.registry)

    def ask(self, model, examples, codec=None):
        """Asks a model, and has the figures note it."""
        codec = codec or model.task
        rows = codec.encode(examples, model.tokenizer)
        (outputs,) = model.batcher.submit(model.work(rows)).result()
        found = codec.decode(outputs, rows, examples)
        self.drift.note(model, rows, found)
        return found

    def of(self, model, name, **labels):
        """The value of a sample, or None where there is none."""
        labels |= {"model": model.name, "version": model.version or ""}
        text = generate_latest(self.registry).decode()
        samples = [
            sample
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"bertline_{name}" and sample.labels == labels
        ]
        assert len(samples) <= 1
        return samples[0].value if samples else None


@pytest.fixture
def figures(models):
    made = Figures()
    for model in models.values():
        made.drift.add(model)
    return made


def texts(*given):
    return [Text(each, None, None) for each in given]


def test_tokens_and_lengths_are_counted(models, figures):
    model = models["sentiment"]
    figures.ask(model, texts("the cat", "the 中", "cat " * 10))
    assert figures.of(model, "text_tokens_total") == 14
    assert figures.of(model, "unknown_tokens_total") == 1
    counts = {
        edge: figures.of(model, "text_length_bucket", le=edge)
        for edge in ("4.0", "8.0", "16.0", "1024.0", "+Inf")
    }
    assert counts == {"4.0": 2, "8.0": 2, "16.0": 3, "1024.0": 3, "+Inf": 3}
    assert figures.of(model, "text_length_count") == 3
    assert figures.of(model, "text_length_sum") == 4 + 4 + 12
    assert figures.of(models["topics"], "text_tokens_total") == 0


def test_labels_are_counted_as_they_were_found(models, figures):
    def counted(model, *labels):
        return {label: figures.of(model, "found_labels_total", label=label) for label in labels}

    sentiment, topics, grade = (models[name] for name in ("sentiment", "topics", "grade"))
    given = texts("the cat", "dogs run", "a mat", LONG)
    found = [each["label"] for each in figures.ask(sentiment, given)]
    figures.ask(sentiment, given, LabelScores(sentiment.task, "none"))
    assert counted(sentiment, *set(found)) == {each: 2 * found.count(each) for each in set(found)}

    several = [name for each in figures.ask(topics, given) for name in each["labels"]]
    figures.ask(topics, given, LabelScores(topics.task))  # which of them count is not said
    expected = {name: several.count(name) for name in topics.task.labels}
    assert counted(topics, *topics.task.labels) == expected and several

    figures.ask(grade, given)
    assert figures.of(grade, "text_length_count") == 4

    entities = models["entities"]
    words = ["the cat sat on a mat, dogs run far", "away"]
    found = figures.ask(entities, words, TextTagging(entities.task))
    figures.ask(entities, words, TextTagging(entities.task, "simple"))
    shares = dict.fromkeys(("O", "PER", "LOC"), 0)
    for each in (entity for text in found for entity in text["entities"]):
        shares[each["type"]] += each["end_word"] - each["start_word"]
    shares["O"] = 11 - sum(shares.values())
    assert counted(entities, "O", "PER", "LOC") == shares and shares["PER"] + shares["LOC"]
    assert figures.of(entities, "text_length_count") == 4


def test_questions_may_have_no_answer(models, figures):
    answers = models["answers"]
    strict = answers.task.model_copy(update={"no_answer": True, "null_threshold": -1e9})
    lax = answers.task.model_copy(update={"no_answer": True, "null_threshold": 1e9})
    question = [Question("", "the cat", "dogs run far", None)]
    figures.ask(answers, question)  # of a model that was not taught that there may be none
    assert figures.of(answers, "found_labels_total", label="answer") is None
    taught = replace(answers, name="taught", task=QuestionAnswering(no_answer=True))
    figures.drift.add(taught)
    for codec in (strict, lax, lax):
        figures.ask(taught, question, codec)
    assert figures.of(taught, "found_labels_total", label="no_answer") == 1
    assert figures.of(taught, "found_labels_total", label="answer") == 2


def test_features_count_for_models_whose_task_they_are(models, figures):
    tokens = cut_texts(models["encoder"].tokenizer, ["the cat", LONG], offsets=False)
    tokenizer = models["encoder"].tokenizer
    rows = unit_rows(tokens, tokenizer, unit="text", pooling="mean", max_length=64).rows
    embedding = replace(models["encoder"], name="search", task=TASKS["embedding"])
    figures.drift.add(embedding, is_active=True)
    for model in (models["encoder"], models["sentiment"], embedding):
        figures.drift.note(model, rows, None)
    assert figures.of(models["encoder"], "text_length_count") == 2
    assert figures.of(models["sentiment"], "text_length_count") == 0
    assert figures.of(embedding, "text_length_count") == 2, "features are its task"


def test_the_index_is_of_the_last_texts_and_tells_of_change(models, figures):
    model = models["sentiment"]
    name = "population_stability_index"

    def indices():
        return [figures.of(model, name, of=of) for of in ("length", "labels")]

    as_trained = texts(*["cat"] * 1, *["the cat sat on"] * 1, *["a cat sat on a"] * 2)
    for _ in range(WINDOW // 4 - 1):
        figures.ask(model, as_trained)
    assert all(map(math.isnan, indices()))
    figures.ask(model, as_trained)
    assert indices()[0] == 0
    for _ in range(WINDOW // 40):
        figures.ask(model, texts(LONG) * 40)
    found = figures.ask(model, texts(LONG))
    length, labels = indices()
    assert length > 2 and labels > 1, "all are long, and have one label"
    figures.ask(model, as_trained * (WINDOW // 4))
    assert indices()[0] == 0
    assert found[0]["label"] in model.task.labels
    assert figures.of(models["topics"], name, of="length") is None, "nothing is known of training"


def test_the_training_data_stand_beside_it(models, figures):
    model = models["sentiment"]
    assert figures.of(model, "training_unknown_token_share") == 0.01
    shares = [figures.of(model, "training_text_length_share", le=le) for le in ("4.0", "8.0")]
    assert shares == [0.25, 1.0]
    assert figures.of(model, "training_label_share", label="good") == 0.5
    assert figures.of(models["topics"], "training_unknown_token_share") is None


def test_what_is_removed_is_gone_and_one_loaded_twice_is_one(models, figures):
    model = models["sentiment"]
    again = replace(model)
    figures.drift.add(again)
    for each in (model, again):
        figures.ask(each, texts("the cat"))
    assert figures.of(model, "text_length_count") == 2
    figures.drift.remove(model)
    figures.ask(model, texts("the cat"))
    assert figures.of(model, "text_length_count") == 2
    figures.drift.remove(again)
    figures.drift.remove(again)
    assert figures.of(model, "text_length_count") is None
    assert figures.of(models["topics"], "text_length_count") == 0


@pytest.fixture
def without_version(models, tmp_path):
    """Two folders of one model, neither with checksums."""
    both = []
    for number in range(2):
        shutil.copytree(models["topics"].folder, tmp_path / str(number))
        (tmp_path / str(number) / "checksums").unlink()
        both.append(replace(models["topics"], folder=tmp_path / str(number)))
    return both


def test_a_canary_without_a_version_hides_nothing(figures, without_version):
    active, canary = without_version
    figures.drift.add(active)
    figures.drift.add(canary, is_active=False)
    figures.ask(active, texts("the cat"))
    figures.ask(canary, texts("the cat"))
    figures.ask(canary, texts("the cat"))
    assert figures.of(active, "text_length_count") == 1


def test_what_has_no_version_is_told_apart_by_its_folder(figures, without_version):
    for each in without_version:
        figures.drift.add(each)
    first, last = without_version
    figures.ask(first, texts("the cat"))
    assert figures.of(last, "text_length_count") == 0, "the last one is shown"
    figures.ask(last, texts("the cat"))
    assert figures.of(last, "text_length_count") == 1
