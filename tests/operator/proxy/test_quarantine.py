"""The list of quarantined IPUs, and the free blocks that they spoil."""

import logging

import pytest
from tests.operator.proxy.world import quarantined

from muster_operator.proxy.metrics import ProxyMetrics
from muster_operator.proxy.quarantine import quarantine_list
from muster_operator.proxy.quarantine.quarantine_list import QuarantinedIpus, parse_quarantine_map
from muster_operator.proxy.quarantine.quarantined_blocks import (
    IpuLayout,
    QuarantinedBlocks,
    count_quarantined_blocks,
    find_quarantined_blocks,
)
from muster_operator.vipu.controller import Ipu

IPUS = [Ipu("10.1.1.1", number) for number in range(6)]


def test_only_a_change_of_the_quarantine_is_a_change() -> None:
    listed = QuarantinedIpus(ProxyMetrics(), 4)
    assert [listed.update(data) for data in ({}, quarantined(IPUS[0]), quarantined(IPUS[0]), {})] == [
        False, True, False, True,
    ]  # fmt: skip
    assert listed.current == frozenset()


@pytest.mark.parametrize(("count", "more"), [(1, 0), (2, 0), (3, 1), (6, 4)])
def test_the_log_names_the_first_ipus_and_counts_the_others(
    count: int, more: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(quarantine_list, "LOGGED_LIMIT", 2)
    with caplog.at_level(logging.INFO, quarantine_list.__name__):
        QuarantinedIpus(ProxyMetrics(), 4).update(quarantined(*IPUS[:count]))
    [line] = caplog.messages
    named = [f"10.1.1.1/{number}" in line for number in range(6)]
    assert (named, f"{more} more" in line, "more" in line) == (
        [number < min(count, 2) for number in range(6)], bool(more), bool(more),
    )  # fmt: skip


def test_the_log_says_that_the_quarantine_has_ended_and_what_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    listed = QuarantinedIpus(ProxyMetrics(), 4)
    listed.update(quarantined(IPUS[0]))
    caplog.clear()
    with caplog.at_level(logging.INFO, quarantine_list.__name__):
        listed.update({"odd": "{"})
    skipped, ended = caplog.records
    assert (skipped.levelno, "odd" in skipped.getMessage(), ended.getMessage().endswith("none")) == (
        logging.ERROR, True, True,
    )  # fmt: skip


@pytest.mark.parametrize("text", ["{", '{"machine": "m"}', "[" * 100_000, '{"machine": "\udcff", "index": 1}'])
def test_any_invalid_entry_is_skipped_and_those_after_it_are_read(text: str) -> None:
    ipus, skipped = parse_quarantine_map({"a": text, **quarantined(IPUS[2])})
    assert (ipus, len(skipped)) == ({IPUS[2]}, 1)


@pytest.mark.parametrize(
    ("bad", "in_use", "size", "known"),
    [
        ({0}, set(), 4, 1),
        ({0, 3}, set(), 4, 1),
        ({4}, set(), 4, 0),  # the last two IPUs are no block of four
        ({4}, set(), 2, 1),
        ({0, 4}, {1}, 2, 1),
        ({5}, set(), 1, 1),
    ],
)
def test_a_layout_that_ends_within_a_block(bad: set[int], in_use: set[int], size: int, known: int) -> None:
    layout = IpuLayout(tuple(IPUS), frozenset(IPUS[number] for number in in_use))
    elsewhere = Ipu("10.9.9.9", 0)
    found = find_quarantined_blocks(layout, {elsewhere, *(IPUS[number] for number in bad)}, size)
    assert found == QuarantinedBlocks(known)


def test_without_a_layout_every_machine_may_be_anywhere() -> None:
    layout = IpuLayout((), frozenset([Ipu("a", 0)]))
    assert find_quarantined_blocks(layout, {Ipu("a", 1), Ipu("b", 3)}, 2) == QuarantinedBlocks(
        0, frozenset({("b", 1)}), frozenset({("a", 0)})
    )


def test_a_block_that_two_controllers_may_have_counts_once_and_not_if_one_of_them_uses_it() -> None:
    shared, other = ("a", 0), ("b", 0)
    first = QuarantinedBlocks(2, frozenset({shared, other}), frozenset())
    second = QuarantinedBlocks(1, frozenset({shared}), frozenset())
    assert count_quarantined_blocks([first, second]) == 5
    assert count_quarantined_blocks([first, QuarantinedBlocks(0, frozenset(), frozenset({other}))]) == 3
