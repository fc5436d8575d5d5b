"""Likely words are those of `transformers`, wherever a [MASK] stands."""

import pytest
import torch

from bert_core.errors import UserError
from bert_core.pretrained.fill_mask import MASK, FillMask, target_ids
from bert_core.pretrained.heads import masked_token_answers

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


def test_a_sequence_has_the_word_and_a_sub_word_goes_on(opened):
    _, tokenizer = opened
    codec = FillMask(tokenizer, 32)
    text = f"a {MASK}, slowly"
    words = [codec._candidate(tokenizer.token_to_id(w), 0.0, text, 2, 8) for w in ("cat", "##t")]
    assert [each["sequence"] for each in words] == ["a cat, slowly", "at, slowly"]


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
    with pytest.raises(UserError, match=r"no single token.*zzz"):
        target_ids(opened[1], ["cat", "zzz zzz"])


def test_long_texts_have_windows_or_lose_masks(fill):
    text = f"{MASK} " + LONG * 20 + f"{MASK} " + LONG * 20 + MASK
    (masks,), rows = fill([text])
    assert [each["start"] for each in masks] == [0, text.index(MASK, 1), len(text) - len(MASK)]
    assert len(rows.lengths) > 3 and not rows.truncated[0]
    for side, start in (("right", 0), ("left", len(text) - len(MASK))):
        (masks,), rows = fill([text], overflow=side)
        assert [each["start"] for each in masks] == [start]
        assert rows.truncated.tolist() == [True] and rows.num_tokens[0] > 200
