import pytest

from bert_core.errors import UserError
from workflows.ablations.settings import (
    finetuning_rate,
    learned_tasks,
    parse,
    rate_for,
    tune_settings,
)
from workflows.sweeps.settings import trial_settings


def parsed(*arguments):
    return parse(["--study", "objective", *arguments])


def sweep_of(settings, *, fewest_layers=2):
    (learned,) = learned_tasks(settings)
    return tune_settings(settings, learned, ["a-1", "b-2"], "a-1", fewest_layers=fewest_layers)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--rows.objective", "mlm"], "what the study varies cannot be given: --rows.objective"),
        (["--rows.objective=mlm"], "what the study varies cannot be given: --rows.objective"),
        (["--task", "mprc=here"], "unknown task, did you mean mrpc"),
        (["--task", "mrpc"], "a task without data: --task mrpc"),
        (["--task", "mrpc="], "a task without data"),
        (["--task", "mrpc=a", "--task", "mrpc=b"], "a task given twice: --task mrpc=b"),
        (["--task", "mrpc:features=a"], "features are for tags of words: --task mrpc:features"),
        (["--task", "ner:feature=a"], "no approach: --task ner:feature=a"),
        (["--task", "squad=a"], "rows of 384 tokens, the encoders have 128 positions"),
        (["--variants", "mlm", "ltr"], "unknown variant: --variants ltr (one of mlm_nsp, mlm,"),
        (["--tracking.register_as", "bert"], "an ablation registers no model"),
        (["--finetuning.epoch", "3"], "unknown setting, did you mean finetuning.epochs"),
        (["--finetuning.epochs", "0"], "greater than or equal to 1: --finetuning.epochs"),
    ],
)
def test_what_is_wrong_is_named(arguments, expected):
    with pytest.raises(UserError) as caught:
        parsed(*arguments)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_each_study_keeps_its_own_fields():
    for study, option in (
        ("masking", "--rows.mask-token-share"),
        ("masking_rate", "--rows.masked_share"),
        ("size", "--model.intermediate_size"),
    ):
        with pytest.raises(UserError, match=f"--study {study} sets it"):
            parse(["--study", study, option, "1"])
    assert parse(["--study", "size", "--rows.objective", "mlm"]).rows.objective == "mlm"
    assert parse(["--study", "masking", "--model.num_hidden_layers", "1"])


def test_tasks_have_a_name_an_approach_and_data():
    tasks = learned_tasks(parsed("--task", "mrpc=/data/a=b", "ner:features=/data/ner"))
    assert [(each.key, each.task, each.approach, each.data) for each in tasks] == [
        ("mrpc", "mrpc", "finetune", "/data/a=b"),
        ("ner:features", "ner", "features", "/data/ner"),
    ]
    assert [each.data for each in learned_tasks(parsed())] == ["docs://"] * 3


def test_the_trials_are_as_the_ablation_says():
    settings = parsed(
        "--task", "docs_library=docs://numpy", "--seeds", "4", "--finetuning.max_examples", "500",
        "--finetuning.epochs", "2", "--finetuning.batch_size", "8", "--precision", "bfloat16",
        "--tracking.uri", "http://here", "--seed", "7", "--at_once", "3",
    )  # fmt: skip
    sweep = sweep_of(settings)
    assert sweep.axis == ("model=a-1,b-2",) and sweep.seeds == 4 and sweep.at_once == 3
    assert sweep.tracking.experiment == "ablations" and sweep.tracking.uri == "http://here"
    trial = trial_settings(sweep, {"model": "b-2"}, 3)
    assert (trial.model, trial.seed, trial.data) == ("b-2", 3, "docs://numpy")
    assert (trial.epochs, trial.batch_size, trial.precision) == (2, 8, "bfloat16")
    assert trial.options.max_examples == 500 and trial.storage == settings.storage
    assert sweep.seed == 0, "the seed of the ablation is that of the pre-training"


def test_features_are_of_layers_that_all_encoders_have():
    settings = parsed("--task", "ner:features=d", "--model.size", "mini")
    few, enough = sweep_of(settings, fewest_layers=3), sweep_of(settings, fewest_layers=4)
    assert few.strategy == "last" and enough.strategy == "concat_last_four"
    assert enough.tagger.lstm_size == 256 and enough.epochs == 10


def test_narrow_encoders_learn_at_higher_rates():
    assert rate_for(768) == rate_for(1024) == 5e-5
    assert rate_for(128) == rate_for(64) == 1e-3
    assert rate_for(128) > rate_for(256) == 3e-4 > rate_for(512) > rate_for(768)
    assert finetuning_rate(parsed("--preset", "base")) == 5e-5
    assert finetuning_rate(parsed("--finetuning.peak_learning_rate", "2e-5")) == 2e-5
    sweep = sweep_of(parsed("--task", "mrpc=d", "--model.size", "base"))
    assert sweep.optimizer.peak_learning_rate == 5e-5
