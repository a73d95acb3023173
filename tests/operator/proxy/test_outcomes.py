"""Refusals that are kept for the request that they concern."""

from typing import Any

import pytest

from muster_operator.job.partition_api import PartitionRefusal
from muster_operator.proxy.partitions import outcomes
from muster_operator.proxy.partitions.outcomes import PartitionOutcomes

REFUSAL = PartitionRefusal(why="NoRoom", message="full")


async def _kept(kept: PartitionOutcomes, names: str) -> str:
    return "".join([name for name in names if await kept.wait(name, lambda _: True, 0.0) is not None])


async def test_so_many_refusals_are_kept_that_nobody_picks_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "REFUSALS_LIMIT", 3)
    store: Any = type("Store", (), {"find_entry": lambda _self, _name: None})()
    kept = PartitionOutcomes(store)
    for name in "abc":
        kept.refuse(name, REFUSAL)
    assert await _kept(kept, "abcd") == "abc"
    for name in "abcd":
        kept.refuse(name, REFUSAL)
    assert await _kept(kept, "abcd") == "d"


async def test_a_refusal_is_for_one_request_and_none_if_it_is_forgotten() -> None:
    store: Any = type("Store", (), {"find_entry": lambda _self, _name: None})()
    kept = PartitionOutcomes(store)
    kept.refuse("a", REFUSAL)
    assert (await kept.wait("a", lambda _: True, 9.0), await kept.wait("a", lambda _: True, 9.0)) == (REFUSAL, None)
    kept.refuse("a", REFUSAL)
    kept.forget("a")
    assert await kept.wait("a", lambda _: True, 9.0) is None
