"""Which silences are believed: over restarts, outages, clocks that leap, and the loss of most agents at once."""

import pytest
from tests.tainter.agents.fleet_of_agents import EVENT, GRACE_S, TAINT, FleetOfAgents

from muster_kube.api.times import rfc3339_whole
from muster_tainter.agents.liveness import SETTLE_S


@pytest.fixture
def fleet() -> FleetOfAgents:
    return FleetOfAgents()


@pytest.fixture
def tainting() -> FleetOfAgents:
    return FleetOfAgents(TAINT)


def test_the_grace_goes_on_over_a_change_of_the_leader(fleet: FleetOfAgents) -> None:
    fleet.add("n1", "n2")
    fleet.pod("n1", ready=False)
    fleet.wait(GRACE_S - 150)
    fleet.restart()
    fleet.wait(149)
    assert fleet.finding("n1") is None
    fleet.wait(1)
    assert fleet.finding("n1") is not None


@pytest.mark.parametrize("policy", [EVENT, TAINT])
def test_another_leader_finds_a_told_silence_told(policy: str) -> None:
    fleet = FleetOfAgents(policy)
    fleet.add("n1", "n2", "n3", "n4", "n5")
    fleet.wait(10)
    fleet.delete_pod("n1")  # nothing in the cluster says since when
    fleet.wait(GRACE_S)
    fleet.decide_all()
    fleet.wait(5000)
    fleet.restart()
    assert not fleet.decide("n1").writes
    assert fleet.told() == ["n1"]
    assert fleet.label("n1") == "unknown"


def test_an_agent_that_came_back_while_no_tainter_ran_is_back(tainting: FleetOfAgents) -> None:
    fleet = tainting
    fleet.add("n1", "n2", "n3", "n4", "n5")
    fleet.pod("n1", ready=False)
    fleet.wait(GRACE_S)
    fleet.decide("n1")
    fleet.pods.clear()
    for name in fleet.nodes:
        fleet.pod(name, ready=True)
    fleet.restart()
    fleet.decide("n1")
    assert fleet.taints("n1") == []
    assert fleet.label("n1") == "pass"


def test_a_tainter_that_has_just_started_declares_nobody_silent(fleet: FleetOfAgents) -> None:
    fleet.add(*(f"n{i}" for i in range(4)))
    fleet.pod("n0", ready=False)
    fleet.wait(GRACE_S - 10)
    fleet.restart()
    fleet.wait(SETTLE_S - 1)
    assert fleet.finding("n0") is None
    fleet.wait(1)
    assert fleet.finding("n0") is not None


def test_an_outage_of_the_api_server_declares_nobody_silent(fleet: FleetOfAgents) -> None:
    names = [f"n{i}" for i in range(5)]
    fleet.add(*names)
    fleet.wait(100)
    fleet.sees = False
    fleet.wait(3 * GRACE_S)
    fleet.sees = True
    for name in names:  # the kubelets tell what was during the outage, and then what is
        fleet.pod(name, ready=False, since=fleet.now - 2 * GRACE_S)
    fleet.wait(GRACE_S - 1)
    assert [name for name in names if fleet.finding(name)] == []
    assert fleet.liveness.outage is None
    for name in names:
        fleet.pod(name, ready=True)
    fleet.wait(2 * GRACE_S)
    assert [name for name in names if fleet.finding(name)] == []


def test_a_tainter_that_starts_at_the_end_of_an_outage_waits_for_the_agents(fleet: FleetOfAgents) -> None:
    fleet.add("n1", "n2", "n3")
    fleet.wait(100)
    for name in ("n1", "n2", "n3"):
        fleet.pod(name, ready=False)
    fleet.time += 3 * GRACE_S  # nobody is there to see
    fleet.restart()
    fleet.wait(SETTLE_S - 1)
    for name in ("n1", "n2", "n3"):
        assert fleet.finding(name) is None
        fleet.pod(name, ready=True)
    fleet.wait(GRACE_S)
    assert fleet.finding("n1") is None


def test_a_wall_clock_that_leaps_makes_nobody_silent(fleet: FleetOfAgents) -> None:
    fleet.add("n1", "n2")
    fleet.pod("n1", ready=False)
    fleet.wait(10)
    fleet.skew = 3600.0
    fleet.wait(GRACE_S - 11)
    assert fleet.finding("n1") is None
    fleet.wait(1)
    assert fleet.finding("n1") is not None


@pytest.mark.parametrize("policy", [EVENT, TAINT])
def test_most_agents_silent_at_once_are_one_incident_and_nobodys_own_news(policy: str) -> None:
    fleet = FleetOfAgents(policy)
    names = [f"n{i}" for i in range(50)]
    fleet.add(*names)
    fleet.decide_all()
    for name in names[:26]:
        fleet.wait(1)
        fleet.pod(name, ready=False)
    fleet.wait(2 * GRACE_S)
    assert fleet.liveness.outage is not None
    text = fleet.liveness.outage_text(fleet.liveness.outage)
    assert "26 of 50" in text
    assert rfc3339_whole(fleet.liveness.outage.began) in text
    fleet.decide_all()
    assert fleet.reasons == []
    assert [name for name in names if fleet.nodes[name].spec.taints] == []
    assert [name for name in names if fleet.label(name) == "unknown"] == names[:26]
    assert fleet.condition("n3").reason == "AgentSilent"


def test_another_leader_finds_the_incident_as_it_is(fleet: FleetOfAgents) -> None:
    names = [f"n{i}" for i in range(10)]
    fleet.add(*names)
    for name in names:
        fleet.delete_pod(name)
    fleet.wait(GRACE_S)
    fleet.decide_all()
    began = fleet.liveness.outage
    assert began is not None
    for setting in ("agent_namespace", "agent_selector"):
        assert setting in fleet.liveness.outage_text(began)
    fleet.wait(1000)
    fleet.restart()
    assert [name for name in names if fleet.decide(name).writes] == []
    assert fleet.liveness.outage is not None
    assert fleet.liveness.outage.began == began.began


def test_who_is_still_silent_when_the_others_are_long_back_is_told_of(fleet: FleetOfAgents) -> None:
    names = [f"n{i}" for i in range(10)]
    fleet.add(*names)
    fleet.decide_all()
    for name in names:
        fleet.pod(name, ready=False)
    fleet.wait(GRACE_S)
    fleet.decide_all()
    for name in names[2:]:
        fleet.pod(name, ready=True)
        fleet.wait(30)
        fleet.decide_all()
    assert fleet.reasons == []
    fleet.wait(GRACE_S)
    fleet.decide_all()
    assert fleet.liveness.outage is None
    assert fleet.told() == ["n0", "n1"]
    assert [name for name in names if fleet.label(name) == "unknown"] == ["n0", "n1"]
