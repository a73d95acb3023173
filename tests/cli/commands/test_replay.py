"""`muster replay`: files in, what a policy would have done out; always the same."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.tainter.devices.device_world import device, gpu, resource_slice
from tests.wording.facts import missing_facts

from muster_cli.__main__ import main

POLICY = """
rules:
  - {name: hw, match: {class: [reset, reboot, replace, contact]}, action: taint, holdDown: 0s}
"""
ISO = "2026-01-01T%s,000000+00:00 %s"
XID79 = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."
XID31 = "NVRM: Xid (PCI:0000:3b:00): 31, pid=1234, MMU Fault"
XID95 = "NVRM: Xid (PCI:0000:23:00): 95, pid=7, name=python, Uncontained"
BOOT = "Linux version 6.1.0-18-amd64 (gcc) #1 SMP"


def log(*lines: tuple[str, str]) -> str:
    return "".join(ISO % line + "\n" for line in lines)


def file(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.fixture
def policy(tmp_path: Path) -> str:
    return file(tmp_path, "policy.yaml", POLICY)


def told(capsys: Any, *words: str) -> dict[str, Any]:
    assert main(["replay", *words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_an_xid_taints_until_the_boot_after_it_is_looked_through(tmp_path: Path, policy: str, capsys: Any) -> None:
    lines = log(("00:00:00", BOOT), ("01:00:00", XID79), ("03:00:00", BOOT), ("04:00:00", "usb 1-1: new device"))
    found = told(capsys, policy, "--log", file(tmp_path, "node-7.log", lines))
    [spell] = found["taints"]
    assert (spell["node"], spell["since"], spell["until"]) == (
        "node-7",
        "2026-01-01T01:00:00Z",
        "2026-01-01T03:01:00Z",  # a minute after the boot began
    )
    assert (spell["rules"], spell["taint"]) == ("hw", "muster.dev/faulty=true:NoSchedule")
    assert "Xid79" in spell["why"]
    assert not missing_facts(spell["ended"], "boot")
    assert (found["nodesTainted"], found["nodeHours"], found["lines"]) == (1, 2.02, 4)


def test_error_of_an_application_taints_no_node(tmp_path: Path, policy: str, capsys: Any) -> None:
    found = told(capsys, policy, "--log", file(tmp_path, "n1.log", log(("00:00:00", XID31))))
    assert (found["taints"], found["nodes"], found["nodesTainted"]) == ([], 1, 0)


def test_nodes_are_named_on_the_command_line_or_by_their_file(tmp_path: Path, policy: str, capsys: Any) -> None:
    text = log(("00:00:00", XID79))
    words = [f"gpu-a={file(tmp_path, 'one', text)}", file(tmp_path, "gpu-b.kmsg.1", text)]
    assert {spell["node"] for spell in told(capsys, policy, "--log", *words)["taints"]} == {"gpu-a", "gpu-b"}


@pytest.mark.parametrize(("words", "facts"), [
    ([], ("--log",)),
    (["--log", "a/x.log", "b/x.log"], ("--log b/x.log", "a/x.log", "NODE=FILE")),
    (["--log", "a/No_name"], ("--log a/No_name", "NODE=a/No_name")),
    (["--log", "NODE=a/x.log"], ("--log NODE=a/x.log",)),
    (["--log", "a/none.log"], ("a/none.log",)),
    (["--log", "x=a/binary"], ("a/binary",)),
    (["--log", "a/x.log", "--nodes", "a/x.log"], ("--nodes a/x.log", "kubectl get nodes -o json")),
    (["--log", "a/x.log", "--slices", "a/x.log"], ("--slices a/x.log", "kubectl get resourceslices -o json")),
    (["--log", "a/x.log", "--slices", "a/none.json"], ("a/none.json",)),
])  # fmt: skip
def test_unreadable_file_is_a_usage_error_with_its_place(
    tmp_path: Path, policy: str, capsys: Any, monkeypatch: pytest.MonkeyPatch, words: list[str], facts: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a/x.log", "b/x.log", "a/No_name"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(log(("00:00:00", XID79)))
    (tmp_path / "a/binary").write_bytes(bytes(range(256)) * 8)
    assert main(["replay", policy, *words]) == 64
    assert not missing_facts(capsys.readouterr().err, *facts)


def test_one_file_that_cannot_be_read_as_a_log_does_not_refuse_the_others(
    tmp_path: Path, policy: str, capsys: Any
) -> None:
    good = file(tmp_path, "n1.log", log(("00:00:00", XID79)))
    strange = file(tmp_path, "n2.log", "no log\n")
    localised = file(tmp_path, "n3.log", "M\u00e4r 03 10:00:00 n3 kernel: usb 1-1: new device\n")
    found = told(capsys, policy, "--log", good, strange, localised)
    assert [spell["node"] for spell in found["taints"]] == ["n1"]
    assert [note for note in found["notes"] if strange in note]
    assert not [note for note in found["notes"] if localised in note]
    assert main(["replay", policy, "--log", strange, file(tmp_path, "n4.log", "nor this\n")]) == 64


def test_a_bad_policy_is_a_usage_error_with_its_place(tmp_path: Path, capsys: Any) -> None:
    bad = file(tmp_path, "p.yaml", "rules: [{name: x, action: tain}]")
    assert main(["replay", bad, "--log", file(tmp_path, "n1.log", "")]) == 64
    assert 'p.yaml: rules[0].action: "tain": ' in capsys.readouterr().err


def test_times_since_boot_continue_over_a_reboot_with_a_note(tmp_path: Path, policy: str, capsys: Any) -> None:
    text = f"[    0.000000] {BOOT}\n[ 3600.000000] {XID79}\n[    0.000000] {BOOT}\n[  120.000000] usb 1-1: new device\n"
    found = told(capsys, policy, "--log", file(tmp_path, "n1.dmesg", text))
    [spell] = found["taints"]
    assert (spell["since"], spell["seconds"]) == ("1970-01-01T01:00:00Z", 62)
    assert any(note.startswith("note: n1: ") for note in found["notes"])


def test_records_of_kmsg_that_are_none_are_counted(tmp_path: Path, policy: str, capsys: Any) -> None:
    text = f"6,1,3600000000,-;{XID79}\n6,1,99999999999999999999999999,-;x\n"
    found = told(capsys, policy, "--log", file(tmp_path, "n1", text))
    assert (len(found["taints"]), found["badLines"], found["lines"]) == (1, 1, 2)


def test_a_line_without_an_end_is_cut_and_counted(tmp_path: Path, policy: str, capsys: Any) -> None:
    text = log(("00:00:00", "x" * 300_000), ("00:00:01", XID79))
    found = told(capsys, policy, "--log", file(tmp_path, "n1", text))
    assert (len(found["taints"]), found["cutLines"], found["lines"]) == (1, 1, 2)


def test_years_that_lines_do_not_name_are_given(tmp_path: Path, policy: str, capsys: Any) -> None:
    text = f"Dec 31 23:59:00 n1 kernel: {XID79}\nJan  1 00:30:00 n1 kernel: usb 1-1: new device\n"
    found = told(capsys, policy, "--year", "2025", "--log", file(tmp_path, "n1", text))
    assert (found["taints"][0]["since"], found["to"]) == ("2025-12-31T23:59:00Z", "2026-01-01T00:30:02Z")


def test_budgets_go_by_the_fleet_that_kubectl_printed(tmp_path: Path, capsys: Any) -> None:
    names = [f"n{number}" for number in range(10)]
    nodes = {"items": [{"metadata": {"name": name, "labels": {"pool": "a"}}} for name in names]}
    limited = POLICY + "pools: [{name: a, selector: {matchLabels: {pool: a}}, budget: {tainted: 20%}}]\n"
    words = [file(tmp_path, "p.yaml", limited), "--nodes", file(tmp_path, "nodes.json", json.dumps(nodes)), "--log"]
    logs = [file(tmp_path, f"{name}.log", log((f"00:{number:02}:00", XID79))) for number, name in enumerate(names[:5])]
    found = told(capsys, *words, *logs)
    assert {spell["node"] for spell in found["taints"]} == {"n0", "n1"}
    assert {spell["node"] for spell in found["withheld"]} == {"n2", "n3", "n4"}
    assert not missing_facts(found["withheld"][0]["why"], "a", "2 of 2", "20% of 10")
    assert (found["nodes"], found["atOnce"], found["nodesWithheld"]) == (10, 2, 3)


def test_many_nodes_at_once_are_one_incident(tmp_path: Path, policy: str, capsys: Any) -> None:
    logs = [file(tmp_path, f"n{number}.log", log((f"00:00:{number:02}", XID79))) for number in range(6)]
    [incident] = told(capsys, policy, "--log", *logs)["incidents"]
    assert (incident["reason"], incident["nodes"], incident["since"]) == ("Xid79", 6, "2026-01-01T00:00:00Z")


def test_the_same_input_gives_the_same_bytes(
    tmp_path: Path, policy: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TZ", raising=False)
    local = f"[Thu Jan  1 01:00:00 2026] {XID79}\n"
    logs = [file(tmp_path, f"n{number}.log", log(("00:00:00", XID79)) + local) for number in range(4)]
    outputs = set()
    for order in (logs, logs[::-1]):
        assert main(["replay", policy, "--log", *order]) == 0
        outputs.add(capsys.readouterr().out)
    assert len(outputs) == 1


def test_a_tainters_own_log_is_replayed(tmp_path: Path, policy: str, capsys: Any) -> None:
    finding = {"event": "finding", "check": "pcielink", "component": "gpu/0", "reason": "NarrowLink", "class": "reset"}
    came = finding | {"from": None, "to": "FAIL", "verdict": "FAIL", "message": "x4", "occurrence": 1}
    lines = [
        "2026-01-01T00:00:00.000Z INFO muster-tainter-0 leads",
        json.dumps({"at": "2026-01-01T00:00:00.000000Z", "node": "n1", "bootID": "b1", **came}),
        '2026-01-01T00:00:00.1Z stderr F {"at": "2026-01-01T00:10:00.000000Z", "node": "n1", "bootID": "b1", "event": '
        '"check", "check": "pcielink", "from": "PASS", "to": "FAIL"}',
        json.dumps({"at": "2026-01-01T02:00:00.000000Z", "node": "n1", "event": "clear", "check": "pcielink",
                    "component": "*", "occurrence": 1, "by": "ada"}),
        '{"at": "2026-01-01T03:00:00.000000Z", "node": "n1", "event": "finding"}',
        '{"at": "2026-01-01T03:00:00.000000Z", "node": 7}',
        '{"at": broken',
    ]  # fmt: skip
    found = told(capsys, policy, "--log", file(tmp_path, "tainter.log", "\n".join(lines)))
    [spell] = found["taints"]
    assert (spell["node"], spell["seconds"], found["badLines"]) == ("n1", 7200, 2)
    assert not missing_facts(spell["ended"], "person", "pcielink gpu/0 NarrowLink: x4")


def test_the_table_has_a_row_a_taint_and_a_summary(tmp_path: Path, policy: str, capsys: Any) -> None:
    assert main(["replay", policy, "--log", file(tmp_path, "n1.log", log(("00:00:00", XID79), ("00:30:00", "x")))]) == 0
    head, row, _, *rest = capsys.readouterr().out.splitlines()
    assert head.split() == ["SINCE", "(UTC)", "NODE", "FOR", "RULE", "WHY", "ENDED"]
    assert row.split()[:5] == ["2026-01-01", "00:00:00", "n1", "30m", "hw"]
    assert not missing_facts(rest[0], "1 of 1 node", "0.5 node-hours", "1", "2026-01-01T00:00:00Z")


def test_a_policy_that_keeps_out_single_devices_needs_their_slices(tmp_path: Path, capsys: Any) -> None:
    rules = file(tmp_path, "rules.yaml", POLICY + "devices: {quarantine: rules}\n")
    kernel = file(tmp_path, "n1.log", log(("00:00:00", BOOT), ("01:00:00", XID95), ("02:00:00", XID95)))
    items = [resource_slice("n1", devices=[device(n) for n in range(8)])]
    slices = file(tmp_path, "slices.json", json.dumps({"kind": "List", "items": items}))
    found = told(capsys, rules, "--log", kernel, "--slices", slices)
    [period] = found["devices"]
    assert (period["node"], period["device"], period["since"]) == ("n1", gpu(1), "2026-01-01T01:00:00Z")
    assert (found["taints"], found["devicesKeptOut"]) == ([], 1)
    assert (found["deviceHours"], found["sparedDeviceHours"]) == (1.0, 7.0)
    assert main(["replay", rules, "--log", kernel, "--slices", slices]) == 0
    assert not missing_facts(capsys.readouterr().out, gpu(1), "1 device-hours", "7")
    without = told(capsys, rules, "--log", kernel)
    assert (len(without["taints"]), without["devices"]) == (1, [])
    assert any("--slices" in note for note in without["notes"])
    off = file(tmp_path, "off.yaml", POLICY)
    assert any("devices.quarantine" in note for note in told(capsys, off, "--log", kernel, "--slices", slices)["notes"])
