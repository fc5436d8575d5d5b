"""Pre-training that continues from a model: what follows it, what is refused, the same bits."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from pretraining_runs import Run, train_here, write_corpus
from safetensors.torch import load_file
from tokenizers import Tokenizer

from bert_core.config import ModelConfig
from bert_core.errors import UserError
from bert_core.features.sentence_pooling import (
    SentencePooling,
    read_sentence_pooling,
    sentence_modules,
    sparse_modules,
)
from bert_core.model.bert import Bert
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.new_pieces import extend_tokenizer
from bert_core.special_tokens import BERT_TOKENS, ROBERTA_TOKENS, special_tokens
from bert_core.text.shards import open_shards
from bert_core.tokenizer import load_tokenizer, tokenizer_hash
from bert_core.tokenizer_training import train_tokenizer
from bert_core.training.checkpoint_folder import KEPT, MANIFEST
from workflows.pretrain import opened_pretraining
from workflows.pretraining.job import (
    checkpoint_to_decay,
    continue_from,
    described_pieces,
    find_start,
)
from workflows.pretraining.results import write_results
from workflows.pretraining.settings import AdaptSettings, PretrainSettings
from workflows.runs.storage import open_storage
from workflows.settings import parse_command_line


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def start_folder(tmp_path_factory, corpus):
    """A model with all heads of pre-training and the corpus' tokenizer."""
    tokenizer = load_tokenizer(corpus)
    config = ModelConfig(
        vocab_size=tokenizer.get_vocab_size() + 4,  # as models have it whose table was padded
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=32,
        hidden_dropout_prob=0.05,
    )
    torch.manual_seed(5)
    folder = tmp_path_factory.mktemp("start") / "general"
    save_model_folder(folder, Bert.for_pretraining(config), tokenizer, "# A card\n")
    return folder


SHORT = '[{"sequence_length": 16, "steps": 3}]'
ADAPT = {
    "preset": "adapt",
    "optimizer.peak_learning_rate": 1e-3,
    "checkpoint.every_steps": 5,
    "evaluation.every_steps": 8,
}
NO_SHAPE = dict.fromkeys(
    (
        "model.size",
        "model.num_hidden_layers",
        "model.max_position_embeddings",
        "model.hidden_dropout_prob",
        "model.attention_probs_dropout_prob",
        "optimizer.warmup_steps",
    )
)


class AdaptedRun(Run):
    """A run that says nothing of the model's shape."""

    def arguments(self):
        given = super().arguments()
        pairs = zip(given[::2], given[1::2], strict=True)
        return [text for name, value in pairs if value != "None" for text in (name, value)]


@pytest.fixture
def run_of(tmp_path, corpus, start_folder):
    def make(name="run", **settings):
        named = {key.replace("__", "."): value for key, value in settings.items()}
        given = NO_SHAPE | ADAPT | {"start_from": start_folder} | named
        return AdaptedRun(tmp_path, name, corpus, steps=12, settings=given)

    return make


def settings_of(run):
    return parse_command_line(AdaptSettings, run.arguments())


def opened(run):
    """The settings as a run gets them; raises what the command would print."""
    settings = settings_of(run)
    storage = open_storage(settings.storage)
    start = find_start(settings, storage)
    settings = continue_from(settings, start)
    with opened_pretraining(settings, storage, open_shards(run.shards), start) as job:
        return job


def test_shape_dropout_and_positions_follow_the_start_model(run_of):
    job = opened(run_of())
    model = job.settings.model
    config = job.settings.architecture(job.vocab_size, 0)
    assert config == job.start.encoder.config.model_copy(update={"pad_token_id": 0})
    assert model.hidden_dropout_prob == 0.05
    assert job.start.fresh == () and job.start.unused == ("pooler", "next_sentence")
    again = PretrainSettings(**job.settings.model_dump(mode="json"))
    assert continue_from(again, job.start).model == model, "settings.yaml repeats the run"
    other = opened(run_of("other", model__hidden_dropout_prob=0.2)).settings.model
    assert other.hidden_dropout_prob == 0.2 and other.hidden_size == 64


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_model_with_the_tokenizer_of_roberta_is_adapted(run_of, tmp_path, kind):
    lines = [f"{word} {word}ba, {word}ke." for word in ("limo", "nura", "shito", "vuza", "bake")]
    text = train_tokenizer(kind, lines * 3, 320, lowercase=False).to_str()
    for own, theirs in zip(BERT_TOKENS.all, ROBERTA_TOKENS.all, strict=True):
        text = text.replace(own, theirs)
    tokenizer = Tokenizer.from_str(text)
    shards = write_corpus(tmp_path / "shards", num_documents=60, tokenizer=tokenizer)
    config = ModelConfig(
        vocab_size=tokenizer.get_vocab_size(),
        **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
        **{"intermediate_size": 48, "max_position_embeddings": 32, "type_vocab_size": 1},
    )
    save_model_folder(tmp_path / "roberta", Bert.for_pretraining(config), tokenizer)
    run = run_of(start_from=tmp_path / "roberta")
    run.shards = shards
    train_here(run)
    (run.folder / "artifacts").mkdir(exist_ok=True)
    job = opened(run)
    write_results(job)
    _, _, written = load_model_folder(job.folder.model)
    assert special_tokens(written) == ROBERTA_TOKENS
    assert tokenizer_hash(written) == tokenizer_hash(load_tokenizer(tmp_path / "roberta"))
    name = "heldout/masked_token_loss"
    heldout = [record[name] for _, record in run.records() if name in record]
    assert heldout[0] > heldout[-1]


@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_are_made_as_the_start_model_makes_them(run_of, tmp_path, start_folder, normalize):
    config, model, tokenizer = load_model_folder(start_folder)
    pooling = SentencePooling("cls", normalize, 20, prompts={"query": "query: "})
    modules = sentence_modules(pooling, config.hidden_size)
    save_model_folder(tmp_path / "sentences", model, tokenizer, modules=modules)
    run = run_of(start_from=tmp_path / "sentences")
    train_here(run)
    (run.folder / "artifacts").mkdir(exist_ok=True)
    job = opened(run)
    write_results(job)
    found = read_sentence_pooling(job.folder.model, config.max_position_embeddings)
    assert (found.pooling, found.normalize, found.max_length) == ("cls", normalize, 20)
    assert found.prompts == pooling.prompts
    assert len(job.start.described()) == 2, "the heads that are left out, and nothing of modules"


def test_modules_that_are_left_out_are_named(run_of, tmp_path, start_folder):
    _, model, tokenizer = load_model_folder(start_folder)
    modules = sparse_modules(SentencePooling())
    save_model_folder(tmp_path / "sparse", model, tokenizer, modules=modules)
    start = opened(run_of(start_from=tmp_path / "sparse")).start
    assert "modules.json" in start.described()[-1]


def test_it_starts_where_the_model_is_and_ends_lower(run_of, start_folder):
    run = run_of()
    train_here(run)
    name = "heldout/masked_token_loss"
    heldout = [record[name] for _, record in run.records() if name in record]
    assert len(heldout) == 3 and heldout[0] > heldout[1] > heldout[2]  # at steps 0, 8 and 12
    assert run.records()[0][0] == 0
    first = run.records()[1][1]
    _, start, _ = load_model_folder(start_folder)
    assert first["train/learning_rate"] == pytest.approx(1e-3)  # of a warm-up of one step
    weights = load_file(run.checkpoints / "step-00000012" / "model.safetensors")
    assert weights.keys() == {
        name for name in start.state_dict() if not name.startswith(("heads.pool", "heads.next"))
    }
    moved = weights["encoder.embeddings.position.weight"] - start.encoder.embeddings.position.weight
    assert 0 < moved.abs().max() < 0.05


@pytest.mark.slow
def test_stopped_anywhere_it_writes_the_same_bits(run_of):
    whole, parts = run_of("whole"), run_of("parts")
    train_here(whole)
    for stop_after in (3, 4, -1):
        train_here(parts, stop_after)
    assert parts.records() == whole.records()
    last = "step-00000012/model.safetensors"
    assert (parts.checkpoints / last).read_bytes() == (whole.checkpoints / last).read_bytes()


@pytest.mark.slow
def test_killed_before_the_first_checkpoint_it_measures_the_start_once(run_of, tmp_path, corpus):
    other = write_corpus(
        tmp_path / "general", num_documents=40, seed=9, tokenizer=load_tokenizer(corpus)
    )
    run = run_of(evaluation__other=other)
    train_here(run, 2)
    shutil.rmtree(run.checkpoints)
    train_here(run)
    whole = run_of("whole", evaluation__other=other)
    train_here(whole)
    assert run.records() == whole.records()
    (step, first), *_ = run.records()
    assert step == 0 and first["other/masked_token_loss"] != first["heldout/masked_token_loss"]
    (run.folder / "artifacts").mkdir()
    card = write_results(opened(run)).card
    assert "before the first step" in card


def test_a_longer_table_of_positions_is_trained_and_exported(run_of, start_folder):
    phases = '[{"sequence_length": 48, "steps": 3}]'
    with pytest.raises(UserError, match="raise --model.max_position_embeddings from 32"):
        opened(run_of(phases=phases))
    run = run_of(phases=phases, model__max_position_embeddings=64)
    train_here(run)
    job = opened(run)
    (run.folder / "artifacts").mkdir()
    write_results(job)
    config, model, _ = load_model_folder(job.folder.model)
    assert config.max_position_embeddings == 64
    assert model.encoder.embeddings.position.weight.shape == (64, 64)
    assert "general" in (job.folder.model / "README.md").read_text()
    assert job.described()[1]["encoder.sha256"] == job.start.encoder.sha256


def test_without_a_start_model_nothing_of_it_is_extended():
    for option, value in (("vocabulary", "extend"), ("model.position_extension", "interpolate")):
        with pytest.raises(UserError, match="give --start_from MODEL"):
            parse_command_line(PretrainSettings, [f"--{option}", value])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model.size": "tiny"}, "has num_hidden_layers|has hidden_size 64, not 128"),
        ({"model.hidden_size": 128}, "has hidden_size 64, not 128: leave out --model.hidden_size"),
        (
            {
                "model.max_position_embeddings": 16,
                "phases": '[{"sequence_length": 16, "steps": 3}]',
            },
            "has 32 positions, not 16",
        ),
        ({"model.position_embedding": "sinusoidal"}, "leave out --model.position_embedding"),
        ({"rows.objective": "left_to_right"}, "reads both ways"),
        ({"model.block": "modern"}, "the bert block, not the modern one"),
        ({"start_from": "nowhere"}, "no such model"),
        ({"start_from": None}, "Field required: --start_from"),
        ({"replay_share": 0.1}, "give --replay SHARDS"),
        ({"new_pieces": 5}, "give --vocabulary extend"),
        ({"vocabulary_size": 500}, "leave out --vocabulary_size"),
        ({"model.position_extension": "interpolate"}, "no position table is extended"),
        ({"optimizer.decay_share": 0.2}, "a linear schedule has no decay_share"),
    ],
)
def test_what_contradicts_the_start_model_is_one_line(run_of, given, message):
    with pytest.raises(UserError, match=message) as raised:
        opened(run_of(**given))
    assert "\n" not in str(raised.value)


def test_shards_of_another_tokenizer_are_refused_with_the_command_that_mends_it(
    run_of, tmp_path, start_folder
):
    run = run_of()
    run.shards = write_corpus(tmp_path / "other", seed=8)
    with pytest.raises(UserError, match="another tokenizer") as raised:
        opened(run)
    assert f"--text PATH… --tokenizer {start_folder} --output" in raised.value.remedy


def test_another_start_model_is_another_run(run_of, tmp_path, start_folder):
    opened(run_of())
    _, model, tokenizer = load_model_folder(start_folder)
    model.encoder.layers[0].output.bias.data += 1
    save_model_folder(tmp_path / "changed", model, tokenizer, "# A card\n")
    with pytest.raises(UserError, match="start: "):
        opened(run_of(start_from=tmp_path / "changed"))


@pytest.mark.slow
def test_a_run_may_go_on_with_other_memory_and_a_second_corpus_keeps_its_bits(
    run_of, tmp_path, corpus
):
    tokenizer = load_tokenizer(corpus)
    replay = write_corpus(tmp_path / "general", num_documents=40, seed=9, tokenizer=tokenizer)
    whole = run_of("whole", replay=replay, replay_share=0.2)
    train_here(whole)
    train_here(run_of("parts", replay=replay, replay_share=0.2), 5)
    parts = run_of("parts", replay=replay, replay_share=0.2, recompute="layers")
    train_here(parts)
    assert parts.records() == whole.records()
    assert opened(whole).settings.recipe()["replay_share"] == 0.2
    alone = run_of("alone")
    train_here(alone)
    assert alone.records() != whole.records()


def test_a_second_corpus_of_another_tokenizer_is_refused(run_of, tmp_path):
    replay = write_corpus(tmp_path / "other", seed=8)
    with pytest.raises(UserError, match="--replay was made with another tokenizer"):
        opened(run_of(replay=replay))


def rates_of(run):
    name = "train/learning_rate"
    return [record[name] for _, record in run.records() if name in record]


@pytest.mark.slow
def test_several_runs_end_from_one_stable_checkpoint(run_of, tmp_path):
    stable = run_of("stable", optimizer__schedule="wsd", optimizer__decay_share=0.25)
    train_here(stable)
    rates = rates_of(stable)
    assert rates == pytest.approx([1e-3] * 10 + [2e-3 / 3, 1e-3 / 3])

    checkpoint = stable.checkpoints / "step-00000005"
    decay = run_of("decay", decay_from=checkpoint, phases=SHORT)
    job = opened(decay)
    assert (checkpoint / KEPT).exists(), "each start of the decay begins with it"
    train_here(decay, 1)
    train_here(decay)
    (decay.folder / "artifacts").mkdir()
    card = write_results(job).card
    assert "Decayed from" in card and "stable, step 5, after 40 rows" in card
    rates = rates_of(decay)
    assert rates == pytest.approx([1e-3, 2e-3 / 3, 1e-3 / 3])
    assert job.settings.warmup_steps == 0
    other = run_of("decay", decay_from=stable.checkpoints / "step-00000010", phases=SHORT)
    with pytest.raises(UserError, match="decay_from: "):
        opened(other)
    for settings, message in (
        ({"decay_from": stable.checkpoints / "step-00000012"}, "of the stable part"),
        ({"optimizer__peak_learning_rate": 1e-4}, "keep them: optimizer.peak_learning_rate"),
        ({"optimizer__schedule": "wsd"}, "falls linearly"),
        ({"decay_from": tmp_path / "nowhere"}, "damaged checkpoint"),
    ):
        with pytest.raises(UserError, match=message):
            opened(run_of("refused", **{"decay_from": checkpoint, "phases": SHORT} | settings))


MODERN_PHASES = [
    {"sequence_length": 64, "steps": 60},
    {"sequence_length": 128, "steps": 40, "masked_share": 0.2, "global_rope_theta": 160_000.0},
]


@pytest.fixture
def decays_from(monkeypatch, tmp_path):
    """Opens a checkpoint of a step of two phases, for a run with these settings."""
    schedule = {"schedule": "wsd", "warmup_steps": 10}
    whole = PretrainSettings.model_validate(
        {"model": {"block": "modern"}, "phases": MODERN_PHASES, "optimizer": schedule}
    )

    def opens(step, *, tokenizer="same", **settings):
        extra = {"settings": whole.model_dump(mode="json")}
        extra |= {} if tokenizer is None else {"tokenizer_hash": tokenizer}
        info = SimpleNamespace(step=step, extra=extra)
        monkeypatch.setattr("bert_core.training.checkpoint.read_checkpoint", lambda _: info)
        given = {"model": {"block": "modern"}, "decay_from": tmp_path} | settings
        return checkpoint_to_decay(PretrainSettings.model_validate(given), tmp_path, "same")

    (tmp_path / MANIFEST).write_text("{}")
    return opens


def test_a_decay_reads_shards_of_the_checkpoints_tokenizer(decays_from):
    phases = MODERN_PHASES[:1]
    assert decays_from(60, phases=phases)
    assert decays_from(60, phases=phases, tokenizer=None), "of a run that did not note it"
    with pytest.raises(UserError, match="another tokenizer"):
        decays_from(60, phases=phases, tokenizer="other")


def test_the_block_of_a_phase_with_rotations_is_that_of_the_start_model(run_of):
    phases = '[{"sequence_length": 16, "steps": 3, "global_rope_theta": 5000}]'
    run = run_of(phases=phases)
    assert settings_of(run).phases[0].global_rope_theta == 5000  # no model is read yet
    with pytest.raises(UserError, match="no rotary positions"):
        opened(run)


def test_a_decay_has_the_masks_and_rotations_of_the_checkpoints_phase(decays_from):
    first, second = MODERN_PHASES
    assert decays_from(60, phases=[first]) and decays_from(70, phases=[second])
    assert decays_from(70, phases=[second, first]), "a later phase may have its own"
    own = {
        "rows": {"masked_share": 0.2},
        "model": {"block": "modern", "global_rope_theta": 160_000},
    }
    assert decays_from(70, phases=[first], **own), "wherever it is said"
    of_block = {"global_rope_theta": 160_000.0}
    for step, phase, message in (
        (60, second, "keep them: model.global_rope_theta: 10000.0 -> 160000.0"),
        (70, first, "keep them: model.global_rope_theta: 160000.0 -> 10000.0"),
        (70, first | of_block, "keep them: rows.masked_share: 0.2 -> 0.3"),
    ):
        with pytest.raises(UserError, match=message) as raised:
            decays_from(step, phases=[phase])
        assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_a_vocabulary_that_is_extended_gives_the_model_rows(run_of, tmp_path, corpus, start_folder):
    old = load_tokenizer(corpus)
    tokenizer = extend_tokenizer(old, ["bakelimo nurashito"] * 9, 2)
    shards = write_corpus(tmp_path / "more", num_documents=60, tokenizer=tokenizer)
    run = run_of()
    run.shards = shards
    with pytest.raises(UserError, match="more word pieces than the start model has") as raised:
        opened(run)
    assert "--vocabulary extend" in raised.value.remedy
    run = run_of(vocabulary="extend")
    run.shards = shards
    train_here(run, 3)
    train_here(run)
    job = opened(run)
    (line,) = described_pieces(job.start, job.shards)
    assert "2 new: " in line
    (run.folder / "artifacts").mkdir()
    write_results(job)
    config, model, exported = load_model_folder(job.folder.model)
    assert exported.get_vocab() == tokenizer.get_vocab()
    start, _, _ = load_model_folder(start_folder)
    assert config.vocab_size == start.vocab_size  # its table was padded by four rows
    assert len(model.encoder.word_embeddings) == config.vocab_size
    run.shards = write_corpus(tmp_path / "other", seed=8)
    with pytest.raises(UserError, match="another tokenizer") as raised:
        opened(run)
    assert "--new_pieces 2000" in raised.value.remedy


@pytest.mark.slow
def test_a_first_phase_trains_rows_of_new_pieces_alone(run_of, tmp_path, corpus, start_folder):
    old = load_tokenizer(corpus)
    tokenizer = extend_tokenizer(old, ["bakelimo nurashito"] * 9, 2)
    phases = (
        '[{"sequence_length": 16, "steps": 5, "trains": "new_pieces"}, '
        '{"sequence_length": 16, "steps": 7}]'
    )
    given = {"vocabulary": "extend", "phases": phases, "optimizer.weight_decay": 0.5}
    whole, parts = run_of("whole", **given), run_of("parts", **given)
    for run in (whole, parts):
        run.shards = write_corpus(tmp_path / run.name, num_documents=60, tokenizer=tokenizer)
    train_here(whole)
    for stop_after in (2, 2, -1):
        train_here(parts, stop_after)
    assert parts.records() == whole.records()
    _, start, _ = load_model_folder(start_folder)
    weights = load_file(whole.checkpoints / "step-00000005" / "model.safetensors")
    before = start.state_dict()
    tables = {"encoder.embeddings.word.weight", "heads.masked_token.bias"}
    assert tables < weights.keys()
    for name, weight in weights.items():
        rows = old.get_vocab_size() if name in tables else None
        assert torch.equal(weight[:rows], before[name][:rows]), name
    new = weights["encoder.embeddings.word.weight"][old.get_vocab_size() :][:2]
    assert new.abs().sum() > 0
    last = load_file(whole.checkpoints / "step-00000012" / "model.safetensors")
    assert all(not torch.equal(last[name], weights[name]) for name in weights)
    assert not torch.equal(last["encoder.embeddings.word.weight"][old.get_vocab_size() :][:2], new)
    given = {"phases": phases}
    with pytest.raises(UserError, match="add --vocabulary extend"):
        opened(run_of("refused", **given))


@pytest.mark.slow
def test_a_head_that_was_drawn_is_trained_with_the_new_rows(run_of, tmp_path, corpus, start_folder):
    """The new rows are not what the model began with, and neither is the head."""
    config, model, old = load_model_folder(start_folder)
    bare = Bert(model.encoder, {})
    save_model_folder(tmp_path / "bare", bare, old, "# A card\n")
    tokenizer = extend_tokenizer(old, ["bakelimo nurashito"] * 9, 2)
    phases = '[{"sequence_length": 16, "steps": 5, "trains": "new_pieces"}]'
    run = run_of(start_from=tmp_path / "bare", vocabulary="extend", phases=phases)
    run.shards = write_corpus(tmp_path / "more", num_documents=60, tokenizer=tokenizer)
    train_here(run, 1)
    train_here(run)
    first, last = (
        load_file(run.checkpoints / f"step-0000000{step}" / "model.safetensors") for step in (1, 5)
    )
    moved = {name for name in first if not torch.equal(first[name], last[name])}
    assert moved == {
        "encoder.embeddings.word.weight",
        *(name for name in first if name.startswith("heads.")),
    }
