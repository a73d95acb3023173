"""policy.yaml: what the tainter concludes from how the pods of jobs end (``inFlight``).

Models only; :mod:`muster_tainter.outcomes` draws the conclusions.
"""

from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator

from muster_checks.base.vocabulary import Verdict
from muster_tainter.policy.sections.heavy_checks import Checks, Duration, check_names
from muster_tainter.policy.strict_model import StrictModel

KindName = Literal[
    "DeviceAllocation",
    "KubeletAdmission",
    "Admission",
    "PodStart",
    "ImagePull",
    "ContainerStart",
    "ApplicationExit",
    "OutOfMemory",
    "Evicted",
]
KindVerdict = Literal["FAIL", "WARN", "ignore"]


class InFlight(StrictModel):
    """false_alarms_per_node_year: bound on the expected number of findings per node and year without a cause, over all
                   kinds. 0.01: one in a hundred node-years
    start_within:  seconds after which a bound pod that has not started counts as failed. 15 minutes: a pull of an
                   image of 30 GB at 0.5 Gbit/s takes 8
    restarts:      whether failures of containers that restart in place count (pods with restartPolicy OnFailure)
    kinds:         verdicts that differ from the default: FAIL for kinds that no tenant controls, WARN for the others
    heavy_checks:  requested once on the node of a WARN when it is idle
    """

    false_alarms_per_node_year: Annotated[float, Field(ge=1e-6, le=1.0)] = 0.01
    start_within: Duration = 900.0
    restarts: bool = False
    kinds: dict[KindName, KindVerdict] = Field(default_factory=dict)
    heavy_checks: Checks = ("gpumem", "pciebw")

    @field_validator("kinds")
    @classmethod
    def _some(cls, kinds: dict[KindName, KindVerdict]) -> dict[KindName, KindVerdict]:
        if sum(verdict == "ignore" for verdict in kinds.values()) == len(get_args(KindName)):
            raise ValueError("expected at least one kind that is not ignored; to watch no pods, leave out inFlight")
        return kinds

    _names = field_validator("heavy_checks")(check_names)

    def verdict_of(self, kind: KindName, *, tenant: bool) -> Verdict | None:
        """None: the kind is ignored. tenant: whether a tenant may cause it."""
        chosen = self.kinds.get(kind, "WARN" if tenant else "FAIL")
        return None if chosen == "ignore" else Verdict(chosen)
