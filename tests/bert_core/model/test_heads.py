import torch

from bert_core.model.heads import MaskedTokenHead, NextSentenceHead, Pooler
from bert_core.model.layout import Packed


def test_masked_token_head_projects_onto_the_words_it_is_given(small_config):
    head = MaskedTokenHead(small_config)
    states, words = torch.randn(5, 64), torch.randn(1000, 64)
    with torch.no_grad():
        head.bias += torch.arange(1000)
    logits = head(states, words)
    assert logits.shape == (5, 1000)
    torch.testing.assert_close(logits, head.features(states) @ words.T + torch.arange(1000))
    assert not any(parameter.shape == words.shape for parameter in head.parameters())


def test_pooler_reads_the_first_token_of_each_sequence(small_config):
    pooler = Pooler(small_config)
    states = torch.randn(9, 64)
    first_states = states[Packed.from_lengths([4, 3, 2]).first_positions]
    torch.testing.assert_close(first_states, states[[0, 4, 7]])
    pooled = pooler(first_states)
    torch.testing.assert_close(pooled, torch.tanh(pooler.dense(first_states)))
    assert pooled.abs().max() < 1


def test_next_sentence_head_has_two_answers(small_config):
    assert NextSentenceHead(small_config)(torch.randn(3, 64)).shape == (3, 2)
