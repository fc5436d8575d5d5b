import json

import pytest
from finetuning_runs import arguments, write_encoder, write_task
from safetensors.torch import load_file, save_file

from bert_core.errors import UserError
from bert_core.tokenizer import load_tokenizer
from workflows.finetune import parse
from workflows.finetuning.data import open_encoder, read_task_data


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
