"""Losses between vectors, beside those of sentence-transformers."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bert_core.tasks.contrastive import Groups, contrastive_loss, sparse_loss

SIZE = 8


def vectors(count, seed=0):
    return torch.randn(count, SIZE, generator=torch.Generator().manual_seed(seed))


def groups_of(kind, *texts, values=()):
    return Groups.of(kind, [np.array(each) for each in texts], values)


def with_gradients(found, groups, sizes=()):
    found = found.clone().requires_grad_()
    loss, right = contrastive_loss(found, groups, scale=20.0, sizes=sizes)
    loss.backward()
    return loss.detach(), found.grad, int(right)


@pytest.fixture(scope="module")
def theirs():
    return pytest.importorskip("sentence_transformers.sentence_transformer.losses")


def their_loss(loss, columns, labels=None):
    """A loss of theirs over vectors; the model is never asked."""
    columns = [each.clone().requires_grad_() for each in columns]
    found = loss.compute_loss_from_embeddings(columns, labels)
    found.backward()
    return found.detach(), [each.grad for each in columns]


@pytest.mark.parametrize("num_negatives", [0, 2])
def test_pairs_have_the_ranking_loss_of_sentence_transformers(theirs, num_negatives):
    columns = [vectors(5, seed) for seed in range(2 + num_negatives)]
    loss = theirs.MultipleNegativesRankingLoss(torch.nn.Identity())
    expected, gradients = their_loss(loss, columns)
    texts = [[row + 5 * column for column in range(len(columns))] for row in range(5)]
    found, gradient, _ = with_gradients(torch.cat(columns), groups_of("pairs", *texts))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, torch.cat(gradients))


def test_sparse_vectors_have_the_loss_of_splade(theirs):
    losses = pytest.importorskip("sentence_transformers.sparse_encoder.losses")
    columns = [vectors(5, seed).relu().requires_grad_() for seed in range(3)]
    model = torch.nn.Identity()
    ranking = losses.SparseMultipleNegativesRankingLoss(model)
    flops = losses.FlopsLoss(model).compute_loss_from_embeddings
    expected = ranking.compute_loss_from_embeddings(columns, None)
    expected = expected + 0.3 * flops(columns[0]) + 0.2 * flops(torch.cat(columns[1:]))
    expected.backward()
    texts = [[row + 5 * column for column in range(3)] for row in range(5)]
    mine = torch.cat([each.detach() for each in columns]).requires_grad_()
    groups = groups_of("pairs", *texts)
    found, _ = sparse_loss(mine, groups, scale=1.0, of_queries=0.3, of_passages=0.2)
    found.backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(mine.grad, torch.cat([each.grad for each in columns]))


def test_scores_have_the_loss_of_cosent(theirs):
    columns, scores = [vectors(6, seed) for seed in range(2)], [3.0, 1.0, 1.0, 5.0, 0.5, 3.0]
    loss = theirs.CoSENTLoss(torch.nn.Identity())
    expected, gradients = their_loss(loss, columns, torch.tensor(scores))
    groups = groups_of("scores", *[[row, row + 6] for row in range(6)], values=scores)
    found, gradient, _ = with_gradients(torch.cat(columns), groups)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, torch.cat(gradients))


def test_sizes_add_the_losses_of_shorter_vectors():
    found = vectors(6)
    groups = groups_of("pairs", [0, 3], [1, 4], [2, 5])
    whole, gradient, _ = with_gradients(found, groups)
    short, short_gradient, _ = with_gradients(found[:, :4], groups)
    both, both_gradient, _ = with_gradients(found, groups, sizes=[SIZE, 4])
    torch.testing.assert_close(both, whole + short)
    torch.testing.assert_close(both_gradient, gradient + F.pad(short_gradient, (0, 4)))


def test_what_belongs_to_a_query_is_never_a_wrong_answer_of_it():
    """Two queries of one passage, and one query of two passages, as SQuAD has them."""
    found = vectors(5)
    shared = groups_of("pairs", [0, 3], [1, 3], [2, 4])
    assert shared.candidates.tolist() == [3, 4] and not shared.blocked.any()
    asked_twice = groups_of("pairs", [0, 3], [0, 4], [1, 2])
    cosines = F.normalize(found, dim=1) @ F.normalize(found, dim=1).T * 20
    losses = []
    for query, passage, others in ((0, 3, [2]), (0, 4, [2]), (1, 2, [3, 4])):
        losses.append(-cosines[query, [passage, *others]].log_softmax(0)[0])
    loss, _, _ = with_gradients(found, asked_twice)
    torch.testing.assert_close(loss, torch.stack(losses).mean())


def test_texts_of_a_class_are_drawn_together():
    found = vectors(5)
    groups = groups_of("labels", [0], [1], [2], [3], [4], values=[1, 2, 1, 1, 3])
    cosines = F.normalize(found, dim=1) @ F.normalize(found, dim=1).T * 20
    losses = []
    for anchor, friends in ((0, [2, 3]), (2, [0, 3]), (3, [0, 2])):
        others = [each for each in range(5) if each != anchor]
        logs = cosines[anchor, others].log_softmax(0)
        losses.append(-logs[[others.index(friend) for friend in friends]].mean())
    loss, gradient, _ = with_gradients(found, groups)
    torch.testing.assert_close(loss, torch.stack(losses).mean())
    assert gradient.isfinite().all()


def test_right_is_what_is_nearest_to_its_query():
    found = torch.eye(SIZE)[[0, 1, 2, 0, 1, 3]]
    _, _, right = with_gradients(found, groups_of("pairs", [0, 3], [1, 4], [2, 5]))
    assert right == 2
    _, _, right = with_gradients(
        found, groups_of("labels", *[[n] for n in range(6)], values=[1, 2, 3, 1, 2, 4])
    )
    assert right == 4
