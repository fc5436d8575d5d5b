"""The dropout of fine-tuning by default: the paper's, or that of the modern block's folder."""

import json

import pytest
import yaml
from finetuning_runs import WORDS, arguments, write_encoder, write_task
from sweep_runs import sweep_settings

from bert_core.config import ModelConfig, ModernConfig
from bert_core.errors import UserError
from workflows.finetune import opened_job, parse
from workflows.finetuning.results import _approach
from workflows.finetuning.settings import DropoutSettings, read_settings
from workflows.runs.storage import open_storage
from workflows.sweeps.sweep import opened_sweep

PAPERS = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
NONE = dict.fromkeys(PAPERS, 0.0)


@pytest.fixture
def storage(tmp_path):
    """Data, an encoder of each block; that of the paper's says another dropout."""
    write_task(tmp_path / "data")
    path = write_encoder(tmp_path / "encoder") / "config.json"
    config = json.loads(path.read_text()) | {"hidden_dropout_prob": 0.3}
    path.write_text(json.dumps(config))
    (path.parent / "checksums").unlink()
    write_encoder(tmp_path / "modern", kind=ModernConfig)
    return tmp_path


def job_of(storage, *, name=None, **changed):
    given = arguments(storage, **changed)
    if name is None:
        at = given.index("--name")
        given[at : at + 2] = []
    return opened_job(parse(given), open_storage(str(storage)))


def test_what_is_given_counts_and_the_rest_is_that_of_the_block():
    given = DropoutSettings(hidden_dropout_prob=0.2)
    assert given.of(ModelConfig()).model_dump() == PAPERS | {"hidden_dropout_prob": 0.2}
    modern = ModernConfig(attention_probs_dropout_prob=0.05)
    assert DropoutSettings().of(modern).model_dump() == NONE | {
        "attention_probs_dropout_prob": 0.05
    }
    zero = DropoutSettings(hidden_dropout_prob=0.0)
    assert zero.of(ModelConfig()).hidden_dropout_prob == 0


def test_by_default_an_encoder_of_the_papers_block_has_its_run_of_old(storage):
    with job_of(storage) as job:
        name, settings = job.folder.name, job.settings
        recipe = json.loads((job.folder.path / "recipe.json").read_text())
    assert settings.recipe()["dropout"] == PAPERS == settings.encoder_changes()
    assert recipe["dropout"] == PAPERS
    told = {f"dropout.{field}": value for field, value in PAPERS.items()}
    with job_of(storage, **told) as job:
        assert job.folder.name == name


def test_a_modern_encoder_learns_without_unless_it_is_told(storage):
    with job_of(storage, model=storage / "modern") as job:
        settings = job.settings
        passed = job.worker_job().open_parts.args[0]
    assert settings.encoder_changes() == NONE == settings.recipe()["dropout"]
    assert _approach(settings)["Dropout"] == 0
    assert yaml.safe_load(yaml.safe_dump(settings.portable()))["dropout"] == NONE
    assert read_settings(passed).encoder_changes() == NONE
    told = {"model": storage / "modern", "dropout.hidden_dropout_prob": 0.1}
    with job_of(storage, **told) as job:
        assert job.settings.encoder_changes() == NONE | {"hidden_dropout_prob": 0.1}


def opened(storage, *axes, **changed):
    return opened_sweep(sweep_settings(storage, *axes, **changed), open_storage(str(storage)))


def test_a_sweep_has_the_dropout_of_its_encoder(storage):
    with opened(storage, "epochs=1,2") as sweep:
        name = sweep.folder.name
        assert all(trial.job.settings.recipe()["dropout"] == PAPERS for trial in sweep.trials)
    told = {f"dropout.{field}": value for field, value in PAPERS.items()}
    with opened(storage, "epochs=1,2", **told) as sweep:
        assert sweep.folder.name == name
    with opened(storage, "epochs=1,2", model=storage / "modern") as sweep:
        assert {str(trial.job.settings.encoder_changes()) for trial in sweep.trials} == {str(NONE)}


def test_where_encoders_are_the_axis_each_has_its_own(storage):
    encoders = storage / "encoder", storage / "modern"
    with opened(storage, f"model={encoders[0]},{encoders[1]}") as sweep:
        found = [trial.job.settings.encoder_changes() for trial in sweep.trials]
        names = [trial.name for trial in sweep.trials]
    assert found == [PAPERS, NONE]
    for encoder, name in zip(encoders, names, strict=True):
        with opened(storage, "epochs=2", model=encoder) as sweep:
            assert [trial.name for trial in sweep.trials] == [name], "the run of its encoder alone"


def test_bare_texts_are_not_learned_without_dropout(storage):
    for split in ("train", "dev"):
        lines = [{"text": word} for word in WORDS] if split == "train" else [
            {"query": word, "passage": other, "score": number}
            for number, (word, other) in enumerate(zip(WORDS, WORDS[1:], strict=False))
        ]  # fmt: skip
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (storage / "texts").mkdir(exist_ok=True)
        (storage / "texts" / f"{split}.jsonl").write_text(text)
    given = {"task": "embedding", "data": storage / "texts", "options.kind": "texts"}
    with job_of(storage, **given):
        pass
    given |= {"model": storage / "modern"}
    with pytest.raises(UserError, match="add --dropout.hidden_dropout_prob 0.1") as raised:
        job_of(storage, **given).__enter__()
    assert "\n" not in str(raised.value)
    with job_of(storage, **given, **{"dropout.hidden_dropout_prob": 0.1}) as job:
        assert job.settings.encoder_changes()["attention_probs_dropout_prob"] == 0
