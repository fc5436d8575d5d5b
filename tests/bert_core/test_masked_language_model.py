"""A small encoder with its pre-training heads, ours and the same of `transformers`."""

import math

import numpy as np
import pytest
import torch
from small_tasks import write_encoder
from tokenizers import AddedToken
from transformers import BertForPreTraining

from bert_core.errors import UserError
from bert_core.masked_language_model import (
    MASK,
    FillMask,
    PseudoPerplexity,
    masked_token_answers,
    next_sentence_answers,
    target_ids,
)
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.task import hidden_states


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A model folder whose answers vary from text to text."""
    folder = write_encoder(tmp_path_factory.mktemp("pretrained") / "model")
    _, model, tokenizer = load_model_folder(folder)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data *= 10
    save_model_folder(folder, model, tokenizer, card="")
    return folder


@pytest.fixture(scope="session")
def opened(folder):
    """Our model and its tokenizer."""
    _, model, tokenizer = load_model_folder(folder)
    return model.eval(), tokenizer


@pytest.fixture(scope="session")
def published(folder):
    """The same as `transformers` loads it."""
    return BertForPreTraining.from_pretrained(folder).eval()


@pytest.fixture(scope="session")
def outputs_of(opened):
    """What a head says at all places of rows, [P, L], computed in one micro-batch."""
    model, _ = opened

    def compute(rows, head):
        if not rows.num_items:
            return np.zeros((0, 1), dtype=np.float32)
        batch = rows.batch(np.arange(rows.num_items), "packed")
        with torch.inference_mode():
            states = hidden_states(model.encoder, batch, (model.config.num_hidden_layers,))
            return head(model, states, batch.place_counts).numpy()

    return compute


LONG = "the cat sat on a mat "


@pytest.fixture
def fill(opened, outputs_of):
    """What is found for texts."""
    _, tokenizer = opened

    def find(texts, **options):
        codec = FillMask(tokenizer, **{"max_length": 32} | options)
        rows = codec.encode(texts, tokenizer)
        found = codec.decode(outputs_of(rows, masked_token_answers), rows, texts)
        return [each["masks"] for each in found], rows

    return find


def test_candidates_are_those_of_transformers(opened, published, fill):
    _, tokenizer = opened
    texts = [f"the {MASK} sat on a {MASK}", f"{MASK}", "no mask", f"dogs {MASK} away"]
    found, rows = fill(texts, top_k=4)
    assert rows.num_tokens.tolist() == [len(tokenizer.encode(each)) for each in texts]
    for text, masks in zip(texts, found, strict=True):
        encoding = tokenizer.encode(text)
        with torch.inference_mode():
            logits = published(input_ids=torch.tensor([encoding.ids])).prediction_logits[0]
        places = [i for i, each in enumerate(encoding.ids) if each == tokenizer.token_to_id(MASK)]
        assert len(masks) == len(places)
        for mask, place in zip(masks, places, strict=True):
            assert text[mask["start"] : mask["end"]] == MASK
            best = logits[place].softmax(-1)[: tokenizer.get_vocab_size()].topk(4)
            assert [each["id"] for each in mask["candidates"]] == best.indices.tolist()
            scores = [each["score"] for each in mask["candidates"]]
            assert scores == pytest.approx(best.values.tolist(), abs=1e-5)
            for each in mask["candidates"]:
                assert each["token"] == tokenizer.id_to_token(each["id"])


@pytest.mark.parametrize("side", ["lstrip", "rstrip"])
def test_a_mask_that_takes_in_a_space_leaves_it_in_the_sequence(folder, outputs_of, side):
    _, _, tokenizer = load_model_folder(folder)
    tokenizer.add_special_tokens([AddedToken(MASK, **{side: True})])
    codec, texts = FillMask(tokenizer, 32), [f"the {MASK} sat"]
    rows = codec.encode(texts, tokenizer)
    (found,) = codec.decode(outputs_of(rows, masked_token_answers), rows, texts)
    (mask,) = found["masks"]
    assert (mask["start"], mask["end"]) == (4, 4 + len(MASK))
    whole = [each for each in mask["candidates"] if not each["token"].startswith("##")]
    assert whole and all(each["sequence"] == f"the {each['token']} sat" for each in whole)


def test_a_sequence_has_the_word_and_a_sub_word_goes_on(opened):
    _, tokenizer = opened
    codec = FillMask(tokenizer, 32)
    text = f"a {MASK}, slowly"
    words = [codec._candidate(tokenizer.token_to_id(w), 0.0, text, 2, 8) for w in ("cat", "##t")]
    assert [word["sequence"] for word in words] == ["a cat, slowly", "at, slowly"]


def test_targets_are_ranked_by_their_share_of_all(opened, fill):
    _, tokenizer = opened
    targets = target_ids(tokenizer, ["cat", "MAT", "cat"])
    assert len(targets) == 2
    (everything, some), _ = fill([f"a {MASK}"] * 2, top_k=200)[0], None
    shares = {each["id"]: each["score"] for each in everything[0]["candidates"]}
    ((chosen,),), _ = fill([f"a {MASK}"], targets=targets)
    for each in chosen["candidates"]:
        assert each["score"] == pytest.approx(shares[each["id"]], abs=1e-6)
    assert sorted(targets) == sorted(each["id"] for each in chosen["candidates"])
    assert some[0]["candidates"] == everything[0]["candidates"]


def test_a_target_that_is_no_token_is_named(opened):
    with pytest.raises(UserError, match=r"not one token.*zzz"):
        target_ids(opened[1], ["cat", "zzz zzz"])


def test_long_texts_have_windows_or_lose_masks(fill):
    text = f"{MASK} " + LONG * 20 + f"{MASK} " + LONG * 20 + MASK
    (masks,), rows = fill([text])
    assert [mask["start"] for mask in masks] == [0, text.index(MASK, 1), len(text) - len(MASK)]
    assert len(rows.lengths) > 3 and not rows.truncated[0]
    for side, start in (("right", 0), ("left", len(text) - len(MASK))):
        (masks,), rows = fill([text], overflow=side)
        assert [mask["start"] for mask in masks] == [start]
        assert rows.truncated.tolist() == [True] and rows.num_tokens[0] > 200


def test_the_next_sentence_is_judged_as_by_transformers(opened, published, outputs_of):
    _, tokenizer = opened
    pairs = [("the cat sat", "on a mat"), ("dogs run", "far away slowly the cat")]
    task = Classification(labels=("is_next", "not_next"), second_column="second")
    rows = task.encode([Text(*pair, None) for pair in pairs], tokenizer)
    found = outputs_of(rows, next_sentence_answers)
    for pair, logits in zip(pairs, found, strict=True):
        encoding = tokenizer.encode(*pair)
        with torch.inference_mode():
            wanted = published(
                input_ids=torch.tensor([encoding.ids]),
                token_type_ids=torch.tensor([encoding.type_ids]),
            ).seq_relationship_logits
        np.testing.assert_allclose(logits, wanted[0].numpy(), atol=1e-4)


@pytest.fixture
def judge(opened, outputs_of):
    """What is found for texts."""
    _, tokenizer = opened

    def find(texts, **options):
        codec = PseudoPerplexity(**{"max_length": 32} | options)
        rows = codec.encode(texts, tokenizer)
        targets = rows.notes["targets"][:, None]
        if not len(targets):
            return codec.decode(np.zeros((0, 1), dtype=np.float32), rows, texts), rows
        logits = torch.from_numpy(outputs_of(rows, masked_token_answers))
        found = logits.log_softmax(1).gather(1, torch.from_numpy(targets)).numpy()
        return codec.decode(found, rows, texts), rows

    return find


@pytest.mark.parametrize("masking", ["token", "rest_of_word"])
def test_each_token_is_masked_in_turn(opened, published, judge, masking):
    _, tokenizer = opened
    texts = ["the catmats sat, slowly", "a", "", "dogsdogs run"]
    found, rows = judge(texts, masking=masking)
    assert any("##" in token for token in tokenizer.encode(texts[0]).tokens)
    mask = tokenizer.token_to_id("[MASK]")
    for text, each in zip(texts, found, strict=True):
        encoding = tokenizer.encode(text)
        wanted = []
        for place in range(1, len(encoding.ids) - 1):
            ids = list(encoding.ids)
            ids[place] = mask
            following = place + 1
            while masking == "rest_of_word" and encoding.tokens[following].startswith("##"):
                ids[following] = mask
                following += 1
            with torch.inference_mode():
                logits = published(input_ids=torch.tensor([ids])).prediction_logits[0, place]
            wanted.append(float(logits.log_softmax(-1)[encoding.ids[place]]))
        assert [token["log_probability"] for token in each["tokens"]] == pytest.approx(
            wanted, abs=1e-4
        )
        spans = [(token["start"], token["end"]) for token in each["tokens"]]
        assert spans == encoding.offsets[1:-1]
        assert each["pseudo_log_likelihood"] == pytest.approx(sum(wanted), abs=1e-3)
        if wanted:
            mean = -sum(wanted) / len(wanted)
            assert each["pseudo_perplexity"] == pytest.approx(math.exp(mean), rel=1e-4)
        else:
            assert each["pseudo_perplexity"] is None
    assert rows.num_tokens.tolist() == [len(tokenizer.encode(each)) for each in texts]


@pytest.mark.parametrize("masking", ["token", "rest_of_word"])
def test_tokens_of_long_texts_are_judged_once(opened, judge, masking):
    _, tokenizer = opened
    text = "the catmats sat on a mat " * 12
    (found,), rows = judge([text], masking=masking)
    assert rows.lengths.max() == 32
    assert len(found["tokens"]) == len(tokenizer.encode(text)) - 2 == len(rows.lengths)
    assert not rows.truncated.any()
    ends = np.cumsum(rows.lengths)
    masked = rows.input_ids[ends - rows.lengths + rows.places]
    assert set(masked.tolist()) == {tokenizer.token_to_id("[MASK]")}
    assert (rows.input_ids[ends - 1] == tokenizer.token_to_id("[SEP]")).all()


def test_what_is_cut_off_is_not_judged(judge):
    (found,), rows = judge(["the cat sat " * 20], overflow="right")
    assert len(found["tokens"]) == 30 and rows.truncated[0]
