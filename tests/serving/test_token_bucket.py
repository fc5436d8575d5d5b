"""Tokens are used up, come back, and are counted over several servers."""

import time

import pytest

from serving.token_bucket import RateLimitError, TokenBucket


def test_tokens_are_used_up_and_come_back():
    bucket = TokenBucket(6000)
    bucket.pay(5900)
    bucket.pay(120)  # a debt of 20, which is a fifth of a second
    with pytest.raises(RateLimitError) as told:
        bucket.pay(1)
    assert 0 < told.value.retry_after <= 0.21
    time.sleep(told.value.retry_after + 0.02)
    bucket.pay(1)


def test_one_that_stands_for_several_knows_what_each_has_taken():
    whole, first, second = (TokenBucket(60) for _ in range(3))
    first.pay(50)
    second.pay(30)
    for each in (first, second):
        each.correct(whole.settle(each.take_paid()))
    with pytest.raises(RateLimitError):
        second.pay(1)  # 20 are owed, as it was told last
    first.pay(1)  # was told before that 10 are left
    assert first.take_paid() == 1 and second.take_paid() == 0


def test_what_is_paid_while_they_agree_counts_once():
    whole, mine = TokenBucket(60), TokenBucket(60)
    mine.pay(20)
    paid = mine.take_paid()
    mine.pay(30)  # meanwhile
    mine.correct(whole.settle(paid))
    mine.pay(9)
    assert mine.take_paid() == 39
    mine.pay(2)  # 1 is left
    with pytest.raises(RateLimitError):
        mine.pay(1)


def test_what_could_not_be_told_is_told_another_time():
    bucket = TokenBucket(60)
    bucket.pay(20)
    bucket.put_back(bucket.take_paid())
    bucket.pay(1)
    assert bucket.take_paid() == 21
