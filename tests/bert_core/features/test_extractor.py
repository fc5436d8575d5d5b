import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertModel

from bert_core.errors import UserError
from bert_core.features.extractor import FeatureChoice, check_choice, load_extractor
from bert_core.features.states import states_at_places, stored_states
from bert_core.features.units import cut_words
from bert_core.model.bert import Bert
from bert_core.model.strategies import STRATEGIES, Strategy
from bert_core.model.tagger import FEATURE_TAGGER, FeatureTagger
from bert_core.model_folder import save_model_folder
from bert_core.tasks.encoded_rows import FeatureRows


def test_a_batch_brings_the_states_of_its_places(task, tokenizer, sentences):
    rows = task.encode(sentences, tokenizer)
    numbers = np.arange(len(rows.places), dtype=np.float32)
    states = [np.stack([numbers, -numbers], axis=1), np.stack([numbers * 2, numbers], axis=1)]
    items = np.array([7, 2, 30])
    plain = rows.batch(items, "packed")
    batch = FeatureRows.of(rows, states).batch(items, "packed")
    assert batch.states.shape == (2, len(plain.places), 2)
    found = batch.states[0, :, 0].long().numpy()
    assert torch.equal(torch.from_numpy(rows.labels[found]), batch.labels)
    np.testing.assert_array_equal(found, rows.places_of(items))
    assert torch.equal(batch.states[1, :, 0], 2 * batch.states[0, :, 0])
    for name in ("input_ids", "places", "place_counts", "labels"):
        assert torch.equal(getattr(batch, name), getattr(plain, name)), name
    assert batch.num_real_tokens == plain.num_real_tokens


def test_a_batch_without_labels_teaches_nothing(task, tokenizer, sentences):
    rows = task.encode(sentences, tokenizer)
    states = [np.zeros((len(rows.places), 2), np.float16)]
    batch = FeatureRows.of(rows, states).batch(np.array([0]), "packed", without_labels=True)
    assert (batch.labels < 0).all()
    assert batch.states.shape[1] == rows.place_counts[0]


CPU = torch.device("cpu")


def test_every_item_once_in_order_of_length_and_as_the_encoder_has_it(
    bert, task, tokenizer, sentences
):
    rows = task.encode(sentences, tokenizer)
    bert.encoder.train()
    seen = []
    for items, batch, states in states_at_places(
        bert.encoder, rows, (2, 0), device=CPU, max_tokens=30, autocast_dtype=None
    ):
        seen += items.tolist()
        expected = bert.encoder.hidden_states(*batch.inputs, layers=(2, 0), places=batch.places)
        assert not any(state.requires_grad for state in states)
        for left, right in zip(states, expected, strict=True):
            torch.testing.assert_close(left, right)
    assert sorted(seen) == list(range(rows.num_items))
    assert (np.diff(rows.item_lengths[seen]) <= 0).all()
    assert bert.encoder.training


@pytest.fixture
def rows(task, tokenizer, sentences):
    return task.encode(sentences, tokenizer)


def keep(bert, rows, folder, layers=(3, 0), **options):
    return stored_states(bert.encoder, rows, folder, layers, device=CPU, **options)


def test_states_stand_where_their_places_are(bert, rows, tmp_path):
    found = keep(bert, rows, tmp_path, dtype="float32", max_tokens=16)
    items = np.arange(rows.num_items)
    batch = rows.batch(items, "packed")
    with torch.inference_mode():
        expected = bert.encoder.hidden_states(*batch.inputs, layers=(3, 0), places=batch.places)
    for layer, states in zip(found, expected, strict=True):
        np.testing.assert_allclose(layer, states, atol=1e-5)


def test_half_precision_is_the_default(bert, rows, tmp_path):
    whole, half = keep(bert, rows, tmp_path, dtype="float32"), keep(bert, rows, tmp_path)
    for left, right in zip(whole, half, strict=True):
        assert right.dtype == np.float16
        np.testing.assert_array_equal(left.astype(np.float16), right)


def test_only_layers_that_are_missing_are_computed(bert, rows, tmp_path):
    shares = []
    keep(bert, rows, tmp_path, (1, 3), progress=shares.append)
    assert shares[-1] == 1
    assert shares == sorted(shares)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.npy")}
    assert len(times) == 2
    keep(bert, rows, tmp_path, (3, 1), progress=pytest.fail)
    del bert.encoder.layers[2]  # nothing above the second layer is needed for it
    keep(bert, rows, tmp_path, (1, 2, 3))
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    assert len(list(tmp_path.glob("*.npy"))) == 3


def test_an_unfinished_file_is_not_taken(bert, rows, tmp_path):
    def interrupt(share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep(bert, rows, tmp_path, progress=interrupt)
    assert not list(tmp_path.glob("layer-*"))
    assert np.isfinite(keep(bert, rows, tmp_path)[0]).all()
    assert not list(tmp_path.glob(".*"))


def test_files_that_are_not_these_features_are_refused(bert, rows, tmp_path):
    keep(bert, rows, tmp_path)
    path = tmp_path / "layer-03-float16.npy"
    np.save(path, np.zeros((2, 64), np.float16))
    with pytest.raises(UserError, match=r"features of shape \(2, 64\)"):
        keep(bert, rows, tmp_path)
    path.write_bytes(b"\x93NUMPY")
    with pytest.raises(UserError, match="damaged features"):
        keep(bert, rows, tmp_path)


TEXTS = [
    "The encoder's states are features.",
    "",
    "Short.",
    "Unaffable cats, aligned by hand: a longer sentence, with more of its words in pieces.",
]


@pytest.fixture(scope="module")
def theirs(minilm_folder):
    """What transformers computes for a text: its word ids and hidden states, [layers, seq, H]."""
    model = BertModel.from_pretrained(minilm_folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder)

    def compute(text, **options):
        encoded = tokenizer(text, return_tensors="pt", **options)
        with torch.no_grad():
            states = model(**encoded, output_hidden_states=True).hidden_states
        return encoded.word_ids(), torch.cat(states)

    return compute


@pytest.fixture
def extract(extractor_of):
    return lambda texts=TEXTS, **choice: extractor_of(**choice).of_texts(texts)


@pytest.mark.parametrize(
    ("pooling", "pooled"),
    [
        ("mean", lambda states: states.mean(0)),
        ("cls", lambda states: states[0]),
        ("max", lambda states: states.amax(0)),
    ],
)
def test_a_text_is_pooled_as_by_transformers(extract, theirs, pooling, pooled):
    found = extract(pooling=pooling)
    expected = np.stack([pooled(theirs(text)[1][-1]) for text in TEXTS])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", STRATEGIES)
def test_tokens_have_the_states_of_transformers(extract, theirs, name):
    found = extract(unit="token", strategy=STRATEGIES[name])
    layers = STRATEGIES[name].layers_of(6)
    states = [[theirs(text)[1][layer, 1:-1] for layer in layers] for text in TEXTS]
    expected = torch.cat([STRATEGIES[name].combine(state) for state in states])
    atol = 4e-5 if name == "sum_last_four" else 1e-5  # the rounding of four layers adds up
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("pooling", "pooled"),
    [
        ("first", lambda states: states[0]),
        ("mean", lambda states: states.mean(0)),
        ("max", lambda states: states.amax(0)),
    ],
)
def test_words_that_come_as_lists_are_pooled_over_their_pieces(
    extractor_of, theirs, pooling, pooled
):
    lists = [["Unaffable", "cats", "U.S.A."], [], ["Short"]]
    extractor = extractor_of(unit="word", pooling=pooling)
    found = extractor.of_rows(extractor.rows(cut_words(extractor.tokenizer, lists)))
    expected = []
    for words in lists[::2]:
        ids, states = theirs(words, is_split_into_words=True)
        expected += [
            pooled(states[-1][[place for place, word in enumerate(ids) if word == number]])
            for number in range(len(words))
        ]
    np.testing.assert_allclose(found, np.stack(expected), rtol=0, atol=1e-5)


def test_a_word_without_tokens_has_zeros(extractor_of):
    for pooling in ("first", "max"):
        extractor = extractor_of(unit="word", pooling=pooling)
        rows = extractor.rows(cut_words(extractor.tokenizer, [["cat", "\u200b"]]))
        found = extractor.of_rows(rows)
        assert found.shape == (2, 384)
        assert found[0].any()
        assert not found[1].any()


def test_batches_do_not_change_a_feature(extract, extractor_of):
    expected = extract(normalize=True)
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1, rtol=1e-5)
    for max_tokens in (1, 8, 20):
        found = extractor_of(max_tokens, normalize=True).of_texts(TEXTS)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_a_long_text_is_the_mean_of_what_its_windows_show(extract, theirs):
    """A text of one window of 10 tokens, half of it again in the next, and so on."""
    words = [f"{number}" for number in range(10, 33)]  # a token each
    found = extract([" ".join(words)], max_length=12, pooling="cls")
    starts = [0, 5, 10, 15]
    windows = [" ".join(words[start : start + 10]) for start in starts]
    states = [theirs(window)[1][-1].numpy() for window in windows]
    expected = np.mean([state[0] for state in states], axis=0)
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-5)

    tokens = extract([" ".join(words)], max_length=12, unit="token")
    assert len(tokens) == len(words)
    for token, window in ((0, 0), (10, 1), (15, 2), (22, 3)):
        shown = states[window][1 + token - starts[window]]
        np.testing.assert_allclose(tokens[token], shown, rtol=0, atol=1e-5)


def test_layers_are_weighted_as_asked(extract):
    last = extract(strategy=STRATEGIES["last"])
    weights = (0.0, 0.0, 0.0, 0.0, 0.0, 2.0)
    found = extract(strategy=STRATEGIES["weighted_sum_all"], layer_weights=weights)
    np.testing.assert_allclose(found, 2 * last, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"layer_weights": (1.0,)}, "last has no weights of layers: layer_weights"),
        (
            {"strategy": STRATEGIES["weighted_sum_last_four"], "layer_weights": (1.0, 2.0)},
            "weighted_sum_last_four reads 4 layers, not 2: layer_weights",
        ),
        ({"unit": "token", "pooling": "mean"}, "a token is not pooled by mean: pooling"),
        ({"unit": "word", "pooling": "cls"}, "a word is not pooled by cls: pooling .take first"),
        ({"max_length": 513}, "rows of 513 tokens: max_length"),
        ({"max_length": 7}, "rows of 7 tokens: max_length"),
        ({"max_length": 32, "stride": 31}, "windows 31 tokens apart: stride"),
        ({"stride": 0}, "windows 0 tokens apart: stride"),
    ],
)
def test_what_the_encoder_cannot_give_is_refused(extractor_of, choice, message):
    with pytest.raises(UserError, match=message):
        check_choice(FeatureChoice(**choice), extractor_of().encoder.config)


def test_a_tagger_s_learned_weights_are_taken_for_its_layers(bert, tokenizer, tmp_path):
    two = Strategy("two", (1, 3), "weighted_sum")
    tagger = FeatureTagger(two, bert.config, num_outputs=3, lstm_size=4)
    tagger.mix.logits.data = torch.tensor([0.5, -1.0])
    tagger.mix.scale.data = torch.tensor(1.5)
    folder = tmp_path / "tagger"
    save_model_folder(folder, Bert(bert.encoder, {FEATURE_TAGGER: tagger}), tokenizer, card="")
    learned = tuple((1.5 * tagger.mix.logits.softmax(0)).tolist())

    def of(strategy, weights=None):
        choice = FeatureChoice(strategy, layer_weights=weights)
        return load_extractor(folder, choice).of_texts(["Anna sat", "the cats"])

    found = of(two)
    np.testing.assert_array_equal(found, of(two, learned))
    assert np.abs(found - of(two, (0.5, 0.5))).max() > 0.01
    # It has learned nothing of other layers: those have equal weights.
    every = STRATEGIES["weighted_sum_all"]
    np.testing.assert_array_equal(of(every), of(every, (1 / 3,) * 3))
