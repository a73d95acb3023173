"""Rules: what they match, what they may say, and what is told when they say something else."""

from pathlib import Path
from typing import Any

import pytest

from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.dmesg.catalogue.loader import load_catalogue
from muster_tainter.faults.occurrence import is_counted
from muster_tainter.faults.policy_match import match_policy
from muster_tainter.faults.record.node_record import Fault
from muster_tainter.policy.file import (
    FileWatch,
    LivePolicy,
    PolicyError,
    default_policy_text,
    load_policy,
    parse_policy,
)
from muster_tainter.policy.recovery import ProofCheck
from muster_tainter.policy.rules import CloseOn

EXAMPLE = Path(__file__).parents[3] / "examples" / "konduktor.yaml"
GPU = "gpu/0000:3b:00.0"


def test_the_first_match_wins() -> None:
    policy = parse_policy("""
rules:
  - {name: not-this-one, match: {component: "gpu/0000:3b:*", reason: [Xid13, "Xid4?"]}, action: ignore}
  - {name: gpus, match: {component: gpu/*}, action: taint}
  - {name: rest, action: event}
""")
    names = [policy.rule_for("dmesg", *finding, "FAIL", "reboot") for finding in
             ((GPU, "Xid13"), (GPU, "Xid45"), (GPU, "Xid79"), ("gpu/1", "Xid13"), ("nic/x", "Xid13"))]  # fmt: skip
    assert [rule and rule.name for rule in names] == ["not-this-one", "not-this-one", "gpus", "gpus", "rest"]


def test_a_rule_matches_failures_unless_it_says_otherwise() -> None:
    policy = parse_policy("{rules: [{name: a, action: taint}]}")
    assert policy.rule_for("c", "x", "r", "FAIL", "") is not None
    assert all(policy.rule_for("c", "x", "r", verdict, "") is None for verdict in ("WARN", "UNKNOWN", "PASS", "SKIP"))


NUMBERS = """
incidents: {nodes: 5}
rules:
  - {name: alone, match: {solo: true, reason: "Xid7?"}, action: event}
  - {name: many, match: {correlated: 40}, action: ignore}
  - {name: some, match: {correlated: 2}, action: taint}
  - {name: few, action: drain}
"""


@pytest.mark.parametrize("reason", ["Xid79", "Xid48"])
def test_a_number_of_others_and_its_mark_have_the_same_rule(reason: str) -> None:
    policy = parse_policy(NUMBERS)
    marks = {policy.mark_of(others) for others in range(60)}
    assert marks == {0, 2, 4, 40}
    for others in range(60):
        by_number, by_mark = (
            policy.rule_for("dmesg", GPU, reason, "FAIL", "reboot", each) for each in (others, policy.mark_of(others))
        )
        assert by_number is by_mark


def test_what_is_wanted_is_the_policys_own_word_however_alike_two_are() -> None:
    fault = Fault(check="dmesg", component=GPU, reason="Xid79", occurrence=1, fault_class="reboot")
    effects = []
    for effect in ("NoSchedule", "NoExecute", "NoSchedule"):
        policy = parse_policy(f"rules: [{{name: hardware, action: taint, taint: {{effect: {effect}}}}}]")
        taint = match_policy(fault, policy).taint
        effects.append(taint and taint.effect)
    assert effects == ["NoSchedule", "NoExecute", "NoSchedule"]


def test_no_shipped_kernel_line_about_a_gpu_needs_a_person_to_close_its_fault() -> None:
    """gpumem, pciebw and dcgm verify only GPUs of NVIDIA, so no fault of another vendor's GPU may wait for them."""
    policy, catalogue = load_policy(None), load_catalogue(None)
    found = [
        (row.name, row.vendor, row.fault_class)
        for row in catalogue.rows
        if row.verdict is Verdict.FAIL and row.component.startswith(("gpu/", "{kind}/"))
    ]
    found += [
        (f"Xid{code}", "NVIDIA", xid.fault_class) for code, xid in catalogue.xids.items() if xid.verdict is Verdict.FAIL
    ]
    assert {"AMD", "Intel", "Linux", "NVIDIA"} == {vendor for _, vendor, _ in found}
    waiting = []
    for reason, vendor, fault_class in found:
        rule = policy.rule_for("dmesg", GPU, reason, "FAIL", fault_class)
        assert rule is not None
        proof = rule.proof_of("dmesg", fault_class) if vendor == "NVIDIA" else None
        if proof is None and CloseOn.BOOT not in rule.closes_on(fault_class):
            waiting.append(reason)
    assert waiting == []


def test_a_board_of_nvidia_is_verified_after_a_reboot() -> None:
    policy = load_policy(None)
    for reason in ("Xid48", "RowOfAUser"):
        rule = policy.rule_for("dmesg", GPU, reason, "FAIL", "replace")
        assert rule is not None
        assert CloseOn.BOOT not in rule.closes_on("replace")
        proof = rule.proof_of("dmesg", "replace")
        assert proof is not None
        assert (proof.checks, proof.new_boot) == (("gpumem", "pciebw", "dcgm"), True)
        assert proof.optional == ("dcgm",), "NVIDIA's tool is not in the image"


def test_checks_that_may_be_missing_are_part_of_a_proof_but_never_all_of_it() -> None:
    def proof(text: str, check: str = "dmesg") -> ProofCheck | None:
        policy = parse_policy(f"rules: [{{name: a, match: {{}}, action: taint, closeOn: [proof], proof: {text}}}]")
        return policy.rules[0].proof_of(check, "replace")

    both = proof("{checks: [pciebw], ifInstalled: [dcgm]}")
    plain = proof("{checks: [pciebw, dcgm]}")
    assert both is not None
    assert plain is not None
    assert (both.checks, both.optional, plain.optional) == (("pciebw", "dcgm"), ("dcgm",), ())
    assert both.digest != plain.digest, "a pass of the one is no pass of the other"
    assert proof("{ifInstalled: [dcgm]}") is None
    own = proof("{ifInstalled: [dcgm]}", "dcgm")
    assert own is not None
    assert (own.checks, own.optional) == (("dcgm",), ())
    with pytest.raises(PolicyError, match="ifInstalled"):
        proof("{checks: [dcgm], ifInstalled: [dcgm]}")


@pytest.mark.parametrize(("fault_class", "expected"), [
    ("reset", {"boot", "driver", "proof", "source"}), ("reboot", {"boot", "driver", "proof", "source"}),
    ("replace", {"proof", "source"}), ("contact", {"proof", "source"}),
])  # fmt: skip
def test_what_closes_by_default_depends_on_the_class(fault_class: str, expected: set[str]) -> None:
    rule = load_policy(None).rule_for("dmesg", GPU, "Xid79", "FAIL", fault_class)
    assert rule is not None
    assert {str(way) for way in rule.closes_on(fault_class)} == expected


def test_a_rule_may_say_itself_what_closes() -> None:
    policy = parse_policy("{rules: [{name: a, action: taint, closeOn: [quiet]}, {name: b, action: event}]}")
    assert policy.rules[0].closes_on("replace") == (CloseOn.QUIET,)


@pytest.mark.parametrize("reason", ["Xid13", "Xid79", "SXid24007", "PeermemInvalidContext"])
@pytest.mark.parametrize("verdict", ["WARN", "FAIL"])
def test_the_konduktor_example_taints_on_every_xid_and_never_lets_go(reason: str, verdict: str) -> None:
    rule = load_policy(EXAMPLE).rule_for("dmesg", GPU, reason, verdict, "restart-app")
    assert rule is not None
    assert rule.node_taint is not None
    assert (rule.node_taint.key, rule.node_taint.value, rule.node_taint.effect) == (
        "trainy.konduktor.ai/faulty", "true", "NoSchedule",
    )  # fmt: skip
    assert rule.closes_on("restart-app") == ()


@pytest.mark.parametrize("reason", ["Xid14", "Xid31", "Xid79", "SXid12028", "NvidiaPeermemInvalidContext"])
def test_the_konduktor_example_without_loki_taints_for_the_same_kernel_lines(reason: str) -> None:
    policy = load_policy(EXAMPLE.with_stem("konduktor-without-loki"))
    assert (policy.sources.loki, policy.sources.conditions) == (None, ())
    for verdict in ("WARN", "FAIL"):
        with_loki = load_policy(EXAMPLE).rule_for("dmesg", GPU, reason, verdict, "restart-app")
        rule = policy.rule_for("dmesg", GPU, reason, verdict, "restart-app")
        assert rule is not None
        assert with_loki is not None
        assert (rule.node_taint, rule.closes_on("restart-app")) == (with_loki.node_taint, ())
    other = policy.rule_for("pciebw", GPU, "LowBandwidth", "FAIL", "reset")
    assert other is not None
    assert other.node_taint is None


def test_the_konduktor_example_without_loki_taints_for_the_same_line_of_a_pod() -> None:
    policy, with_loki = load_policy(EXAMPLE.with_stem("konduktor-without-loki")), load_policy(EXAMPLE)
    rule = policy.rule_for("containerlog", "pod/ml/train-0", "InvalidDeviceOrdinal", "WARN", "")
    loki = with_loki.rule_for("podlog", "host", "InvalidDeviceOrdinal", "FAIL", "")
    other = policy.rule_for("containerlog", "pod/ml/train-0", "NcclPortError", "WARN", "")
    assert rule is not None
    assert loki is not None
    assert other is not None
    assert (rule.node_taint, rule.closes_on("")) == (loki.node_taint, ())
    assert other.node_taint is None


@pytest.mark.parametrize("fault_class", list(FaultClass))
def test_what_a_tenant_writes_taints_no_node_under_the_builtin_policy(fault_class: FaultClass) -> None:
    for check in ("containerlog", "podlog"):
        rule = load_policy(None).rule_for(check, "pod/ml/train-0", "CudaUncorrectableEcc", "WARN", fault_class)
        assert rule is not None
        assert (rule.action, rule.node_taint) == ("event", None)


def test_a_fault_of_a_container_log_is_proven_after_a_reboot_only() -> None:
    policy = parse_policy(
        "{rules: [{name: a, match: {verdict: [WARN]}, action: taint, closeOn: [proof], proof: {checks: [gpumem]}}]}"
    )
    proof = policy.rules[0].proof_of("containerlog", "reset")
    assert proof is not None
    assert (proof.checks, proof.new_boot) == (("gpumem",), True)
    assert is_counted("containerlog")  # by the agent, unlike what the tainter reads in Loki
    assert not is_counted("podlog")


BAD: list[tuple[str, ...]] = [
    ('rules: [{name: a, action: taint, taint: {effect: NoShedule}}]',
     'rules[0].taint.effect: "NoShedule":', "NoSchedule", "PreferNoSchedule", "NoExecute"),
    ("rules: [{name: a, action: tain}]", 'rules[0].action: "tain":', "taint", "drain", "quarantine", "event", "ignore"),
    ("rules: [{name: a, action: event, when: x}]",
     "rules[0].when:", "action", "closeOn", "for", "holdDown", "match", "name", "proof", "taint"),
    ("rules: [{name: a, action: event, match: {chek: x}}]",
     "rules[0].match.chek:", "check", "class", "component", "correlated", "reason", "solo", "verdict"),
    ("rules: [{name: a, action: event, match: {verdict: UNKNOWN}}]",
     'rules[0].match.verdict[0]: "UNKNOWN":', "WARN", "FAIL"),
    ("rules: [{name: a, action: taint, closeOn: [bot]}]",
     'rules[0].closeOn[0]: "bot":', "boot", "driver", "quiet", "clear", "proof", "source"),
    ("rules: [{name: a, action: event}, {name: a, action: event}]",
     'rules[1].name: "a":', "rules[0]"),
    ("rules: [{name: a, action: event, closeOn: [boot]}]", "rules[0]", "closeOn", "event"),
    ("rules: [{name: a, action: taint, taint: {value: x}}, {name: b, action: taint}]",
     'rules[1].taint.value: "true":', '"x"', "rules[0]"),
    ("rules: [{name: a, action: taint, taint: {key: muster.dev/startup}}]",
     'rules[0].taint.key: "muster.dev/startup":'),
    ("rules: [{name: a, name: b, action: taint}]", "'name'"),
    ("rules: 3", "rules: 3:"),
    ("[]", "policy.yaml: ", "rules"),
    ("rules: [", "policy.yaml"),
    ("{}", "policy.yaml: rules:"),
]  # fmt: skip


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[0])
def test_an_error_says_where_what_and_what_is_allowed(case: tuple[str, ...]) -> None:
    text, *facts = case
    with pytest.raises(PolicyError) as caught:
        parse_policy(text)
    assert str(caught.value).startswith("policy.yaml: ")
    assert [fact for fact in facts if fact not in str(caught.value)] == []


@pytest.mark.parametrize("key", ["faulty", "a.b/c", "example.com/A_b.c-1", "x" * 63])
def test_label_keys_are_taken(key: str) -> None:
    policy = parse_policy(f"rules: [{{name: a, action: taint, taint: {{key: {key}}}}}]")
    assert policy.rules[0].node_taint is not None


@pytest.mark.parametrize("key", ["", "-a", "a/", "/a", "A.b/c", "a b", "x" * 64, "a/b/c", "a_b/c", "é"])
def test_what_kubernetes_refuses_as_a_key_is_refused(key: str) -> None:
    with pytest.raises(PolicyError, match=r"rules\[0\].taint.key"):
        parse_policy(f"rules: [{{name: a, action: taint, taint: {{key: '{key}'}}}}]")


@pytest.mark.parametrize("value", ["-", "a b", "x" * 64, "a/b"])
def test_what_kubernetes_refuses_as_a_value_is_refused(value: str) -> None:
    with pytest.raises(PolicyError, match=r"rules\[0\].taint.value"):
        parse_policy(f"rules: [{{name: a, action: taint, taint: {{value: '{value}'}}}}]")


class TestReload:
    """The file's changes."""

    def test_a_bad_edit_keeps_the_last_good_policy_and_is_told_once(self, tmp_path: Path) -> None:
        file = tmp_path / "policy.yaml"
        file.write_text(default_policy_text())
        told: list[Any] = []
        live = LivePolicy(file, told.append)
        good = live.current
        file.write_text("rules: [")
        assert not live.reload()
        assert not live.reload()
        assert live.current is good
        assert len(told) == 1
        assert str(told[0]).startswith("policy.yaml: ")
        file.write_text("{rules: [{name: a, action: taint}]}")
        assert live.reload()
        assert told[1:] == [None]
        assert live.current.rules[0].name == "a"

    def test_the_same_text_is_no_news(self, tmp_path: Path) -> None:
        file = tmp_path / "policy.yaml"
        file.write_text(default_policy_text())
        told: list[Any] = []
        assert not LivePolicy(file, told.append).reload()
        assert told == []

    def test_a_start_needs_a_good_policy(self, tmp_path: Path) -> None:
        with pytest.raises(PolicyError, match=r"none\.yaml"):
            LivePolicy(tmp_path / "none.yaml")

    def test_a_configmaps_swap_of_links_is_seen(self, tmp_path: Path) -> None:
        for name in ("..1", "..2"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "policy.yaml").write_text(f"rules: [] # {name}")
        (tmp_path / "..data").symlink_to("..1")
        (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")
        watch = FileWatch(tmp_path / "policy.yaml")
        try:
            assert not watch.drain()
            (tmp_path / "..data_tmp").symlink_to("..2")
            (tmp_path / "..data_tmp").rename(tmp_path / "..data")
            assert watch.drain()
            (tmp_path / "other").write_text("x")
            assert not watch.drain()
        finally:
            watch.close()


@pytest.mark.parametrize(
    "text",
    [
        "rules: [{name: 2024-13-45, action: event}]",
        "rules: [{name: !!int abc, action: event}]",
        f"rules: {'1' * 5000}",
        "rules: {2024-01-01: x}",
        "rules: &a [*a]",
        "&a {rules: *a}",
    ],
)
def test_whatever_yaml_makes_of_a_text_is_told_as_an_error(text: str) -> None:
    with pytest.raises(PolicyError, match=r"^policy\.yaml: "):
        parse_policy(text)
