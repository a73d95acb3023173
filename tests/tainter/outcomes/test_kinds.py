"""The table of kinds, and its copy in the documentation."""

from pathlib import Path
from typing import get_args

import pytest

from muster_tainter.outcomes.kinds import KINDS, Kind, Stage
from muster_tainter.policy.file import PolicyError, load_policy, parse_policy
from muster_tainter.policy.sections.in_flight import InFlight, KindName

PAGE = Path(__file__).parents[3] / "docs/in-flight.md"


def documented(kind: Kind) -> str:
    who = f"yes: it {kind.how}" if kind.tenant else f"no: {kind.how}"
    reasons = ", ".join(dict.fromkeys(f"`{reason.name}`" for reason in kind.reasons))
    return f"| {kind.name} | {who} | {reasons} |"


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text()
    rows = [line for line in text.splitlines() if line.startswith(tuple(f"| {kind.name} |" for kind in KINDS))]
    assert rows == [documented(kind) for kind in KINDS]


def test_the_policy_knows_the_same_kinds() -> None:
    assert [kind.name for kind in KINDS] == list(get_args(KindName))


def test_every_reason_has_a_source() -> None:
    for kind in KINDS:
        assert kind.reasons
        assert all("/" in reason.source for reason in kind.reasons)


def test_only_kinds_of_the_admission_fail_nodes_by_default() -> None:
    settings = InFlight()
    for kind in KINDS:
        verdict = settings.verdict_of(kind.name, tenant=kind.tenant)
        assert verdict == ("WARN" if kind.tenant else "FAIL")
        if not kind.tenant:
            assert kind.stage is Stage.ADMISSION


def test_the_built_in_policy_watches_pods_and_a_policy_without_the_section_does_not() -> None:
    assert load_policy(None).in_flight == InFlight()
    assert parse_policy("rules: []\n").in_flight is None
    assert load_policy(None).suspect_checks == {"podoutcomes": ("gpumem", "pciebw")}
    taints = load_policy(None).rule_for("podoutcomes", "host", "DeviceAllocation", "FAIL", "reboot")
    assert taints is not None
    assert taints.node_taint is not None
    warns = load_policy(None).rule_for("podoutcomes", "host", "ImagePull", "WARN", "")
    assert warns is not None
    assert warns.action == "event"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("falseAlarmsPerNodeYear: 0", "inFlight.falseAlarmsPerNodeYear"),
        ("falseAlarmsPerNodeYear: .nan", "inFlight.falseAlarmsPerNodeYear"),
        ("startWithin: 0s", "inFlight.startWithin"),
        ("kinds: {ImagePul: ignore}", "inFlight.kinds"),
        ("kinds: {ImagePull: taint}", "inFlight.kinds"),
        (f"kinds: {{{', '.join(f'{kind.name}: ignore' for kind in KINDS)}}}", "inFlight.kinds"),
        ("heavyChecks: [GPU mem]", "inFlight.heavyChecks"),
        ("window: 10m", "inFlight.window"),
    ],
)
def test_errors_of_the_section(text: str, where: str) -> None:
    with pytest.raises(PolicyError) as found:
        parse_policy(f"rules: []\ninFlight:\n  {text}\n")
    assert where in str(found.value)
