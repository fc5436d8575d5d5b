import pytest
from pydantic import ValidationError

from bert_core.config import SIZES, ModernConfig
from bert_core.errors import UserError
from bert_core.settings import BINS_VERSION, ORDER_VERSION, RowSettings
from workflows.pretrain import parse
from workflows.pretraining.sections import ModelSettings, Phase, described_phases
from workflows.pretraining.settings import PretrainSettings
from workflows.settings import LAYERS, differences, parse_command_line, settings_hash

HEADS = {"num_attention_heads": 12}


def test_the_defaults_are_the_papers_base():
    settings = PretrainSettings()
    config = settings.model.config(30_522, 0)
    assert config == SIZES["base"].model_copy(update={"vocab_size": 30_522, "pad_token_id": 0})
    assert settings.total_steps == 1_000_000
    assert settings.batch.global_batch_size == 256
    optimizer = settings.optimizer
    assert (optimizer.name, optimizer.peak_learning_rate) == ("adamw", 1e-4)
    assert optimizer.warmup_steps == 10_000


def test_a_size_with_something_else():
    config = ModelSettings(size="tiny", num_hidden_layers=3, max_position_embeddings=64).config(
        100, 4
    )
    assert (config.num_hidden_layers, config.hidden_size) == (3, SIZES["tiny"].hidden_size)
    assert (config.max_position_embeddings, config.vocab_size, config.pad_token_id) == (64, 100, 4)


def test_every_row_of_the_papers_table_6_can_be_said():
    """Layers, width and heads; what is not said follows from the width, as in all sizes."""
    table = [(3, 768, 12), (6, 768, 3), (6, 768, 12), (12, 768, 12), (12, 1024, 16), (24, 1024, 16)]
    for layers, width, heads in table:
        flags = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
        arguments = [f"--model.{name}={value}" for name, value in flags.items()]
        model = parse_command_line(PretrainSettings, ["--preset", "base", *arguments]).model
        config = model.config(100, 0)
        assert (config.num_hidden_layers, config.hidden_size) == (layers, width)
        assert (config.num_attention_heads, config.intermediate_size) == (heads, 4 * width)
    assert ModelSettings(size="mini").described == "mini"
    wide = ModelSettings(size="mini", hidden_size=192)
    assert wide.config(100, 0).num_attention_heads == 3
    assert wide.described == (
        "mini with hidden_size 192, num_attention_heads 3, intermediate_size 768"
    )
    assert ModelSettings(intermediate_size=64).config(100, 0).intermediate_size == 64
    for size, config in SIZES.items():
        own = ModelSettings(size=size).config(config.vocab_size, config.pad_token_id)
        assert own == config, "the rule by which a width is completed is that of the sizes"


def test_the_modern_block_has_defaults_of_its_own():
    settings = parse_command_line(
        PretrainSettings, ["--preset", "mini", "--model.block", "modern", "--rows.whole_word"]
    )
    assert (settings.rows.objective, settings.rows.input_format) == ("mlm", "full_sentences")
    assert settings.rows.whole_word and settings.heads == ("masked_token",)
    assert settings.rows.masked_share == 0.3
    own = settings.model_dump(mode="json") | {"rows": {"masked_share": 0.15}}
    assert PretrainSettings.model_validate(own).rows.masked_share == 0.15
    config = settings.architecture(1000, 0)
    assert isinstance(config, ModernConfig) and config.max_position_embeddings == 128
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0, 0)
    # As many parameters as the paper's block: three maps of the feed-forward network for two.
    assert (config.hidden_size, config.intermediate_size) == (256, 704)
    assert settings.model.described == "modern mini"
    assert PretrainSettings(**settings.model_dump(mode="json")) == settings
    own = PretrainSettings(
        model={"block": "modern", "hidden_dropout_prob": 0.1, "intermediate_size": 1152}
    )
    assert own.model.hidden_dropout_prob == 0.1 and own.model.attention_probs_dropout_prob == 0
    assert own.model.described == "modern base with intermediate_size 1152"
    assert own.recipe()["model"]["block"] == "modern"


@pytest.mark.parametrize("block", [(), ("--model.block", "modern")])
def test_a_start_model_of_the_modern_block_says_so_itself(block):
    given = ["--preset", "adapt", "--start_from", "m", *block]
    settings = parse_command_line(PretrainSettings, given)
    continued = settings.continued_from(ModernConfig(hidden_dropout_prob=0.05))
    assert continued.rows.masked_share == 0.15
    assert continued.model.hidden_dropout_prob == 0.05
    own = parse_command_line(PretrainSettings, [*given, "--model.hidden_dropout_prob", "0.2"])
    assert own.continued_from(ModernConfig()).model.hidden_dropout_prob == 0.2


def test_a_phase_may_have_rows_masks_and_positions_of_its_own():
    phases = [
        {"sequence_length": 64, "steps": 3, "global_batch_size": 32, "masked_share": 0.4},
        {"sequence_length": 128, "steps": 2, "micro_batch_size": 8, "global_rope_theta": 1e5},
        {"sequence_length": 128, "steps": 1},
    ]
    settings = PretrainSettings(
        model={"block": "modern"}, phases=phases, evaluation={"masked_share": 0.2}
    )
    sizes = [(batch.global_batch_size, batch.micro_batch_size) for batch in settings.batches]
    assert sizes == [(32, 32), (256, 8), (256, 32)]
    assert [settings.rows_of(number).masked_share for number in range(3)] == [0.4, 0.3, 0.3]
    assert settings.heldout_rows == settings.rows.model_copy(update={"masked_share": 0.2})
    thetas = [settings.global_rope_theta_of(number) for number in range(3)]
    assert thetas == [10_000, 100_000, 10_000]
    assert described_phases(settings.phases) == (
        "3 x 64 (global_batch_size 32, masked_share 0.4), "
        "2 x 128 (micro_batch_size 8, global_rope_theta 100000.0), 1 x 128"
    )
    assert PretrainSettings(**settings.model_dump(mode="json")) == settings
    assert settings.recipe()["phases"][2] == phases[2]


def test_the_objective_decides_which_way_the_encoder_looks():
    for objective, is_decoder in (("mlm_nsp", False), ("mlm", False), ("left_to_right", True)):
        settings = parse_command_line(PretrainSettings, ["--rows.objective", objective])
        assert settings.architecture(100, 0).is_decoder == is_decoder


def test_every_step_lies_in_a_phase():
    settings = PretrainSettings(
        phases=[Phase(sequence_length=16, steps=3), Phase(sequence_length=32, steps=2)]
    )
    assert [settings.phase_at(step) for step in range(5)] == [(0, 0)] * 3 + [(1, 3)] * 2
    with pytest.raises(ValueError, match="step 5 is beyond the last of 5"):
        settings.phase_at(5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hidden_size", 70_000),
        ("num_hidden_layers", 2000),
        ("num_attention_heads", 256),  # heads of 3, which cannot turn in pairs
        ("intermediate_size", 10**7),
        ("max_position_embeddings", 2_000_000),
        ("global_every", 5000),
        ("local_attention", 10**7),
        ("global_rope_theta", 1e13),
        ("global_rope_theta", float("inf")),
    ],
)
def test_sizes_that_no_encoder_has_are_refused_in_a_line(name, value):
    """Else they would be found when the text is prepared."""
    arguments = ["--preset", "mini", "--model.block", "modern", "--model.hidden_size", "768"]
    parse_command_line(PretrainSettings, arguments)
    with pytest.raises(UserError) as caught:
        parse_command_line(PretrainSettings, [*arguments, f"--model.{name}", str(value)])
    assert "\n" not in str(caught.value) and "--model" in str(caught.value)
    assert name in str(caught.value) or "heads" in str(caught.value)


def test_the_rotations_of_a_phase_have_bounds():
    for theta in (1.0, 1e13, float("nan")):
        with pytest.raises(ValidationError, match="global_rope_theta"):
            Phase(sequence_length=128, steps=10, global_rope_theta=theta)


def test_the_recipe_is_what_decides_the_weights():
    settings = PretrainSettings()
    deciding = ["seed", "model", "rows", "batch", "phases", "optimizer", "precision", "compile"]
    assert sorted(settings.recipe()) == sorted(deciding)
    other_place = parse_command_line(
        PretrainSettings,
        ["--preset", "base", "--storage", "/elsewhere", "--cluster.num_workers", "8"]
        + ["--name", "other", "--checkpoint.keep", "1", "--tracking.uri", "http://mlflow"],
    )
    assert (
        other_place.recipe()
        == parse_command_line(PretrainSettings, ["--preset", "base", "--fresh"]).recipe()
    )


def test_a_run_keeps_the_name_that_earlier_versions_gave_it():
    """What came later is not in its recipe: by the old name it goes on, by another it starts over.

    Whoever changes a preset or a default on purpose changes these too.
    """
    hashes = {
        "base": "1adbe6d6",
        "base-fast": "bd86c1d2",
        "large": "08bea535",
        "mini": "08caad4a",
        "quickstart": "6535f2b3",
        "small": "f2899b5d",
    }
    for preset, expected in hashes.items():
        settings = parse_command_line(PretrainSettings, ["--preset", preset])
        assert settings_hash(settings.recipe()) == expected, preset


def test_packed_rows_in_other_bins_are_another_run():
    """An unfinished run of the first bins would train some rows twice and some never."""
    assert "bins" not in PretrainSettings().recipe()["batch"]
    packed = PretrainSettings(batch={"packed": True}).recipe()
    older = {**packed, "batch": {k: v for k, v in packed["batch"].items() if k != "bins"}}
    assert differences(older, packed) == [f"batch.bins: None -> {BINS_VERSION}"]


def test_an_order_of_rows_that_older_runs_did_not_have_is_another_run(tmp_path):
    def order(lengths, **changes):
        phases = [{"sequence_length": length, "steps": 5} for length in lengths]
        return PretrainSettings(phases=phases, **changes).recipe()["rows"].get("order")

    assert order([128]) is order([128, 512, 128]) is None
    assert order([128, 512, 512]) == order([128], decay_from=tmp_path) == ORDER_VERSION


def test_runs_that_are_measured_with_other_masks_are_other_runs():
    plain = PretrainSettings().recipe()
    assert "evaluation" not in plain
    measured = PretrainSettings(evaluation={"masked_share": 0.3, "every_steps": 7}).recipe()
    assert measured == plain | {"evaluation": {"masked_share": 0.3}}


def test_what_decides_the_weights_is_in_the_recipe():
    def recipe(**rows):
        return PretrainSettings(rows=rows).recipe()["rows"]

    assert "input_format" not in recipe()
    # Full sentences were what `mlm` had before pairs could be had without next sentences.
    assert "input_format" not in recipe(objective="mlm", input_format="full_sentences")
    assert recipe(objective="mlm")["input_format"] == "segment_pair"
    full = recipe(objective="left_to_right", input_format="full_sentences")
    assert full["input_format"] == "full_sentences"
    assert "input_format" not in recipe(objective="left_to_right")
    assert PretrainSettings(model={"hidden_size": 128}).recipe()["model"]["hidden_size"] == 128


def test_what_cannot_train_is_refused():
    def refused(message, **values):
        with pytest.raises(ValidationError, match=message):
            PretrainSettings(**values)

    packed = {"packed": True}
    refused("raise --model.max_position_embeddings", model={"max_position_embeddings": 256})
    refused("lower --cluster.num_workers", cluster={"num_workers": 300})
    refused("no attention dropout", cluster={"use_gpu": True}, batch=packed)
    no_dropout = {"attention_probs_dropout_prob": 0}
    refused("bfloat16", cluster={"use_gpu": True}, batch=packed, model=no_dropout)
    refused("12 attention heads cannot share a width of 100", model={"hidden_size": 100} | HEADS)
    refused("are more than 1 together", rows={"mask_token_share": 0.95})
    refused("pattern", name="a/b")
    refused("finite", model={"block": "modern", "global_rope_theta": float("inf")})
    full = {"objective": "mlm", "input_format": "full_sentences"}
    refused("leave out short_row_share", rows=full | {"short_row_share": 0.5})
    refused("finite", cluster={"cpus_per_worker": float("inf")})
    refused("finite", teacher="model", distillation={"temperature": float("inf")})
    tpu = {"use_gpu": False, "tpu": "v5e", "topology": "2x2"}
    modern, short = {"block": "modern"}, {"sequence_length": 64, "steps": 1}
    refused("reads one text, both ways", model=modern, rows={"input_format": "segment_pair"})
    for objective in ("mlm_nsp", "left_to_right"):
        refused("reads one text, both ways", model=modern, rows={"objective": objective})
    refused("the modern block has no learned", model=modern | {"position_embedding": "learned"})
    refused("the bert block has no rotary positions", model={"position_embedding": "rotary"})
    refused("local_attention is of another block", model={"local_attention": 64})
    refused(
        "take another --profile",
        model=modern,
        cluster=tpu,
    )
    refused("updates are not clipped", optimizer={"name": "stableadamw"}, cluster=tpu)
    refused("add --model.block modern", phases=[short | {"global_rope_theta": 1e5}])
    left = {"objective": "left_to_right"}
    refused("leave out masked_share", rows=left, phases=[short | {"masked_share": 0.3}])
    refused("evaluation.masked_share", rows=left, evaluation={"masked_share": 0.3})
    few = [short, short | {"global_batch_size": 2}]
    refused("cannot share 2 rows a step", phases=few, cluster={"num_workers": 4})
    slices = tpu | {"num_slices": [1, 4]}
    refused("cannot share 2 rows a step", phases=few, cluster=slices, batch={"packed": False})
    refused("pattern", name="..")
    # A CPU has a kernel for it, and a range of workers may begin with few.
    PretrainSettings(batch=packed, name="wiki-2.1_a")
    PretrainSettings(cluster={"num_workers": [2, 300]})


TPU_PROFILES = sorted(path.stem for path in LAYERS["profile"].glob("tpu-*.yaml"))


@pytest.mark.parametrize("preset", ["base-fast", "small"])
@pytest.mark.parametrize("profile", TPU_PROFILES)
def test_a_presets_packing_yields_to_the_profile_of_a_tpu(preset, profile):
    chosen = ["--preset", preset]
    on_gpu, on_tpu = (
        parse_command_line(PretrainSettings, [*chosen, "--profile", each])
        for each in ("gpu", profile)
    )
    assert on_gpu.batch.packed and not on_tpu.batch.packed
    named = {"profile", "cluster"}
    assert on_tpu.model_dump(exclude=named | {"batch"}) == on_gpu.model_dump(
        exclude=named | {"batch"}
    )
    # Another recipe, by what is different alone; the padded one is the same wherever it runs.
    assert differences(on_gpu.recipe(), on_tpu.recipe()) == [
        f"batch.bins: {BINS_VERSION} -> None",
        "batch.packed: True -> False",
    ]
    assert settings_hash(on_gpu.recipe()) != settings_hash(on_tpu.recipe())
    padded = [*chosen, "--profile", "gpu", "--batch.packed", "false"]
    assert parse_command_line(PretrainSettings, padded).recipe() == on_tpu.recipe()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--profile", "tpu-v6e-16", "--batch.packed", "true"],
        ["--profile", "tpu-v6e-16", "--batch.packed"],
        ["--cluster.tpu", "v6e", "--cluster.topology", "4x4"],
    ],
)
def test_packed_rows_that_were_asked_for_on_tpu_are_refused(arguments):
    with pytest.raises(UserError) as caught:
        parse_command_line(PretrainSettings, ["--preset", "base-fast", *arguments])
    line = str(caught.value)
    assert line.startswith("packed rows do not run on TPU: set --batch.packed false")
    assert "\n" not in line


def test_on_tpu_rows_are_padded():
    on_tpu = {"cluster": {"tpu": "v4", "topology": "2x2x2"}}
    assert PretrainSettings(**on_tpu).cluster.num_workers == 2
    with pytest.raises(ValidationError, match="packed rows do not run on TPU: set --batch.packed"):
        PretrainSettings(**on_tpu, batch={"packed": True})
    with pytest.raises(ValidationError, match="2 workers cannot share 1 rows"):
        PretrainSettings(**on_tpu, batch={"global_batch_size": 1})


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ({}, "mlm_nsp"),
        ({"objective": "left_to_right"}, "left_to_right"),
        ({"objective": "mlm", "input_format": "full_sentences"}, "mlm, full_sentences"),
        ({"masked_share": 0.3}, "mlm_nsp, 0.3 of the tokens predicted"),
        (
            {"mask_token_share": 0.8, "random_token_share": 0},
            "mlm_nsp, of these 0.8 [MASK] / 0 random / 0.2 the same",
        ),
        ({"whole_word": True}, "mlm_nsp, whole words"),
    ],
)
def test_what_differs_from_the_paper_is_described(rows, text):
    settings = RowSettings(**rows)
    assert settings.described == text
    assert settings.are_the_papers == (not rows)


def short(*arguments):
    return parse(
        ["--preset", "base", "--phases", '[{"sequence_length":128,"steps":100}]', *arguments]
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--optimizer.warmup_steps 10000"),
        (["--optimizer.warmup_steps", "100"], "--optimizer.warmup_steps 100"),
        (["--optimizer.warmup_share", "0.999"], "--optimizer.warmup_share 0.999"),
        (
            ["--optimizer.warmup_steps", "91", "--optimizer.schedule", "wsd"],
            "lower --optimizer.decay_share",
        ),
    ],
)
def test_a_learning_rate_that_never_comes_to_its_peak_is_refused(arguments, named):
    with pytest.raises(UserError) as caught:
        short(*arguments)
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_a_warmup_may_take_all_steps_but_one_or_the_decay():
    assert short("--optimizer.warmup_steps", "99").warmup_steps == 99
    assert short("--optimizer.warmup_share", "0.06").warmup_steps == 6
    wsd = ("--optimizer.warmup_steps", "90", "--optimizer.schedule", "wsd")
    assert short(*wsd).warmup_steps == 90
    assert short("--decay_from", "checkpoint").warmup_steps == 0


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["--shards", "shards", "--heldout_share", "0.2"], "--heldout_share (leave it out"),
        (["--decay_from", "here", "--optimizer.warmup_steps", "3"], "--optimizer.warmup_steps"),
        (["--decay_from", "here", "--optimizer.warmup-share=0.1"], "--optimizer.warmup_share"),
        (
            ["--optimizer.warmup_steps", "3", "--optimizer.warmup_share", "0.1"],
            "--optimizer.warmup_steps --optimizer.warmup_share",
        ),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(arguments, where):
    with pytest.raises(UserError) as caught:
        parse(arguments)
    assert where in str(caught.value) and "\n" not in str(caught.value)


def test_warmup_steps_that_are_given_win_over_the_share_of_a_preset(tmp_path):
    adapt = ["--preset", "adapt", "--start_from", "model"]
    assert parse(adapt).warmup_steps == 300
    assert parse([*adapt, "--optimizer.warmup_steps", "100"]).warmup_steps == 100
    assert parse([*adapt, "--optimizer.warmup_share", "0.1"]).warmup_steps == 500
    profile = tmp_path / "mine.yaml"
    profile.write_text("optimizer: {warmup_steps: 100}", encoding="utf-8")
    assert parse([*adapt, "--profile", str(profile)]).warmup_steps == 100


def test_settings_of_a_run_of_text_may_be_repeated_on_its_shards(tmp_path):
    preset = tmp_path / "settings.yaml"
    preset.write_text("{text: [texts], vocabulary_size: 500, optimizer: {warmup_steps: 9}}")
    assert parse(["--preset", str(preset), "--shards", "shards"]).shards is not None
    assert parse(["--preset", str(preset), "--decay_from", "here"]).warmup_steps == 0
