import pytest

from muster_kube.controller.token_bucket import KEYS_LIMIT, TokenBucket, TokenBuckets


def test_a_burst_is_free_and_then_one_token_comes_every_refill_s():
    bucket = TokenBucket(3, 10.0)
    assert [bucket.take(100.0) for _ in range(4)] == [0.0, 0.0, 0.0, 10.0]
    assert bucket.take(104.0) == pytest.approx(6.0)
    assert bucket.take(110.0) == 0.0
    assert bucket.take(110.0) == pytest.approx(10.0)


def test_a_quiet_time_fills_it_no_further_than_a_burst():
    bucket = TokenBucket(2, 1.0)
    assert [bucket.take(now) for now in (0.0, 1000.0, 1000.0, 1000.0)] == [0.0, 0.0, 0.0, 1.0]


def test_a_clock_that_goes_back_fills_nothing():
    bucket = TokenBucket(1, 1.0)
    assert bucket.take(10.0) == 0.0
    assert bucket.take(5.0) == 1.0


def test_each_key_has_a_bucket_of_its_own_and_the_quietest_is_forgotten():
    now = 0.0
    buckets = TokenBuckets(1, 60.0, lambda: now)
    assert [buckets.take("a"), buckets.take("a"), buckets.take("b")] == [0.0, 60.0, 0.0]
    for number in range(KEYS_LIMIT - 1):
        buckets.take(str(number))
    assert [buckets.take("b"), buckets.take("a")] == [60.0, 0.0]
    buckets.clear()
    assert buckets.take("b") == 0.0
