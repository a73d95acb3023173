"""policy.yaml's section ``spares`` of a pool: how many nodes are kept free to replace nodes with a fault.

Models only; :mod:`muster_tainter.spares.plan` applies them.
"""

from enum import StrEnum
from typing import Literal, Self

from pydantic import field_validator, model_validator

from muster_tainter.policy.sections.heavy_checks import AtOnce, Checks, Duration, NodesIfAny, check_names
from muster_tainter.policy.strict_model import StrictModel


class SpareRole(StrEnum):
    """The value of the label ``muster.dev/role``. REPLACEMENT: released for a node that is still tainted."""

    SPARE = "spare"
    REPLACEMENT = "replacement"
    NONE = ""


class Spares(StrictModel):
    """nodes, per_domain: how many, of the pool or of each of its failure domains; one of the two is required
    ready_within: a spare is ready while its last full test is younger, in seconds; None: ``testing.coverage``
    checks:       a full test. Empty: the pool's ``preFlight``; if that is empty, every heavy check that the plan runs
                  on the node
    none_ready:   what to do if a spare is needed and none is ready: release the one that was tested last, or none
    """

    nodes: NodesIfAny = None
    per_domain: NodesIfAny = None
    ready_within: Duration | None = None
    checks: Checks = ()
    none_ready: Literal["release", "hold"] = "release"

    _names = field_validator("checks")(check_names)

    @field_validator("nodes", "per_domain")
    @classmethod
    def _some_but_not_all(cls, share: AtOnce | None) -> AtOnce | None:
        if share is not None and share.of(100) == 0:
            raise ValueError("expected at least 1 node or 1%; to keep no spares, leave out the section spares")
        if share is not None and share.percent == 100:
            raise ValueError("expected less than 100%: no node would be left for work")
        return share

    @model_validator(mode="after")
    def _one_number(self) -> Self:
        if (self.nodes is None) == (self.per_domain is None):
            raise ValueError("expected either nodes or perDomain")
        return self

    def wanted(self, nodes: int) -> int:
        """For a group of ``nodes`` nodes; 0 if none would be left for work."""
        share = self.nodes if self.nodes is not None else self.per_domain
        number = share.of(nodes) if share is not None else 0
        return number if number < nodes else 0
