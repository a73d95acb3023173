"""The network of a few hosts is measured with the real iperf3, between network namespaces that the test makes.

Links are held to a few Mbit/s, so that no processor decides.
"""

import signal
from collections.abc import Iterator

import pytest
from tests.agent.network_fabric import FAST, LIMIT_S, SLOW, Fabric, fabric, wait_until

from muster_checks.base.vocabulary import Result, Verdict

pytestmark = pytest.mark.beside

# losses are how a token bucket slows TCP down; a sound link may do a third of its rate, as machines stall
SHORT = ("seconds=4", "omit_seconds=0", "clients=2", "max_retransmits_per_gb=1e9", "min_share_of_peers=0.1")


@pytest.fixture
def made() -> Iterator[Fabric]:
    with fabric() as hosts:
        yield hosts


def blamed(found: dict[str, Result]) -> dict[str, str]:
    """By node the component that is blamed."""
    return {
        node: finding.component
        for node, result in found.items()
        for finding in result.findings
        if finding.verdict is Verdict.FAIL
    }


def none_is_left(made: Fabric) -> None:
    """Long before servers would end by themselves, which takes more than a minute."""
    wait_until(lambda: not made.iperfs(), limit_s=30.0)


def told(found: dict[str, Result]) -> str:
    return "".join(
        f"\n{node} {finding.verdict.name} {finding.component} {finding.reason}: {finding.message}"
        for node, result in found.items()
        for finding in result.findings
    )


def test_the_host_whose_link_is_slow_is_named_and_no_iperf3_is_left(made: Fabric):
    made.rate("net1", FAST)
    made.rate("net1", SLOW, ["node-3"])
    made.start_hosts()
    found = made.measure(*SHORT)
    assert blamed(found) == {"node-3": "nic/net1"}, told(found)
    passed = {node for node, result in found.items() if result.verdict is Verdict.PASS}
    assert passed == {"node-1", "node-2", "node-4"}, told(found)
    assert found["node-3"].reason == "SlowNetwork"
    none_is_left(made)


def test_the_management_plane_is_another_network(made: Fabric):
    made.rate("eth0", FAST)
    made.rate("eth0", SLOW, ["node-2"])
    made.start_hosts()
    found = made.measure(*SHORT, "plane=mgmt")
    assert blamed(found) == {"node-2": "nic/eth0"}, told(found)
    none_is_left(made)


def test_several_servers_of_a_node_share_its_link_and_add_up(made: Fabric):
    made.rate("net1", FAST)
    made.start_hosts()
    found = made.measure(*SHORT, "servers=3", "link_gbit_per_s=0.1", "min_share_of_link=0.2")
    assert {result.verdict for result in found.values()} == {Verdict.PASS}, told(found)
    none_is_left(made)


def test_no_iperf3_is_left_when_who_measures_is_killed(made: Fabric):
    made.rate("net1", FAST)
    made.start_hosts()
    measuring = made.start(made.switch, "network_measurer.py", *made.peers, *SHORT, "seconds=60")
    wait_until(lambda: sum(" -c " in line for line in made.iperfs()) == 2)
    assert sum(" -s " in line for line in made.iperfs()) == 2
    measuring.kill()
    measuring.wait(timeout=LIMIT_S)
    none_is_left(made)


def test_no_iperf3_is_left_on_a_host_whose_agent_is_killed(made: Fabric):
    made.rate("net1", FAST)
    hosts = made.start_hosts()
    made.start(made.switch, "network_measurer.py", *made.peers, *SHORT, "seconds=60")
    wait_until(lambda: sum(" -c " in line for line in made.iperfs()) == 2)
    for process in hosts.values():
        process.send_signal(signal.SIGKILL)
    none_is_left(made)


def test_a_host_that_does_not_answer_is_unknown_and_nobody_elses_fault(made: Fabric):
    made.rate("net1", FAST)
    hosts = made.start_hosts()
    hosts["node-4"].kill()
    hosts["node-4"].wait(timeout=LIMIT_S)
    found = made.measure(*SHORT)
    assert (found["node-4"].verdict, found["node-4"].reason) == (Verdict.UNKNOWN, "Unreachable"), told(found)
    assert {found[node].verdict for node in ("node-1", "node-2", "node-3")} == {Verdict.PASS}, told(found)


def test_a_host_whose_link_is_cut_is_unknown_and_the_others_are_not(made: Fabric):
    made.rate("net1", FAST)
    made.start_hosts()
    made.ip(made.switch, "link", "set", "data2", "nomaster")
    found = made.measure(*SHORT)
    assert found["node-2"].verdict is Verdict.UNKNOWN, told(found)
    assert {found[node].verdict for node in ("node-1", "node-3", "node-4")} == {Verdict.PASS}, told(found)


def test_hosts_without_a_second_interface_are_skipped_and_told_of_the_management_plane(made: Fabric):
    for namespace in made.hosts.values():
        made.ip(namespace, "link", "del", "net1")
    made.start_hosts()
    found = made.measure(*SHORT)
    assert {(result.verdict, result.reason) for result in found.values()} == {(Verdict.SKIP, "NoSecondaryInterface")}
    assert "plane=mgmt" in found["node-1"].message
