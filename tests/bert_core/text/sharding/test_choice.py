import numpy as np
import pytest

from bert_core.text.pieces import DUPLICATE, HELDOUT, TRAIN, choose_documents, choose_sample


def some_hashes(num, seed=0):
    return np.random.default_rng(seed).integers(0, 2**64, num, dtype=np.uint64)


def test_the_first_of_equal_documents_stays():
    hashes = some_hashes(50)
    repeated = np.concatenate([hashes, hashes[:10], hashes[:5]])
    choice = choose_documents(repeated, 0.1)
    assert (choice[50:] == DUPLICATE).all() and (choice[:50] != DUPLICATE).all()
    assert (choice[:50] == choose_documents(hashes, 0.1)).all()


def test_the_share_held_out():
    choice = choose_documents(some_hashes(100_000), 0.02)
    assert 0.018 < (choice == HELDOUT).mean() < 0.022
    assert (choose_documents(some_hashes(100), 0) == TRAIN).all()


def test_the_choice_of_a_document_does_not_hang_on_the_others():
    hashes = some_hashes(5000)
    choice = choose_documents(hashes, 0.05)
    assert (choose_documents(hashes[::-1], 0.05)[::-1] == choice).all()
    assert (choose_documents(hashes[:2500], 0.05) == choice[:2500]).all()


@pytest.mark.parametrize("share", [0.001, 0.999])
def test_small_corpora_have_both_splits(share):
    for num, least in ((2, 1), (3, 1), (4, 2), (10, 2)):
        for seed in range(10):
            choice = choose_documents(some_hashes(num, seed), share).tolist()
            assert choice.count(HELDOUT) >= least and choice.count(TRAIN) >= least
    assert choose_documents(some_hashes(1), share).tolist() == [TRAIN]
    assert choose_documents(some_hashes(0), share).tolist() == []


def test_the_sample_is_of_the_whole_corpus_and_within_its_budget():
    hashes, sizes = some_hashes(10_000), np.full(10_000, 100, dtype=np.uint64)
    choice = choose_documents(hashes, 0.1)
    sample = choose_sample(hashes, sizes, choice, 200_000)
    assert sample.sum() == 2000 and (choice[sample] == TRAIN).all()
    halves = sample[:5000].sum(), sample[5000:].sum()
    assert min(halves) > 900
    assert (choose_sample(hashes, sizes, choice, 10**9) == (choice == TRAIN)).all()
    assert choose_sample(hashes, sizes, choice, 1).sum() == 1


def test_the_sample_hangs_on_hashes_alone():
    hashes, sizes = some_hashes(1000), some_hashes(1000, 1) % np.uint64(500)
    choice = choose_documents(hashes, 0.1)
    sample = choose_sample(hashes, sizes, choice, 50_000)
    other = choose_sample(hashes[::-1], sizes[::-1], choice[::-1], 50_000)
    assert (other[::-1] == sample).all()
