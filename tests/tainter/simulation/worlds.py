"""Small fleets with exact histories: times in hours from the begin."""

from typing import Any

from muster_tainter.policy.file import default_policy_text, parse_policy
from muster_tainter.policy.rules import Policy
from muster_tainter.simulation.run import Scenario, make_scenario
from muster_tainter.simulation.scenario.fault_file import UNTIL_REPAIRED, FaultRow, RecordedFaults
from muster_tainter.simulation.scenario.fleet_file import FleetFile
from muster_tainter.simulation.scenario.nodes import make_nodes

BEGIN = 1_767_225_600.0  # 2026-01-01T00:00:00Z
HOUR = 3600.0
DEVICES = 8

RULES = """
rules:
  - {name: bad, match: {class: [reset, reboot, replace, contact]}, action: taint}
"""
# a job for each node that works longer than the simulation, so that every interruption is a fault's or the policy's
ONE_EACH = {"name": "one", "nodes": 1, "lasts": "300d", "checkpoint": "1h", "checkpointCost": "60s", "restart": "10m"}


def fault(hour: float, ends: float | None, node: str = "gpu-1", fault_class: str = "reboot", **more: Any) -> FaultRow:
    """ends: hours from the begin; None: until it is repaired."""
    end = UNTIL_REPAIRED if ends is None else BEGIN + ends * HOUR
    return FaultRow(0, node, BEGIN + hour * HOUR, end, fault_class, **more)


def fleet_file(nodes: int = 2, hours: float = 48.0, **more: Any) -> FleetFile:
    body: dict[str, Any] = {
        "groups": [{"name": "gpu", "nodes": nodes, "devices": DEVICES}],
        "start": "2026-01-01T00:00:00Z",
        "workload": {"queue": 1, "kinds": [ONE_EACH]},
        **more,
    }
    fleet = FleetFile.model_validate(body)
    return fleet.model_copy(update={"end": BEGIN + hours * HOUR})


def scenario(*faults: FaultRow, fleet: FleetFile | None = None, seed: int = 1) -> Scenario:
    fleet = fleet_file() if fleet is None else fleet
    ordered = sorted(faults, key=lambda row: row.start)
    rows = [row._replace(number=number) for number, row in enumerate(ordered, 1)]
    return make_scenario(fleet, make_nodes(fleet), RecordedFaults(rows), seed=seed)


def policy(more: str = "", rules: str = RULES) -> Policy:
    return parse_policy(rules + more)


def default_policy() -> Policy:
    return parse_policy(default_policy_text())


def node_hours(accelerator_hours: float) -> float:
    return accelerator_hours / DEVICES
