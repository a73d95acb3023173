"""policy.yaml's section ``canary``: made-up findings that test the way from the agents to the taints.

Models only; :mod:`muster_tainter.canary` sends and follows them.
"""

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from muster_tainter.policy.sections.heavy_checks import AtOnce, Nodes, parse_duration
from muster_tainter.policy.strict_model import StrictModel

SHORTEST_S = 30.0  # two periods are the time to an alert; Prometheus scrapes every 30 s or so


def _whole_seconds(value: float) -> float:
    if value != int(value):
        raise ValueError("expected whole seconds")
    return value


class CanaryPlan(StrictModel):
    """nodes: how many managed nodes send canaries; 0: none. period: seconds between two canaries of a node."""

    nodes: Nodes = AtOnce(0)
    period: Annotated[
        float, BeforeValidator(lambda value: parse_duration(value, least_s=SHORTEST_S)), AfterValidator(_whole_seconds)
    ] = 600.0
