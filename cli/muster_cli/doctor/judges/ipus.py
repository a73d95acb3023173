"""Judges whether the V-IPU proxy reaches its controllers, and whether the numbers of IPUs on nodes are kept up to date.
Pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from muster_checks.base.vocabulary import Verdict, shorten
from muster_cli.doctor.facts import DataMap
from muster_cli.doctor.findings import DoctorFinding, ReadFailure, join_some, read_failures
from muster_cli.doctor.judges.parts import InstalledPart
from muster_cli.report.quantities import plural
from muster_kube.api.objects import Node
from muster_operator.job.partition_api import PartitionCapacity
from muster_operator.observe.node_capacity import IPUS_FREE, IPUS_TOTAL
from muster_operator.proxy.controllers.list_syntax import parse_controller_list

AREA = "v-ipu"
MAP, KEY = "vipu-controllers", "controllers.yaml"


@dataclass(frozen=True)
class VipuState:
    """part: the proxy. controllers: its list of controllers. health: the error of its /health; empty if healthy.
    answer: to a query for one IPU, which it forwards to every controller."""

    part: InstalledPart
    controllers: DataMap | ReadFailure | None = None
    health: str | ReadFailure = ""
    answer: PartitionCapacity | ReadFailure | None = None

    @property
    def map(self) -> str:
        return f"{self.part.prefix}{MAP}"


def judge(vipu: VipuState | None) -> list[DoctorFinding]:
    if vipu is None:
        return []
    found: list[DoctorFinding] = []
    number = 0
    where = f"ConfigMap {vipu.part.namespace}/{vipu.map}"
    edit = f"kubectl -n {vipu.part.namespace} edit configmap {vipu.map}"
    if isinstance(vipu.controllers, ReadFailure):
        found += read_failures(AREA, vipu.controllers)
    elif vipu.controllers is None or KEY not in vipu.controllers.data:
        found.append(
            DoctorFinding(AREA, Verdict.FAIL, f"{where} is missing, or has no {KEY}", "helm upgrade restores it")
        )
    else:
        places, complaints = parse_controller_list(vipu.controllers.data[KEY])
        number = len(places)
        found += [DoctorFinding(AREA, Verdict.FAIL, f"{where}: {KEY}: {each}", edit) for each in complaints]
        if not places and not complaints:
            found.append(DoctorFinding(AREA, Verdict.FAIL, f"{where}: lists no V-IPU controller", edit))
    logs = f"kubectl -n {vipu.part.namespace} logs deployment/{vipu.part.name}"
    if isinstance(vipu.health, ReadFailure):
        found += read_failures(AREA, vipu.health)
    elif vipu.health:
        found.append(DoctorFinding(AREA, Verdict.FAIL, f"the V-IPU proxy is not healthy: {shorten(vipu.health)}", logs))
    elif isinstance(vipu.answer, ReadFailure):
        found += read_failures(AREA, vipu.answer)
    elif vipu.answer is not None and vipu.answer.message and number:
        verdict = Verdict.WARN if vipu.answer.available else Verdict.FAIL
        mend = f"check the address ({edit}) and the network from the node of the proxy; {logs}"
        found.append(
            DoctorFinding(AREA, verdict, f"a V-IPU controller does not answer: {shorten(vipu.answer.message)}", mend)
        )
    if not found and vipu.answer is not None:
        found.append(DoctorFinding(AREA, Verdict.PASS, f"{plural(number, 'V-IPU controller')} answered"))
    return found


def judge_numbers(nodes: Iterable[Node], forms: Collection[object]) -> list[DoctorFinding]:
    """Numbers that no operator updates: the chart's job that removes them did not run, or failed, and no later upgrade
    repeats it. As extended resources they look like capacity.

    forms: the setting ipu_visibility of the operators that run.
    """
    left: list[str] = []
    for node in nodes:
        places = {"labels": node.metadata.labels, "resources": node.status.allocatable}
        if any(key in place for form, place in places.items() if form not in forms for key in (IPUS_FREE, IPUS_TOTAL)):
            left.append(node.metadata.name)
    if not left:
        return []
    what = f"{plural(len(left), 'node')} ({join_some(left)}): {IPUS_FREE} or {IPUS_TOTAL}, which no operator updates"
    return [DoctorFinding(AREA, Verdict.WARN, what, "muster release --ipus")]
