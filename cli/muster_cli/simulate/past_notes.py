"""What a fleet's past could not tell, as notes beside the files and in them."""

from collections.abc import Iterator

from muster_cli.report.quantities import plural
from muster_kube.api.times import rfc3339_whole
from muster_tainter.simulation.history.cluster_history import FleetHistory
from muster_tainter.simulation.history.past_faults import FAULTS_A_NODE, UNKNOWN_CLASS
from muster_tainter.simulation.history.prometheus_history import Coverage

_SHOWN = 5  # names

LEFT_OUT = {
    "no repair": "ask for no repair of hardware",
    "other sources": "were found by Prometheus, Loki, conditions or the tainter itself, not by agents",
    "maintenance": "are times in which a cordoned node was not Ready: maintenance",
    "other nodes": "are on nodes without accelerators",
    "too many": f"are more than {FAULTS_A_NODE} of one node, or more than fit into memory",
    "invalid": "have labels that name no node, component or check",
}


def notes(history: FleetHistory, domain: str) -> Iterator[str]:
    """One line each. domain: label of failure domains; empty: none was asked for."""
    yield from _sources(history)
    yield from _faults(history)
    yield from _fleet(history, domain)
    yield (
        "how large jobs are, how long they last and how often they save their state is not recorded: the jobs in "
        "workload are assumed, as are people, repairs and agents: correct them"
    )


def _sources(history: FleetHistory) -> Iterator[str]:
    past = history.prometheus
    if past is None:
        yield (
            "without --prometheus URL, only the faults that Nodes and NodeHealths remember are known: those that are "
            "open, and the last eight of each node that were closed within a day"
        )
        return
    days = (history.end - history.begin) / 86_400
    yield f"Prometheus remembers {days:.3g} days, since {rfc3339_whole(history.begin)}"
    yield from _coverage("Muster's agents (muster_agent_info)", past.agents, history)
    yield from _coverage("kube-state-metrics (kube_node_status_condition)", past.nodes, history)
    if past.malformed:
        yield f"{plural(past.malformed, 'series')} without the label node are left out"


def _coverage(name: str, found: Coverage, history: FleetHistory) -> Iterator[str]:
    if not found.first:
        yield f"{name}: nothing is recorded; such faults are missing"
        return
    missing = max(0, int((history.end - history.begin) / 3600) - found.hours)
    if missing:
        yield f"{name}: nothing is recorded for {plural(missing, 'hour')}, in which there seem to be no faults"


def _faults(history: FleetHistory) -> Iterator[str]:
    found = history.faults
    if found.unknown_class:
        yield (
            f"{plural(found.unknown_class, 'fault')} without a known class (closed, or of agents before "
            f"muster_agent_fault): taken as {UNKNOWN_CLASS}"
        )
    if found.not_ready:
        yield (
            f"{plural(found.not_ready, 'fault')} that no agent reported: the node was not Ready. Taken as class "
            "reboot, reason NotReady"
        )
    if found.began_before:
        yield f"{plural(found.began_before, 'fault')} had begun before the first day: when is not known"
    if found.lasting:
        yield f"{plural(found.lasting, 'fault')} still last: people or the policy repair them in the simulation"
    if found.rows:
        yield "whether a fault ended its job is not recorded: every one does (column fatal)"
    for cause, number in sorted(found.left_out.items()):
        if number:
            yield f"{plural(number, 'fault')} left out that {LEFT_OUT[cause]}"
    if history.unreadable:
        yield f"the record of {plural(history.unreadable, 'node')} (annotation muster.dev/faults) is unreadable"


def _fleet(history: FleetHistory, domain: str) -> Iterator[str]:
    fleet = history.fleet
    if fleet.without_accelerators:
        yield f"{plural(fleet.without_accelerators, 'node')} without accelerators and without a NodeHealth left out"
    if fleet.counted_as_one:
        yield f"{plural(fleet.counted_as_one, 'node')} that list no accelerators are taken to have one"
    if fleet.gone:
        names = ", ".join(fleet.gone[:_SHOWN]) + (" …" if len(fleet.gone) > _SHOWN else "")
        yield (
            f"{plural(len(fleet.gone), 'node')} with faults that the cluster no longer has ({names}) belong to the "
            "largest group, all the time"
        )
    if fleet.joined:
        yield f"{plural(fleet.joined, 'node')} joined later, and are taken to have been there all the time"
    if fleet.beyond:
        yield f"{plural(fleet.beyond, 'node')} left out that belong to further groups"
    if not domain:
        yield "no failure domains: the policy's pools name no label of one; --domain LABEL adds them"
