"""Judges whether rules that keep pods off single devices (DeviceTaintRule) have an effect in this cluster. Pure.

Clusters without ResourceSlices and DeviceTaintRules get no finding, unless the policy wants devices quarantined.
Feature gates and version of the scheduler are visible only in its static pods. Whoever controls a kubelet can create a
pod that looks like one: that adds a finding, or replaces UNKNOWN where the real scheduler is not visible, but it hides
nothing about a scheduler that is visible.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from muster_checks.base.vocabulary import Verdict, shorten
from muster_cli.doctor.facts import ControlPlanePod, DeviceRule, DeviceSlice
from muster_cli.doctor.findings import DoctorFinding, ReadFailure, join_some, read_failures
from muster_cli.report.quantities import plural
from muster_kube.api.times import seconds
from muster_tainter.devices.slices.resource_slice import ADDRESS as PCI_ADDRESS
from muster_tainter.devices.slices.resource_slice import address_attributes

AREA = "devices"
OFF, RULES = "off", "rules"  # values of devices.quarantine; the third is preview
SCHEDULER, MANAGER = "kube-scheduler", "kube-controller-manager"
REPORTS_S = 60.0  # the controller reports on a new rule at once, and then every ten seconds
# the scheduler of these ignores new rules, and panics when a ResourceSlice changes (kubernetes/kubernetes 139681)
IGNORES_FROM, IGNORES_TO = (1, 36, 0), (1, 36, 2)
# from this minor version on, rules need this gate, which that group gate also sets; no gate: on by default
# (kube_features.go of each version; KEP-5055 for 1.37)
_GATES = ((37, "", ""), (36, "DRADeviceTaintRules", "AllBeta"), (35, "DRADeviceTaintRules", "AllAlpha"))
_OLD_GATE = ("DRADeviceTaints", "AllAlpha")
_STATUS_SINCE_MINOR = 35  # rules have a status
_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})")

Version = tuple[int, int, int]


@dataclass(frozen=True)
class DeviceState:
    """wanted: the active policy's ``devices.quarantine``. server: the API server's version. served: the API version of
    DeviceTaintRules, empty without one. schedulers: the static pods of the scheduler that are visible. now: by the
    clock of the API server."""

    wanted: str = OFF
    server: str = ""
    served: str = ""
    slices: Sequence[DeviceSlice] | ReadFailure = ()
    rules: Sequence[DeviceRule] | ReadFailure = ()
    schedulers: Sequence[ControlPlanePod] | ReadFailure = ()
    now: float = 0.0


def judge(state: DeviceState) -> list[DoctorFinding]:
    blind = [each for each in (state.slices, state.rules) if isinstance(each, ReadFailure)]
    slices = [] if isinstance(state.slices, ReadFailure) else state.slices
    rules = [] if isinstance(state.rules, ReadFailure) else state.rules
    found = read_failures(AREA, *blind)
    if state.wanted != OFF and not blind and (lack := _find_lack(state.served, slices)):
        what = f"devices.quarantine is {state.wanted}, but {lack}: a fault of one device taints the whole node"
        mend = "see docs/device-quarantine.md for what the cluster needs; or set devices.quarantine: off"
        found.append(DoctorFinding(AREA, Verdict.WARN, what, mend))
    if state.served and (slices or rules):
        found += _judge_scheduler(state, len(rules))
        found += _judge_reports(rules, state.server, state.now)
        found += _judge_drivers(slices)
    if not found and slices:
        what = f"{plural(sum(len(each.spec.devices) for each in slices), 'device')} in ResourceSlices"
        note = (
            f"{plural(len(rules), 'DeviceTaintRule')}" if state.served else "the API server serves no DeviceTaintRules"
        )
        found.append(DoctorFinding(AREA, Verdict.PASS, f"{what}; {note}"))
    return found


def _find_lack(served: str, slices: Sequence[DeviceSlice]) -> str:
    """What the quarantine of single devices lacks; empty if nothing."""
    if not served:
        return "the API server serves no DeviceTaintRules"
    return "" if slices else "no driver publishes devices in ResourceSlices"


# -- the scheduler


def _judge_scheduler(state: DeviceState, rules: int) -> Iterator[DoctorFinding]:
    """rules: how many there are. Where there are some, or Muster will make some, what makes the scheduler ignore them
    is FAIL, else WARN."""
    in_use = rules > 0 or state.wanted == RULES
    verdict = Verdict.FAIL if in_use else Verdict.WARN
    if isinstance(state.schedulers, ReadFailure) or not state.schedulers:
        server = parse_version(state.server)
        if is_ignoring(server):
            yield _ignoring(f"Kubernetes {state.server}", verdict)
        elif in_use and (needed := _gate(server)):
            what = f"whether the scheduler follows DeviceTaintRules: no pod of {SCHEDULER} is visible"
            why = f": {shorten(state.schedulers.why)}" if isinstance(state.schedulers, ReadFailure) else ""
            mend = f"verify that it runs with --feature-gates={needed[0]}=true"
            yield DoctorFinding(AREA, Verdict.UNKNOWN, f"{what}{why}", mend)
        return
    off: dict[str, list[str]] = defaultdict(list)
    ignoring: dict[str, list[str]] = defaultdict(list)
    for pod in state.schedulers:
        version = pod.version or state.server
        gate = missing_gate(pod.words, parse_version(version))
        if gate:
            off[gate].append(pod.metadata.name)
        elif is_ignoring(parse_version(version)):
            ignoring[version].append(pod.metadata.name)
    for gate, names in sorted(off.items()):
        what = f"{join_some(names)}: the feature gate {gate} is off, so the scheduler ignores DeviceTaintRules"
        yield DoctorFinding(AREA, verdict, what, f"add --feature-gates={gate}=true to {SCHEDULER}")
    for version, names in sorted(ignoring.items()):
        yield _ignoring(f"{join_some(names)} ({version})", verdict)


def _ignoring(which: str, verdict: Verdict) -> DoctorFinding:
    what = f"{which}: the scheduler ignores new DeviceTaintRules, and panics when a ResourceSlice changes"
    return DoctorFinding(AREA, verdict, what, f"upgrade {SCHEDULER} to Kubernetes 1.36.3 or later")


def parse_version(text: str) -> Version | None:
    """``v1.36.2-eks-1`` is (1, 36, 2); None if it is no version."""
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def is_ignoring(version: Version | None) -> bool:
    return version is not None and IGNORES_FROM <= version <= IGNORES_TO


def missing_gate(words: Iterable[str], version: Version | None) -> str:
    """The feature gate that rules need and that these arguments of a component leave off; empty if rules work.

    An unknown version counts as one that has rules by default.
    """
    given = _given_gates(words)
    needed = _gate(version)
    if needed is None:
        return next((each for each in ("DRADeviceTaintRules", "DRADeviceTaints") if given.get(each) is False), "")
    gate, group = needed
    return "" if given.get(gate, given.get(group, False)) else gate


def _gate(version: Version | None) -> tuple[str, str] | None:
    """The gate that rules need, and the gate of its stage; None where they need none."""
    if version is None:
        return None
    for minor, gate, group in _GATES:
        if version[:2] >= (1, minor):
            return (gate, group) if gate else None
    return _OLD_GATE


def _given_gates(words: Iterable[str]) -> dict[str, bool]:
    """Of ``--feature-gates A=true,kube:B=false``, which may be given several times; the last value of a gate counts."""
    values: list[str] = []
    known = list(words)
    for index, word in enumerate(known):
        name, equals, value = word.partition("=")
        if name == "--feature-gates":
            values.append(value if equals else "".join(known[index + 1 : index + 2]))
    gates: dict[str, bool] = {}
    for each in ",".join(values).split(","):
        name, _, value = each.strip().removeprefix("kube:").partition("=")
        gates[name] = value.strip().lower() in ("true", "t", "1")
    return gates


# -- the controller-manager


def _judge_reports(rules: Sequence[DeviceRule], server: str, now: float) -> Iterator[DoctorFinding]:
    version = parse_version(server)
    if version is None or version[:2] < (1, _STATUS_SINCE_MINOR):
        return
    silent = [
        each.metadata.name
        for each in rules
        if not each.is_reported and now - seconds(each.metadata.creation_timestamp) > REPORTS_S
    ]
    if silent:
        what = (
            f"{plural(len(silent), 'DeviceTaintRule')} ({join_some(silent)}): the controller-manager does not report on"
            " them, so the effect None shows no preview, and NoExecute evicts no pod"
        )
        mend = (
            f"{MANAGER} needs --feature-gates=DRADeviceTaints=true, the default from 1.36 on, and its --controllers"
            " must not leave out device-taint-eviction-controller"
        )
        yield DoctorFinding(AREA, Verdict.WARN, what, mend)


# -- drivers


def _judge_drivers(slices: Iterable[DeviceSlice]) -> Iterator[DoctorFinding]:
    """A driver of other things, such as channels between nodes, is no problem beside one that publishes addresses."""
    nodes: dict[str, set[str]] = defaultdict(set)
    known: set[str] = set()  # nodes of which some device has an address
    for each in slices:
        node = each.spec.node_name
        if node and each.spec.devices:
            nodes[each.spec.driver].add(node)
        names_of_address = address_attributes(each.spec.driver)
        if any(names_of_address & device.attribute_names for device in each.spec.devices):
            known.add(node)
    for driver, of_driver in sorted(nodes.items()):
        if names := of_driver - known:
            what = (
                f"driver {driver} publishes no {PCI_ADDRESS} on {plural(len(names), 'node')} ({join_some(names)}):"
                " a fault that names a device by its PCI address taints the whole node"
            )
            yield DoctorFinding(
                AREA, Verdict.WARN, what, "upgrade the driver to a version that publishes the attribute"
            )
