"""The settings of an ablation, and the studies with their variants."""

import pytest

from bert_core.config import ModernConfig
from bert_core.errors import UserError
from bert_core.settings import rate_for
from workflows.ablations.settings import (
    LearningSettings,
    finetuning_rate,
    learned_tasks,
    parse,
    tune_settings,
)
from workflows.ablations.studies import (
    ADAPTATION,
    STUDIES,
    chosen_variants,
    find_study,
    shapes_around,
    variant_settings,
)
from workflows.paper.published import TABLE_5, TABLE_6, TABLE_8
from workflows.pretraining.settings import PretrainSettings
from workflows.settings import field_names, parse_command_line, settings_hash
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
        (["--cluster.num-workers=4"], "one worker each: --cluster.num_workers (leave it out"),
        (["--variants", "mlm", "ltr"], "unknown variant: --variants ltr (one of mlm_nsp, mlm,"),
        (["--tracking.register_as", "bert"], "an ablation registers no model"),
        (["--finetuning.epoch", "3"], "unknown setting, did you mean finetuning.epochs"),
        (["--minutes", "inf"], "finite number: --minutes"),
        (["--gpus_per_trial", "inf"], "finite number: --gpus_per_trial"),
        (["--finetuning.peak_learning_rate", "inf"], "finite number: --finetuning.peak_learning"),
        (["--phases", "[]"], "at least 1 item"),
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
    assert [(task.key, task.task, task.approach, task.data) for task in tasks] == [
        ("mrpc", "mrpc", "finetune", "/data/a=b"),
        ("ner:features", "ner", "features", "/data/ner"),
    ]
    assert [task.data for task in learned_tasks(parsed())] == ["docs://"] * 3


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


def settings_of(*arguments):
    return parse_command_line(PretrainSettings, list(arguments))


@pytest.mark.parametrize("name", [name for name in STUDIES if name != ADAPTATION])
def test_a_study_varies_its_own_fields_and_nothing_else(name):
    one_text = ("--rows.objective", "mlm", "--rows.input_format", "full_sentences")
    settings = settings_of("--preset", "mini", *(one_text if name == "block" else ()))
    before = settings.model_dump(exclude={"name"})
    seen = []
    for variant in chosen_variants(name, settings, ()):
        varied = variant_settings(settings, variant)
        after = varied.model_dump(exclude={"name"})
        for field in variant.changes:
            section, _, own = field.partition(".")
            study = find_study(name)
            assert field in (*study.fields, *study.derived)
            if own:
                del after[section][own]
            else:
                del after[section]
        for section in ("rows", "model", "batch", "optimizer", "evaluation"):
            assert after[section].items() <= before[section].items()
            del after[section]
        assert after == {key: each for key, each in before.items() if key in after}
        seen.append(varied.recipe())
    assert all(seen.count(each) == 1 for each in seen), "no two are the same"
    assert set(find_study(name).fields) <= set(field_names(PretrainSettings))


@pytest.mark.parametrize("name", [name for name in STUDIES if name != ADAPTATION])
def test_the_reference_is_what_pretrain_does_by_itself(name):
    settings = settings_of()
    (reference,) = [v for v in chosen_variants(name, settings, ()) if v.is_reference]
    assert variant_settings(settings, reference).recipe() == settings.recipe()


@pytest.mark.parametrize(
    ("name", "table"), [("objective", TABLE_5), ("masking", TABLE_8), ("size", TABLE_6)]
)
def test_every_variant_stands_beside_a_row_of_the_paper(name, table):
    variants = chosen_variants(name, settings_of("--preset", "base"), ())
    rows = [variant.paper_row for variant in variants]
    assert rows == [row for row in table.rows if "BiLSTM" not in row]


def test_the_shares_are_mask_same_random():
    variants = chosen_variants("masking", settings_of(), ("80/20/0", "0/20/80"))
    shares = [variant_settings(settings_of(), variant).rows for variant in variants]
    assert [(share.mask_token_share, share.random_token_share) for share in shares] == [
        (0.8, 0.1), (0.8, 0.0), (0.0, 0.8)
    ]  # fmt: skip
    assert [round(share.same_token_share, 2) for share in shares] == [0.1, 0.2, 0.2]


def test_the_papers_sizes_are_the_papers():
    for own in ((12, 768, 12), (24, 1024, 16)):
        assert ["/".join(map(str, each)) for each in shapes_around(own)] == list(TABLE_6.rows)


def test_other_sizes_are_as_many_times_their_own():
    assert shapes_around((4, 256, 4)) == {
        (1, 256, 4): "3/768/12",
        (2, 256, 1): "6/768/3",
        (2, 256, 4): "6/768/12",
        (4, 256, 4): "12/768/12",
        (4, 320, 5): "12/1024/16",
        (8, 320, 5): "24/1024/16",
    }
    tiny = shapes_around((2, 128, 2))
    assert tiny[(1, 128, 2)] == "6/768/12" and len(tiny) == 5, "3/768/12 would be the same"
    for own in ((2, 128, 2), (8, 512, 8), (3, 192, 3), (5, 640, 10)):
        assert own in shapes_around(own)
        assert all(width % heads == 0 for _, width, heads in shapes_around(own))


def test_both_blocks_read_one_text_and_differ_in_nothing_else():
    given = ("--model.hidden_dropout_prob", "0.05")
    settings = parsed("--study", "block", "--preset", "mini", *given)
    assert (settings.rows.objective, settings.rows.input_format) == ("mlm", "full_sentences")
    papers, modern = (
        variant_settings(settings, variant) for variant in chosen_variants("block", settings, ())
    )
    assert modern.model.block == "modern" and papers.model.block == "bert"
    assert papers.rows.masked_share == 0.15
    assert papers.rows == modern.rows and papers.optimizer == modern.optimizer
    assert papers.model.hidden_dropout_prob == modern.model.hidden_dropout_prob == 0.05
    dropout = [each.model.attention_probs_dropout_prob for each in (papers, modern)]
    assert dropout == [0.1, 0.0], "what neither was given is each block's own"
    own = settings.model_copy(update={"model": modern.model})  # of a preset with that block
    own = own.model_copy(update={"model": own.model.model_copy(update={"global_every": 2})})
    papers, modern = (
        variant_settings(own, variant) for variant in chosen_variants("block", own, ())
    )
    assert (papers.model.block, papers.model.position_embedding) == ("bert", "learned")
    assert modern.model == own.model
    (_, last) = chosen_variants("block", settings_of(), ())
    with pytest.raises(UserError, match="both ways"):
        variant_settings(settings_of(), last)


@pytest.mark.parametrize(
    "given", ["--model.local_attention 64", "--model.global_rope_theta 160000", ""]
)
def test_what_the_modern_block_alone_has_is_of_its_variant(tmp_path, given):
    phases = '[{"sequence_length": 64, "steps": 9, "global_rope_theta": 40000}]'
    (tmp_path / "own.yaml").write_text("model: {block: modern}\n", encoding="utf-8")
    for block in (("--model.block", "modern"), ("--preset", str(tmp_path / "own.yaml"))):
        more = ("--phases", phases, "--optimizer.warmup_share", "0.2", *given.split())
        settings = parsed("--study", "block", *block, *more)
        bert, modern = (
            variant_settings(settings, each) for each in chosen_variants("block", settings, ())
        )
        assert (bert.model.block, modern.model.block) == ("bert", "modern")
        assert modern.model == settings.model and modern.phases == settings.phases
        assert bert.phases[0].global_rope_theta is None
        assert bert.rows == modern.rows and bert.rows.masked_share == 0.15


ADAPTATION_OF = ("--start_from", "m", "--shards", "s", "--control", "c", "--preset", "adapt")


def test_a_start_model_says_how_long_rows_may_be():
    phases = (
        '[{"sequence_length": 1024, "steps": 9, "trains": "new_pieces"},'
        ' {"sequence_length": 1024, "steps": 9, "global_rope_theta": 160000}]'
    )
    more = ("--phases", phases, "--vocabulary", "extend", "--finetuning.max_length", "1024")
    settings = parsed("--study", "adaptation", *ADAPTATION_OF, *more)
    start = ModernConfig(max_position_embeddings=8192, hidden_dropout_prob=0.05)
    continued = settings.continued_from(start)
    learned_tasks(continued)
    start_model, adapted, control, scratch = (
        variant_settings(continued, each) for each in chosen_variants("adaptation", continued, ())
    )
    assert [phase.trains for phase in adapted.phases] == ["new_pieces", "all"]
    assert [phase.trains for phase in scratch.phases] == ["all", "all"]
    for each in (start_model, adapted, control, scratch):
        assert each.model.max_position_embeddings == 8192 and each.model.block == "modern"
    short = settings.continued_from(ModernConfig(max_position_embeddings=1024))
    assert learned_tasks(short)
    with pytest.raises(UserError, match="rows of 2048 tokens, the encoders have 1024 positions"):
        learned_tasks(short.model_copy(update={"finetuning": LearningSettings(max_length=2048)}))


def test_an_adaptation_measures_on_both_texts():
    with pytest.raises(UserError, match=r"--evaluation.other \(leave it out\)"):
        parsed("--study", "adaptation", *ADAPTATION_OF, "--evaluation.other", "third")


@pytest.mark.parametrize("study", ["objective", "size", "block"])
def test_what_a_start_model_decides_is_not_varied(study):
    with pytest.raises(UserError, match=f"the study {study} varies what a start model decides"):
        parsed("--study", study, "--start_from", "m", "--preset", "adapt", "--shards", "s")


def test_a_modern_block_has_one_objective():
    with pytest.raises(UserError, match=r"--model.block modern \(leave it out\)"):
        parsed("--model.block", "modern")


def test_parts_of_a_recipe_have_the_same_steps_and_are_measured_alike():
    phases = '[{"sequence_length": 64, "steps": 1000}, {"sequence_length": 128, "steps": 500}]'
    settings = settings_of("--phases", phases, "--batch.global_batch_size", "64")
    found = {
        variant.name: variant_settings(settings, variant)
        for variant in chosen_variants("recipe", settings, ())
    }
    assert {each.total_steps for each in found.values()} == {1500}
    assert {each.heldout_rows.masked_share for each in found.values()} == {0.15}
    growing = [batch.global_batch_size for batch in found["growing_batches"].batches]
    assert growing == [16, 64, 16, 64]
    assert [phase.steps for phase in found["growing_batches"].phases] == [200, 800, 100, 400]
    falling = found["falling_masks"]
    shares = [falling.rows_of(number).masked_share for number in range(6)]
    assert shares == pytest.approx([0.3, 0.225, 0.15] * 2)
    assert found["masks"].rows.masked_share == 0.3


def test_batches_grow_to_those_of_their_own_phase():
    last = '{"sequence_length": 64, "steps": 5, "global_batch_size": 16}'
    phases = f'[{{"sequence_length": 64, "steps": 10}}, {last}]'
    settings = settings_of("--phases", phases, "--batch.global_batch_size", "64")
    growing = chosen_variants("recipe", settings, ("growing_batches",))[-1]
    sizes = [each.global_batch_size for each in variant_settings(settings, growing).batches]
    assert sizes == [16, 64, 4, 16]


@pytest.mark.parametrize(
    ("own", "other"), [("adamw", ["stableadamw"]), ("stableadamw", ["adamw"]), ("lamb", [])]
)
def test_optimizers_of_one_learning_rate_are_compared(own, other):
    variants = find_study("recipe").variants(settings_of("--optimizer.name", own))
    changed = [each.name for each in variants if "optimizer.name" in each.changes]
    assert changed == other


def test_steps_that_no_third_divides_are_all_trained():
    settings = settings_of("--phases", '[{"sequence_length": 64, "steps": 2600}]')
    variants = find_study("recipe").variants(settings)
    assert {variant_settings(settings, each).total_steps for each in variants} == {2600}


@pytest.mark.parametrize(("preset", "other"), [("quickstart", "packed"), ("small", "padded")])
def test_rows_are_packed_where_they_were_padded_and_the_other_way(preset, other):
    settings = settings_of("--preset", preset)
    variant = chosen_variants("recipe", settings, (other,))[-1]
    assert (variant.name, variant.title) == (other, f"{other} rows")
    assert variant_settings(settings, variant).batch.packed == (other == "packed")


@pytest.mark.parametrize(
    ("given", "variant", "changes"),
    [
        (("--rows.masked_share", "0.2"), "masks", {"rows.masked_share": 0.4}),
        (("--model.block", "modern"), "masks", {"rows.masked_share": 0.6}),
        (("--optimizer.name", "stableadamw"), "adamw", {"optimizer.name": "adamw"}),
        (("--batch.packed", "true"), "padded", {"batch.packed": False}),
        (("--evaluation.masked_share", "0.1"), "masks", {"evaluation.masked_share": 0.1}),
    ],
)
def test_parts_of_a_recipe_differ_from_what_was_given(given, variant, changes):
    one_text = ("--rows.objective", "mlm", "--rows.input_format", "full_sentences")
    settings = parsed("--study", "recipe", *one_text, *given)
    (found,) = (each for each in chosen_variants("recipe", settings, ()) if each.name == variant)
    assert changes.items() <= found.changes.items()


def test_variants_of_a_recipe_mask_more_than_is_trained_whatever_is_held_out():
    settings = PretrainSettings(rows={"masked_share": 0.3}, evaluation={"masked_share": 0.15})
    variants = find_study("recipe").variants(settings)
    found = {each.name: variant_settings(settings, each) for each in variants}
    assert found["reference"].rows == found["stableadamw"].rows == settings.rows
    assert found["masks"].rows.masked_share == 0.6
    falling = found["falling_masks"]
    shares = [falling.rows_of(number).masked_share for number in range(3)]
    assert shares == pytest.approx([0.6, 0.45, 0.3])
    assert {each.heldout_rows.masked_share for each in found.values()} == {0.15}
    recipes = [settings_hash(each.recipe()) for each in found.values()]
    assert len({*recipes}) == len(recipes)


OWN_RATE = {"phases": [{"sequence_length": 64, "steps": 9, "masked_share": 0.2}]}


@pytest.mark.parametrize(
    ("study", "changes"),
    [
        ("recipe", {"rows": {"masked_share": 0.5}}),
        ("recipe", OWN_RATE),
        ("masking_rate", OWN_RATE),  # it would be that of all variants
    ],
)
def test_a_study_of_masks_that_cannot_be_varied_is_refused(study, changes):
    with pytest.raises(UserError, match="masking rate"):
        find_study(study).variants(PretrainSettings(**changes))


@pytest.mark.parametrize("study", ["masking", "masking_rate", "recipe"])
def test_a_study_of_masks_is_refused_where_there_are_none(study):
    with pytest.raises(UserError, match=f"the study {study} varies masks.*--rows.objective"):
        parsed("--study", study, "--rows.objective", "left_to_right")


def test_variants_that_do_not_fit_are_refused_before_text_is_prepared():
    with pytest.raises(UserError, match="left to right: left_to_right masks nothing"):
        parsed("--rows.masked_share", "0.3")


def test_a_start_model_is_measured_in_the_batches_of_the_last_phase():
    last = {"sequence_length": 128, "steps": 9, "global_batch_size": 8, "micro_batch_size": 1}
    phases = [{"sequence_length": 64, "steps": 9}, last]
    settings = PretrainSettings(phases=phases)
    start, adapted, *_ = find_study("adaptation").variants(settings)
    (measured,) = variant_settings(settings, start).batches
    assert measured == variant_settings(settings, adapted).batches[-1]


def test_some_variants_come_with_the_reference_in_the_studys_order():
    names = [variant.name for variant in chosen_variants("masking", settings_of(), ("0/0/100",))]
    assert names == ["80/10/10", "0/0/100"]
    assert len(chosen_variants("masking", settings_of(), ())) == 6


def test_what_is_no_variant_or_does_not_fit_is_refused():
    with pytest.raises(UserError, match="did you mean left_to_right: --variants left-to-right"):
        chosen_variants("objective", settings_of(), ("left-to-right",))
    with pytest.raises(UserError, match="did you mean masking_rate"):
        find_study("masking_rates")
    settings = settings_of("--rows.masked_share", "0.3")
    (*_, last) = chosen_variants("objective", settings, ())
    with pytest.raises(UserError, match="left to right: left_to_right masks nothing"):
        variant_settings(settings, last)
