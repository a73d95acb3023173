"""Rules that keep pods off single devices: what makes Kubernetes ignore them, and drivers that publish no addresses."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.wording.facts import missing_facts

from muster_checks.base.vocabulary import Verdict
from muster_cli.doctor.facts import ControlPlanePod, DataMap, DeviceRule, DeviceSlice
from muster_cli.doctor.findings import DoctorFinding, ReadFailure
from muster_cli.doctor.judges import devices, settings
from muster_cli.doctor.judges.devices import PCI_ADDRESS, DeviceState, is_ignoring, missing_gate, parse_version
from muster_kube.api.objects import Metadata
from muster_kube.api.times import rfc3339_whole

NOW = 1_800_000_000.0
GATE = "DRADeviceTaintRules"
UNSEEN = ReadFailure("/x", "Forbidden: no", forbidden=True)


def device_slice(
    node: str = "n1",
    driver: str = "gpu.example.com",
    *,
    v1beta1: bool = False,
    pci: bool = True,
    attribute: str = PCI_ADDRESS,
) -> DeviceSlice:
    attributes = {"model": {"string": "A"}} | ({attribute: {"string": "0000:13:00.0"}} if pci else {})
    device: dict[str, Any] = {"name": "gpu-0"}
    device |= {"basic": {"attributes": attributes}} if v1beta1 else {"attributes": attributes}
    body = {"metadata": {"name": f"{node}-{driver}"}, "spec": {"driver": driver, "nodeName": node, "devices": [device]}}
    return msgspec.json.decode(msgspec.json.encode(body), type=DeviceSlice)


def rule(name: str = "r", *, reported: bool = True, age_s: float = 3600.0) -> DeviceRule:
    conditions = [{"type": "EvictionInProgress", "status": "False"}] if reported else []
    metadata = {"name": name, "creationTimestamp": rfc3339_whole(NOW - age_s)}
    return msgspec.convert({"metadata": metadata, "status": {"conditions": conditions}}, type=DeviceRule)


def scheduler(version: str, *words: str, name: str = "kube-scheduler-cp1") -> ControlPlanePod:
    container = {
        "name": "kube-scheduler",
        "image": f"registry.example.com:5000/kube-scheduler:{version}" if version else "kube-scheduler@sha256:00",
        "command": ["kube-scheduler", *words],
    }
    return msgspec.convert({"metadata": {"name": name}, "spec": {"containers": [container]}}, type=ControlPlanePod)


def judge(
    *schedulers: ControlPlanePod,
    server: str = "v1.36.3",
    served: str = "resource.k8s.io/v1beta2",
    slices: Sequence[DeviceSlice] | ReadFailure | None = None,
    rules: Sequence[DeviceRule] | ReadFailure = (),
    unseen: ReadFailure | None = None,
    wanted: str = "off",
) -> list[DoctorFinding]:
    seen = [device_slice()] if slices is None else slices
    return devices.judge(DeviceState(wanted, server, served, seen, rules, unseen or schedulers, NOW))


def verdicts(found: Sequence[DoctorFinding]) -> list[Verdict]:
    return [each.verdict for each in found]


ON = f"--feature-gates={GATE}=true"


def test_a_cluster_without_resource_slices_gets_no_finding() -> None:
    assert judge(slices=()) == []
    assert judge(slices=(), served="", server="v1.20.2") == []


def test_a_cluster_with_the_gate_on_in_a_version_that_has_the_fix_is_fine() -> None:
    assert verdicts(judge(scheduler("v1.36.3", ON), rules=[rule()])) == [Verdict.PASS]
    assert verdicts(judge(scheduler("v1.37.0"), server="v1.37.0", rules=[rule()])) == [Verdict.PASS]
    assert verdicts(judge(served="", server="v1.34.1")) == [Verdict.PASS]


@pytest.mark.parametrize("version", ["v1.36.0", "v1.36.1", "v1.36.2", "v1.36.2-eks-1a2b3c4", "v1.36.1+k3s1"])
def test_a_scheduler_that_ignores_new_rules_fails_once_there_is_a_rule(version: str) -> None:
    (before,) = judge(scheduler(version, ON))
    (after,) = judge(scheduler(version, ON), rules=[rule()])
    (unseen,) = judge(server=version, rules=[rule()])
    assert [before.verdict, after.verdict, unseen.verdict] == [Verdict.WARN, Verdict.FAIL, Verdict.FAIL]
    assert not missing_facts(after.what, "kube-scheduler-cp1", version)
    assert not missing_facts(after.mend, "1.36.3")
    assert not missing_facts(unseen.what, version)


@pytest.mark.parametrize(
    ("version", "ignoring"),
    [
        ("v1.35.9", False),
        ("v1.36.0-rc.1", True),
        ("v1.36.3", False),
        ("v1.37.0", False),
        ("1.36.2", True),
        ("latest", False),
    ],
)
def test_versions_with_the_defect(version: str, ignoring: bool) -> None:
    assert is_ignoring(parse_version(version)) is ignoring


def test_the_image_of_the_scheduler_counts_before_the_version_of_the_api_server() -> None:
    assert verdicts(judge(scheduler("v1.36.1", ON), server="v1.36.3")) == [Verdict.WARN]
    assert verdicts(judge(scheduler("v1.36.3", ON), server="v1.36.1")) == [Verdict.PASS]
    assert verdicts(judge(scheduler("", ON), server="v1.36.1")) == [Verdict.WARN]


def test_each_scheduler_whose_gate_is_off_is_named() -> None:
    on, off = scheduler("v1.36.3", ON), scheduler("v1.36.3", name="kube-scheduler-cp2")
    (found,) = judge(on, off, rules=[rule()])
    assert found.verdict is Verdict.FAIL
    assert not missing_facts(found.what, "kube-scheduler-cp2", GATE)
    assert "kube-scheduler-cp1" not in found.what
    assert f"{GATE}=true" in found.mend
    assert verdicts(judge(on, off)) == [Verdict.WARN]


@pytest.mark.parametrize(
    ("version", "words", "missing"),
    [
        ("1.37.0", [], ""),
        ("1.37.0", ["--feature-gates=DRADeviceTaintRules=false"], GATE),
        ("1.36.3", [], GATE),
        ("1.36.3", ["--feature-gates=A=true,DRADeviceTaintRules=true"], ""),
        ("1.36.3", ["--feature-gates=kube:DRADeviceTaintRules=true"], ""),
        ("1.36.3", ["--feature-gates", "DRADeviceTaintRules=true", "--v=2"], ""),
        ("1.36.3", ["--feature-gates=DRADeviceTaintRules=true", "--feature-gates=DRADeviceTaintRules=false"], GATE),
        ("1.36.3", ["--feature-gates=AllBeta=true"], ""),
        ("1.36.3", ["--feature-gates=AllBeta=true,DRADeviceTaintRules=false"], GATE),
        ("1.36.3", ["--feature-gates=AllAlpha=true"], GATE),
        ("1.36.3", ["--feature-gates"], GATE),
        ("1.35.1", ["--feature-gates=AllAlpha=true"], ""),
        ("1.35.1", ["--feature-gates=DRADeviceTaints=true"], GATE),
        ("1.34.0", [], "DRADeviceTaints"),
        ("1.33.0", ["--feature-gates=DRADeviceTaints=true"], ""),
        ("2.0.0", [], ""),
    ],
)
def test_feature_gates_on_the_command_line(version: str, words: list[str], missing: str) -> None:
    assert missing_gate(["kube-scheduler", *words], parse_version(version)) == missing


def test_without_sight_of_the_scheduler_the_gate_is_unknown_once_there_is_a_rule() -> None:
    assert verdicts(judge()) == [Verdict.PASS]
    (found,) = judge(rules=[rule()])
    assert found.verdict is Verdict.UNKNOWN
    assert not missing_facts(found.what, "kube-scheduler")
    assert GATE in found.mend
    (forbidden,) = judge(rules=[rule()], unseen=UNSEEN)
    assert forbidden.verdict is Verdict.UNKNOWN
    assert not missing_facts(forbidden.what, "Forbidden")
    assert verdicts(judge(rules=[rule()], server="v1.37.1")) == [Verdict.PASS]


def test_a_policy_that_wants_rules_counts_as_much_as_a_rule() -> None:
    assert verdicts(judge(wanted="rules")) == [Verdict.UNKNOWN]
    assert verdicts(judge(scheduler("v1.36.3", ON), wanted="rules")) == [Verdict.PASS]
    assert verdicts(judge(scheduler("v1.36.1", ON), wanted="rules")) == [Verdict.FAIL]
    assert verdicts(judge(scheduler("v1.36.3"), wanted="rules")) == [Verdict.FAIL]
    assert verdicts(judge(scheduler("v1.36.3"), wanted="preview")) == [Verdict.WARN]


@pytest.mark.parametrize("wanted", ["rules", "preview"])
def test_a_policy_that_wants_what_the_cluster_lacks_is_told(wanted: str) -> None:
    (no_rules,) = judge(wanted=wanted, served="", server="v1.34.0")
    (no_slices,) = judge(wanted=wanted, slices=())
    (nothing,) = judge(wanted=wanted, slices=(), served="", server="v1.20.2")
    assert [no_rules.verdict, no_slices.verdict, nothing.verdict] == [Verdict.WARN] * 3
    assert not missing_facts(no_rules.what, "devices.quarantine", wanted, "DeviceTaintRules")
    assert not missing_facts(no_slices.what, wanted, "ResourceSlices")
    assert verdicts(judge(wanted=wanted, slices=UNSEEN, served="")) == [Verdict.UNKNOWN]


def test_the_mode_is_that_of_the_active_policy() -> None:
    def policy(text: str) -> DataMap:
        return DataMap(metadata=Metadata(name=settings.MAP), data={settings.KEY: text})

    assert settings.find_device_mode(policy("rules: []\ndevices: {quarantine: rules}")) == "rules"
    assert settings.find_device_mode(policy("rules: []")) == "off"
    assert settings.find_device_mode(policy("rules: []\ndevices: {quarantine: some}")) == "off"
    assert settings.find_device_mode(UNSEEN) == settings.find_device_mode(None) == "off"


def test_rules_on_which_the_controller_manager_does_not_report_are_named() -> None:
    rules = [rule("told"), rule("silent", reported=False), rule("new", reported=False, age_s=5.0)]
    (found,) = judge(scheduler("v1.36.3", ON), rules=rules)
    assert found.verdict is Verdict.WARN
    assert not missing_facts(found.what, "1 DeviceTaintRule", "silent")
    assert "DRADeviceTaints=true" in found.mend
    before_status = judge(scheduler("v1.34.1", "--feature-gates=DRADeviceTaints=true"), server="v1.34.1", rules=rules)
    assert verdicts(before_status) == [Verdict.PASS]


def test_a_driver_without_pci_addresses_is_named_with_its_nodes() -> None:
    seen = [device_slice("n1", pci=False), device_slice("n2", pci=False)]
    (found,) = judge(slices=seen)
    assert found.verdict is Verdict.WARN
    assert not missing_facts(found.what, "gpu.example.com", "2 nodes", "n1", "n2", PCI_ADDRESS)


def test_a_driver_that_was_upgraded_on_some_nodes_is_named_with_the_others() -> None:
    (found,) = judge(slices=[device_slice("n1"), device_slice("n2", pci=False)])
    assert not missing_facts(found.what, "1 node", "n2")


def test_addresses_of_an_older_api_version_count() -> None:
    assert verdicts(judge(slices=[device_slice(v1beta1=True)])) == [Verdict.PASS]


@pytest.mark.parametrize("attribute", ["pciAddress", "dra.example.com/pciAddress"])
def test_addresses_under_a_name_of_the_drivers_own_count(attribute: str) -> None:
    seen = device_slice(driver="dra.example.com", attribute=attribute)
    assert verdicts(judge(slices=[seen])) == [Verdict.PASS]
    (found,) = judge(slices=[device_slice(driver="dra.example.com", attribute="other.example.com/pciAddress")])
    assert not missing_facts(found.what, "dra.example.com", "1 node", "n1")


def test_a_driver_of_other_things_beside_one_with_addresses_is_fine() -> None:
    seen = [device_slice("n1"), device_slice("n1", "channels.example.com", pci=False)]
    assert verdicts(judge(slices=seen)) == [Verdict.PASS]
    (found,) = judge(slices=[*seen, device_slice("n2", "channels.example.com", pci=False)])
    assert not missing_facts(found.what, "channels.example.com", "1 node", "n2")


def test_what_cannot_be_read_is_unknown() -> None:
    assert verdicts(judge(slices=UNSEEN)) == [Verdict.UNKNOWN]
    assert verdicts(judge(slices=UNSEEN, rules=UNSEEN)) == [Verdict.UNKNOWN, Verdict.UNKNOWN]
    assert verdicts(judge(server="v1.36.1", slices=UNSEEN, rules=[rule()])) == [Verdict.UNKNOWN, Verdict.FAIL]
