"""Log probabilities of masked tokens, against one plain pass of `transformers` for each."""

import math

import numpy as np
import pytest
import torch

from bert_core.pretrained.heads import masked_token_answers
from bert_core.pretrained.pseudo_perplexity import PseudoPerplexity


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
