import json
import shlex

import pytest
from finetuning_runs import arguments, write_encoder, write_tagged, write_task
from safetensors.torch import load_file, save_file
from sweep_runs import sweep_settings

from bert_core.errors import UserError
from bert_core.features.sentence_pooling import SentencePooling, sentence_modules
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tasks.classification import Classification
from bert_core.tasks.text_embedding import TextEmbedding
from bert_core.tokenizer import load_tokenizer
from workflows.finetune import announce, opened_job, parse, read_inputs
from workflows.finetuning.data import other_vectors, read_task_data
from workflows.model_location import open_encoder
from workflows.runs.storage import open_storage
from workflows.sweeps.sweep import opened_sweep
from workflows.tune import announce as announce_sweep


@pytest.fixture
def storage(tmp_path):
    write_task(tmp_path / "data")
    write_encoder(tmp_path / "encoder")
    return tmp_path


def test_the_hash_is_that_of_what_is_learned_not_of_where_it_lies(storage):
    tokenizer = load_tokenizer(storage / "encoder")

    def read(**changed):
        return read_task_data(parse(arguments(storage, **changed)), tokenizer)

    data = read()
    assert (len(data.train.examples), len(data.dev.examples)) == (90, 40)
    assert data.task.labels == ("down", "up")
    write_task(storage / "copy")
    assert read(data=storage / "copy").sha256 == data.sha256
    assert read(**{"options.max_length": 8}).sha256 != data.sha256
    path = storage / "copy" / "dev.tsv"
    path.write_text(path.read_text().replace("\tup", "\tdown", 1))
    assert read(data=storage / "copy").sha256 != data.sha256


def test_an_encoder_is_a_folder_or_the_name_of_a_run(storage):
    folder = open_encoder(str(storage / "encoder"), storage, "sqlite://")
    (storage / "runs" / "pretrained").mkdir(parents=True)
    (storage / "encoder").rename(storage / "runs" / "pretrained" / "model")
    run = open_encoder("pretrained", storage, "sqlite://")
    assert run.path == storage / "runs" / "pretrained" / "model"
    assert run.sha256 == folder.sha256 and run.config.max_position_embeddings == 32
    with pytest.raises(UserError, match="no such model: pretraned"):
        open_encoder("pretraned", storage, "sqlite://")


def test_weights_of_an_encoder_may_lie_in_shards(storage):
    folder = storage / "encoder"
    whole = open_encoder(str(folder), storage, "sqlite://").sha256
    weights = load_file(folder / "model.safetensors")
    files = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(weights)}
    for file in set(files.values()):
        some = {name: each for name, each in weights.items() if files[name] == file}
        save_file(some, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (folder / "model.safetensors").unlink()
    (folder / "checksums").unlink()
    in_shards = open_encoder(str(folder), storage, "sqlite://").sha256
    other = {name: each + 1 if each.is_floating_point() else each for name, each in some.items()}
    save_file(other, folder / file, metadata={"format": "pt"})
    assert len({whole, in_shards, open_encoder(str(folder), storage, "sqlite://").sha256}) == 3


def test_data_may_be_a_data_set_of_the_hub(storage, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    tokenizer = load_tokenizer(storage / "encoder")
    folder = tmp_path / "copy"
    folder.mkdir()
    for split, name in (("train", "train"), ("dev", "validation")):
        lines = (storage / "data" / f"{split}.tsv").read_text().splitlines()[1:]
        rows = [dict(zip(("text", "label"), line.split("\t"), strict=True)) for line in lines]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    of_files, of_hub = (
        read_task_data(parse(arguments(storage, data=data)), tokenizer)
        for data in (storage / "data", f"hf://{folder}")
    )
    assert of_hub.sha256 == of_files.sha256


def keep_labels(path, wanted):
    """Empties the labels of a task's file, but for those of the rows that are wanted."""
    header, *lines = path.read_text().splitlines()
    texts = [line.split("\t") for line in lines]
    rows = [f"{text}\t{label if wanted(n) else ''}" for n, (text, label) in enumerate(texts)]
    path.write_text("\n".join([header, *rows]) + "\n")


def test_examples_without_an_answer_are_left_out_and_counted(storage):
    tokenizer = load_tokenizer(storage / "encoder")
    for split in ("train", "dev"):
        keep_labels(storage / "data" / f"{split}.tsv", lambda number: number % 2)
    data = read_task_data(parse(arguments(storage)), tokenizer)
    for split, count in ((data.train, 45), (data.dev, 20)):
        assert len(split.examples) == split.rows.num_items == count
        assert all(example.answer in ("up", "down") for example in split.examples)
        assert split.rows.tally["without a label"] == count


def test_every_split_is_tallied_by_the_same_lines_in_finetune_and_tune(storage, capsys):
    for split in ("train", "dev"):
        keep_labels(storage / "data" / f"{split}.tsv", lambda number: number % 2)
    test = {"test": str(storage / "data" / "dev.tsv")}
    data = read_task_data(parse(arguments(storage, **test)), load_tokenizer(storage / "encoder"))
    counts = {"train": 45, "dev": 20, "test": 20}
    expected = [f"{name:8} 0 examples truncated, {n} without a label" for name, n in counts.items()]
    assert data.tally_lines == expected
    place = open_storage(str(storage))
    with opened_job(parse(arguments(storage, **test)), place) as job:
        announce(job)
    with opened_sweep(sweep_settings(storage), place) as sweep:
        announce_sweep(sweep)
    printed = capsys.readouterr().out
    assert "\n".join(expected) in printed and printed.count(expected[0]) == 2
    assert printed.count(expected[1]) == 2


@pytest.mark.parametrize("split", ["train", "dev"])
def test_a_split_without_answers_is_refused(storage, split):
    tokenizer = load_tokenizer(storage / "encoder")
    keep_labels(storage / "data" / f"{split}.tsv", lambda _: False)
    with pytest.raises(UserError, match=f"no example has an answer: .*, {split} "):
        read_task_data(parse(arguments(storage)), tokenizer)
    path = storage / "data" / f"{split}.tsv"
    path.write_text(path.read_text().replace("label", "mood", 1))
    with pytest.raises(UserError, match=f", {split}: text, mood .there is no column label: name"):
        read_task_data(parse(arguments(storage)), tokenizer)
    path.write_text("text\tlabel\n")
    with pytest.raises(UserError, match=f"no examples in the {split} split"):
        read_task_data(parse(arguments(storage)), tokenizer)


def test_a_field_that_is_empty_everywhere_is_no_missing_column(storage):
    path = storage / "all.jsonl"
    row = {"text": "ba keli", "meta": {"label": None}}
    path.write_text(f"{json.dumps(row)}\n" * 5)
    given = [*arguments(storage, data=path, split=0.2), "--options.label_column", "meta.label"]
    with pytest.raises(UserError, match=r"no example has an answer: .*give data with answers"):
        read_task_data(parse(given), load_tokenizer(storage / "encoder"))


ANSWERED = {
    "tagging": {"words": ["ba", "keli"], "tags": ["B-ONE", "O"]},
    "squad": {
        "id": "1", "context": "ba keli", "question": "to",
        "answers": {"text": ["ba"], "answer_start": [0]},
    },
    "multiple_choice": {"context": "ba", "choices": ["to", "keli"], "label": 0},
    "stsb": {"sentence1": "ba", "sentence2": "to", "score": 2.5},
    "classification": {"text": "ba", "label": "up"},
}  # fmt: skip
ANSWER = {"tagging": "tags", "squad": "answers", "stsb": "score"}


@pytest.mark.parametrize("task", ANSWERED)
@pytest.mark.parametrize("split", ["train", "dev"])
@pytest.mark.parametrize("missing", [None, float("nan")])
def test_the_rule_is_one_for_every_task(storage, task, split, missing):
    tokenizer = load_tokenizer(storage / "encoder")
    answered = ANSWERED[task]
    unanswered = answered | {ANSWER.get(task, "label"): missing}
    other = {"down": {"text": "to", "label": "down"}} if task == "classification" else {}

    def write(of_split):
        for name in ("train", "dev"):
            rows = of_split if name == split else [answered, *other.values()]
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (storage / "data" / f"{name}.jsonl").write_text(lines)
            (storage / "data" / f"{name}.tsv").unlink(missing_ok=True)
        given = arguments(storage, task=task, **{"options.max_length": 16})
        return read_task_data(parse(given), tokenizer)

    data = write([answered, unanswered, *other.values()])
    found = data.train if split == "train" else data.dev
    assert len(found.examples) == 1 + len(other)
    assert sum(found.rows.tally.values()) == 1
    with pytest.raises(UserError, match=f"no example has an answer: .*, {split} "):
        write([unanswered, unanswered])


def test_answers_that_are_all_lost_leave_nothing_to_learn(storage):
    row = ANSWERED["squad"] | {"answers": {"text": ["rume"], "answer_start": [0]}}
    for name in ("train", "dev"):
        (storage / "data" / f"{name}.jsonl").write_text(json.dumps(row))
    with pytest.raises(UserError, match="nothing to learn: answers not found at their"):
        read_task_data(parse(arguments(storage, task="squad")), load_tokenizer(storage / "encoder"))


def test_odd_labels_are_told_before_training(storage, capsys):
    path = storage / "data" / "train.tsv"
    path.write_text(path.read_text().replace("\tup", "\tUp", 3) + "ba\tNone\n")
    settings = parse(arguments(storage))
    _, data = read_inputs(settings, open_storage(settings.storage))
    assert data.task.labels == ("None", "Up", "down", "up")
    said = capsys.readouterr().err
    assert said.count("warning: ") == 2 and "'Up', 'up'" in said and "drop_labels=None" in said
    confirmed = parse(arguments(storage, **{"options.labels": "None,Up,down,up"}))
    assert read_inputs(confirmed, open_storage(settings.storage))[1].warnings == ()
    settings = parse(arguments(storage, **{"options.drop_labels": "None"}))
    assert read_inputs(settings, open_storage(settings.storage))[1].task.labels == (
        "Up", "down", "up",
    )  # fmt: skip


def test_patience_without_an_evaluation_to_spare_is_told(storage, capsys):
    def warned(**changed):
        settings = parse(arguments(storage, name=f"run-{len(changed)}", epochs=3, **changed))
        with opened_job(settings, open_storage(settings.storage)) as job:
            announce(job)
        return capsys.readouterr().err

    assert "warning: --patience 2 cannot" in warned(patience=2)
    assert warned(patience=2, **{"evaluation.every_steps": 1}) == ""


def test_splits_may_be_files_of_any_name(storage, tmp_path):
    tokenizer = load_tokenizer(storage / "encoder")
    write_tagged(storage / "tagged")
    names = {"train": "wnut17train.conll", "dev": "emerging.dev.conll"}
    for split, name in names.items():
        (storage / "tagged" / f"{split}.txt").rename(tmp_path / name)
    (tmp_path / "emerging.test.annotated").write_text("ba B-ONE\nto O\n\nkeli B-TWO\n")
    published = {split: tmp_path / name for split, name in names.items()}
    published["test"] = tmp_path / "emerging.test.annotated"

    def read(**changed):
        given = [text for name, path in changed.items() for text in (f"--{name}", str(path))]
        rest = arguments(storage)[2:]  # without --data
        return read_task_data(parse(["--task", "ner", *given, *rest]), tokenizer)

    data = read(**published)
    assert (len(data.train.examples), len(data.dev.examples)) == (90, 40)
    assert data.test is not None and len(data.test.examples) == 2
    write_tagged(storage / "tagged")
    assert read(data=storage / "tagged").sha256 == data.sha256, "test decides nothing"
    mixed = read(data=storage / "tagged", dev=published["test"])
    assert (len(mixed.train.examples), len(mixed.dev.examples)) == (90, 2)
    with pytest.raises(UserError, match="no data: --data .*--train FILE and --dev FILE"):
        read(train=published["train"])
    with pytest.raises(UserError, match="one file, and two are needed: .*--dev FILE"):
        read(data=published["train"], dev=published["dev"])
    with pytest.raises(UserError, match="no such file or folder: .*nowhere"):
        read(data=storage / "tagged", test=tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ("squad --options.labels a,b", "labels has no effect on this task: --options.labels"),
        ("multiple_choice --options.labels a,b", "labels has no effect"),
        ("stsb --options.labels a,b", "labels is not for numbers"),
        ("squad --options.stride 64 --options.overflow right", "stride needs overflow window"),
        ("squad --options.null_threshold 1", "null_threshold needs no_answer"),
        ("ner --options.scheme none --options.invalid_tags refuse", "invalid_tags"),
        ("docs_library --options.text_column a", "text_column has no effect on this task"),
        ("classification --options.labels up,up", "a label is repeated"),
    ],
)
def test_an_option_that_says_nothing_is_refused(storage, options, match):
    tokenizer = load_tokenizer(storage / "encoder")
    with pytest.raises(UserError, match=match):
        read_task_data(parse(["--task", *options.split(), *arguments(storage)]), tokenizer)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"evaluation.metric": "acuracy"}, "unknown figure, did you mean accuracy"),
        ({"freeze_layers": 2}, "2 layers of 1.*--freeze_layers 1"),
        ({"reinit_layers": 3}, "3 layers of 1.*--reinit_layers 1"),
        ({"options.classifier_pooling": "mean"}, "reads .CLS., not the mean.*classifier_pooling"),
    ],
)
def test_figures_and_layers_that_are_not_there_are_refused_before_work(storage, changed, message):
    settings = parse(arguments(storage, **changed))
    with pytest.raises(UserError, match=message) as error:
        read_inputs(settings, open_storage(settings.storage))
    assert "\n" not in str(error.value)
    known = parse(arguments(storage, **{"evaluation.metric": "f1"}))
    assert read_inputs(known, open_storage(known.storage))[1].task.criterion == "accuracy"


def test_an_encoder_that_makes_its_vectors_otherwise_is_told_with_the_remedy(tmp_path):
    write_encoder(tmp_path / "encoder")
    _, model, tokenizer = load_model_folder(tmp_path / "encoder")
    said = SentencePooling("cls", prompts={"query": "find: ", "passage": "text: "}, max_length=16)
    modules = sentence_modules(said, model.config.hidden_size)
    save_model_folder(tmp_path / "vectors", model, tokenizer, modules=modules)
    encoder = open_encoder(str(tmp_path / "vectors"), tmp_path, "sqlite://")
    task = TextEmbedding()
    (line,) = other_vectors(task, encoder)
    given = shlex.split(line.partition(" add ")[2])
    options = dict(zip(given[::2], given[1::2], strict=True))
    same = task.model_copy(
        update={name.removeprefix("--options."): value for name, value in options.items()}
    )
    assert other_vectors(same, encoder) == []
    assert (same.pooling, same.query_prompt, same.passage_prompt) == ("cls", "find: ", "text: ")
    plain = open_encoder(str(tmp_path / "encoder"), tmp_path, "sqlite://")
    assert other_vectors(task, plain) == other_vectors(Classification(), encoder) == []
