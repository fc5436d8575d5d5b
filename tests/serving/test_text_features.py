"""Long texts whose features are wanted: in windows, or cut."""

import numpy as np
import pytest

from bert_core.features.extractor import FeatureChoice, load_extractor
from serving.text_features import decode_features, encode_texts


@pytest.fixture
def extractor(small_models):
    choice = FeatureChoice(unit="word", pooling="mean", max_length=8)
    return load_extractor(small_models["encoder"], choice)


def features(extractor, texts, overflow):
    encoded = encode_texts(extractor, texts, overflow)
    states = np.arange(len(encoded.rows.units) * 32, dtype=np.float32).reshape(-1, 32)
    return encoded, decode_features(extractor, encoded, [states])


@pytest.mark.parametrize("overflow", ["left", "right", "window", "error"])
def test_words_that_are_left_have_vectors(extractor, overflow):
    texts = ["the cat sat on a mat dogs run", "a cat"]
    encoded, found = features(extractor, texts, overflow)
    assert encoded.too_long.tolist() == [True, False]
    is_cut = overflow in ("left", "right")
    assert [each.truncated for each in found] == [is_cut, False]
    for text, each in zip(texts, found, strict=True):
        assert len(each.units) == len(each.vectors)
        assert all(word == text[a:b] for word, a, b in each.units)
    words = [[word for word, *_ in each.units] for each in found]
    assert words[1] == ["a", "cat"]
    if is_cut:
        whole = texts[0].split()
        assert words[0] and len(words[0]) < len(whole)
        kept = whole[: len(words[0])] if overflow == "right" else whole[-len(words[0]) :]
        # The word at the edge may have lost some of its letters' tokens.
        assert words[0][1:-1] == kept[1:-1]
    else:
        assert words[0] == texts[0].split()
    assert found[1].num_tokens == int(encoded.num_tokens[1])
