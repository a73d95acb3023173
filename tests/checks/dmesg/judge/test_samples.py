"""Every recorded line gets the verdict its record expects, or a listed one with its reason."""

import json
from pathlib import Path

import pytest
import yaml

SAMPLES = Path(__file__).parents[1] / "samples"
FILES = ("gpufallen_gpufallen_handler", "nicdriver_bdf", "nicdriver_handler", "sxid_sxid_handler")
XID_FILES = ("xid_parser_csv", "xid_xid_handler")
RECORDS = [
    pytest.param(name + ".jsonl", json.loads(text), id=f"{name}-{number}")
    for name in FILES + XID_FILES
    for number, text in enumerate((SAMPLES / f"{name}.jsonl").read_text().splitlines())
]
DIFFERENCES = yaml.safe_load((SAMPLES / "differences.yaml").read_text())
_ACTIONS = {
    "pb.RecommendedAction_NONE": ("WARN", None),
    "pb.RecommendedAction_COMPONENT_RESET": ("FAIL", "reset"),
    "pb.RecommendedAction_CONTACT_SUPPORT": ("FAIL", "contact"),
    "pb.RecommendedAction_RESTART_VM": ("FAIL", "reboot"),
}


def _expectation(file, record):
    """(verdict, class or None for any, what must stand in component and reason); verdict None: no sign."""
    expect, line = record["expect"], record["line"]
    if file.startswith("gpufallen"):
        if expect["expectEvent"]:
            return "FAIL", "reboot", ("gpu/0000:b3:00.0", "GpuFallenOffTheBus")
        return ("FAIL", "reboot", ("Xid79",)) if "Xid" in line else (None, None, ())
    if file == "nicdriver_bdf.jsonl":
        if record["name"] == "uppercase hex BDF":
            return None, None, ()  # only an address is asked for; "some message" is no trouble
        return "WARN" if "WATCHDOG" in line else "FAIL", None, (expect["wantBDF"],)
    if file == "nicdriver_handler.jsonl":
        return "FAIL" if expect.get("wantFatal") else "WARN", None, ()
    if file.startswith("sxid"):
        if "ErrorNum" not in expect:
            return None, None, ()
        return "FAIL" if expect["IsFatal"] else "WARN", None, (expect["PCI"], "SXid" + expect["ErrorNum"])
    if file == "xid_parser_csv.jsonl":
        if not expect["expectedSuccess"]:
            return None, None, ()
        verdict, asks = _ACTIONS[expect["expectedAction"]]
        return verdict, asks, (expect["expectedPCIAddr"], "Xid" + expect["expectedXIDCode"])
    if "DecodedXIDStr" in expect:  # by NVIDIA's bucket RESTART_BM; the records' resolutions are their tests' inputs
        return "FAIL", "reboot", (expect["PCIE"], expect["DecodedXIDStr"].replace(" ", ""))
    if expect.get("success") is False and expect["gpuId"] and "reset" in line:
        return "FAIL", "reboot", ("GpuResetFailed",)
    if expect.get("RecommendedAction", "").endswith("RESTART_VM"):
        return "FAIL", "reboot", ("GpuResetFailed",)
    if expect.get("success") or expect.get("IsHealthy") or expect.get("expectError"):
        return "CLEAR", None, ()
    return None, None, ()


@pytest.mark.parametrize(("file", "record"), RECORDS)
def test_a_recorded_line_is_judged_as_its_record_expects(file, record, bench, summarize):
    signs = summarize(bench.feed(record["line"]))
    verdict, asks, names = _expectation(file, record)
    as_expected = (
        not signs
        if verdict is None
        else [s[2] for s in signs] == [verdict]
        and (asks is None or signs[0][3] == asks)
        and all(any(name in part for part in signs[0][:2]) for name in names)
    )
    difference = DIFFERENCES.get(file, {}).get(record["name"])
    if difference is None:
        assert as_expected, signs
    else:
        assert not as_expected, "the difference is gone: take it off the list"
        assert [list(sign) for sign in signs] == difference["ours"]


def test_every_listed_difference_has_its_record_and_its_reason():
    names = {(param.values[0], param.values[1]["name"]) for param in RECORDS}
    for file, listed in DIFFERENCES.items():
        for name, difference in listed.items():
            assert (file, name) in names
            assert difference["why"]


DUMPS = {
    "au_opts_verify": [],
    "aufs_umount_hung": [("host", "TaskHung", "WARN", "")],
    "divide_zero": [("host", "KernelOops", "WARN", "reboot")],
    "docker_hung": [("host", "TaskHung", "WARN", ""), ("host", "KernelDeadlock", "FAIL", "reboot")],
    "null_pointer": [("host", "KernelOops", "WARN", "reboot")],
    "oom_kill": [("host", "OOMKilling", "WARN", "restart-app")],
    "readonly_filesystem": [("disk/sda1", "FilesystemReadOnly", "FAIL", "reboot")],
    "unregister_netdevice": [("host", "UnregisterNetDevice", "WARN", "reboot")],
}


@pytest.mark.parametrize("name", sorted(path.name for path in (SAMPLES / "dumps").iterdir()))
@pytest.mark.parametrize("in_one", [True, False], ids=["one record", "line by line"])
def test_a_kernel_dump_gives_what_node_problem_detector_expects_of_it(name, in_one, bench, summarize):
    text = (SAMPLES / "dumps" / name).read_text()
    events = [event for piece in ([text] if in_one else text.splitlines()) for event in bench.feed(piece)]
    assert summarize(events) == DUMPS[name]


def test_a_healthy_node_s_log_is_of_no_interest(bench):
    records = (SAMPLES / "kmsg.1.log").read_bytes().splitlines()
    texts = [record.split(b";", 1)[1] for record in records]
    assert len(texts) > 40
    assert [text for text in texts if bench.judge.interesting(text)] == []
    assert [event for text in texts for event in bench.feed(text.decode())] == []
