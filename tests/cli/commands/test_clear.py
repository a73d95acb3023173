"""`muster clear`: what it asks for, from what is there."""

import argparse
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands.test_run import kubeconfig
from tests.cli.commands.test_status import HEALTHS, XID, check, cluster, health, node
from tests.wording.facts import missing_facts

from muster_cli.__main__ import main
from muster_cli.commands.clear import add_arguments, split_check
from muster_kube.api.objects import Metadata
from muster_kube.nodehealth import CLEAR_LIMIT, ClearEntry, NodeHealth
from muster_tainter.faults.manual_clear import clear_entries, merge_clears
from muster_tainter.faults.record.node_record import Fault, NodeRecord


def asked(*faults: tuple[str, str, int], component: str | None = None) -> list[tuple[str, str, int]]:
    memory = NodeRecord(open=tuple(Fault(check=c, component=d, reason="Xid79", occurrence=n) for c, d, n in faults))
    health = NodeHealth(metadata=Metadata(name="n1"))
    return [(e.check, e.component, e.occurrence) for e in clear_entries(health, memory, None, component, "me", "now")]


def test_each_component_is_cleared_up_to_its_highest_number() -> None:
    assert asked(("dmesg", "gpu/1", 3), ("dmesg", "gpu/2", 5), ("dmesg", "gpu/1", 4)) == [
        ("dmesg", "gpu/1", 4),
        ("dmesg", "gpu/2", 5),
    ]


def test_more_components_than_there_is_room_for_are_cleared_together_and_none_is_left_out() -> None:
    many = [("dmesg", f"gpu/{n}", n) for n in range(1, CLEAR_LIMIT + 10)]
    assert asked(*many, ("ping", "nic/0", 2)) == [("dmesg", "*", CLEAR_LIMIT + 9), ("ping", "*", 2)]


def test_one_component_of_many_is_cleared_alone() -> None:
    many = [("dmesg", f"gpu/{n}", n) for n in range(1, CLEAR_LIMIT + 10)]
    assert asked(*many, component="gpu/7") == [("dmesg", "gpu/7", 7)]


def test_the_oldest_entries_make_room() -> None:
    known = tuple(ClearEntry(check="dmesg", component=f"gpu/{n}", occurrence=n) for n in range(CLEAR_LIMIT))
    entry = ClearEntry(check="ping", component="nic/0", occurrence=1)
    assert merge_clears(known, (entry,)) == (*known[1:], entry)


def test_if_the_check_has_no_fault_the_open_ones_are_listed(tmp_path: Path, capsys: Any) -> None:
    with cluster(one_fault("a")) as server:
        assert clear(tmp_path, server, "a", "--check", "dmsg") == 0
    assert not missing_facts(capsys.readouterr().out, "a", "dmsg", "dmesg gpu/0000:3b:00.0")


def one_fault(name: str) -> dict[str, Any]:
    return {
        f"/api/v1/nodes/{name}": node(name),
        f"{HEALTHS}/{name}": health(name, "FAIL", check("dmesg", "FAIL", 60, XID)),
    }


def clear(folder: Path, server: str, *words: str) -> int:
    return main(["clear", *words, "--kubeconfig", str(kubeconfig(folder, server))])


@pytest.mark.parametrize(
    ("words", "nodes", "check"),
    [
        (["a"], ["a"], None),
        (["a", "b"], ["a", "b"], None),
        (["a", "b", "dmesg"], ["a", "b"], "dmesg"),
        (["a", "agent"], ["a"], "agent"),
        (["dmesg"], ["dmesg"], None),
        (["a", "dmesg", "--check", "ping"], ["a", "dmesg"], "ping"),
    ],
)
def test_the_last_word_may_be_a_check(words: list[str], nodes: list[str], check: str | None) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = parser.parse_args(words)
    assert split_check(arguments.nodes, arguments.check) == (nodes, check)


def test_the_last_word_may_be_a_plug_in_check_with_a_fault(tmp_path: Path, capsys: Any) -> None:
    objects = {"/api/v1/nodes/a": node("a"), f"{HEALTHS}/a": health("a", "FAIL", check("mine", "FAIL", 60, XID))}
    with cluster(objects) as server:
        assert clear(tmp_path, server, "a", "mine", "--component", "gpu/none") == 0
    assert not missing_facts(capsys.readouterr().out, "mine gpu/none")


def test_a_misspelled_last_word_changes_nothing_and_gets_a_suggestion(tmp_path: Path, capsys: Any) -> None:
    with cluster(one_fault("a")) as server:
        assert clear(tmp_path, server, "a", "dmsg") == 3
    assert not missing_facts(capsys.readouterr().err, "muster", '"dmsg"', '"dmesg"')
