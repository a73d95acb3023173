"""Dumps and logs, ours and recorded ones; a recorded line gets the verdict its record expects, or a listed one."""

import json
from pathlib import Path

import pytest
import yaml

SAMPLES = Path(__file__).parents[1] / "samples"
FILES = (
    "gpufallen_gpufallen_handler.jsonl",
    "nicdriver_bdf.jsonl",
    "nicdriver_handler.jsonl",
    "sxid_sxid_handler.jsonl",
    "xid_parser_csv.jsonl",
    "xid_xid_handler.jsonl",
)
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


@pytest.mark.parametrize("file", FILES)
def test_a_recorded_line_is_judged_as_its_record_expects(file, new_bench, summarize, shared_data):
    records = [json.loads(text) for text in shared_data.text(f"kernel-lines/{file}").splitlines()]
    assert records
    differences = DIFFERENCES.get(file, {})
    assert differences.keys() <= {record["name"] for record in records}
    for record in records:
        signs = summarize(new_bench().feed(record["line"]))
        verdict, asks, names = _expectation(file, record)
        as_expected = (
            not signs
            if verdict is None
            else [s[2] for s in signs] == [verdict]
            and (asks is None or signs[0][3] == asks)
            and all(any(name in part for part in signs[0][:2]) for name in names)
        )
        difference = differences.get(record["name"])
        if difference is None:
            assert as_expected, (record["name"], signs)
        else:
            assert not as_expected, f"{record['name']}: the difference is gone: take it off the list"
            assert [list(sign) for sign in signs] == difference["ours"], record["name"]


def test_every_listed_difference_has_its_reason():
    assert DIFFERENCES.keys() <= set(FILES)
    assert all(difference["why"] for listed in DIFFERENCES.values() for difference in listed.values())


OOPS = ("host", "KernelOops", "WARN", "reboot")
OOM = ("host", "OOMKilling", "WARN", "restart-app")
HUNG = ("host", "TaskHung", "WARN", "")
DEADLOCK = ("host", "KernelDeadlock", "FAIL", "reboot")
UNREGISTERED = ("host", "UnregisterNetDevice", "WARN", "reboot")
DUMPS = {
    "divide_zero": [OOPS],
    "mount_blocked": [HUNG],
    "null_pointer": [OOPS],
    "oom_kill": [OOM],
    "overlay_warning": [],
    "read_only": [("disk/nvme1n1p3", "FilesystemReadOnly", "FAIL", "reboot")],
    "runtime_blocked": [HUNG, DEADLOCK],
    "unregister_netdevice": [UNREGISTERED],
}
RECORDED_DUMPS = {
    "au_opts_verify": [],
    "aufs_umount_hung": [HUNG],
    "divide_zero": [OOPS],
    "docker_hung": [HUNG, DEADLOCK],
    "null_pointer": [OOPS],
    "oom_kill": [OOM],
    "readonly_filesystem": [("disk/sda1", "FilesystemReadOnly", "FAIL", "reboot")],
    "unregister_netdevice": [UNREGISTERED],
}


@pytest.mark.parametrize("name", sorted(path.name for path in (SAMPLES / "dumps").iterdir()))
@pytest.mark.parametrize("in_one", [True, False], ids=["one record", "line by line"])
def test_a_kernel_dump_gives_its_signs(name, in_one, bench, summarize):
    assert summarize(events_of((SAMPLES / "dumps" / name).read_text(), in_one, bench)) == DUMPS[name]


@pytest.mark.parametrize("name", RECORDED_DUMPS)
@pytest.mark.parametrize("in_one", [True, False], ids=["one record", "line by line"])
def test_a_recorded_dump_gives_what_node_problem_detector_expects_of_it(name, in_one, bench, summarize, shared_data):
    text = shared_data.text(f"npd/kernel_log_generator/{name}")
    assert summarize(events_of(text, in_one, bench)) == RECORDED_DUMPS[name]


def events_of(text, in_one, bench):
    return [event for piece in ([text] if in_one else text.splitlines()) for event in bench.feed(piece)]


def test_a_healthy_node_s_log_is_of_no_interest(bench):
    assert_of_no_interest((SAMPLES / "kmsg.log").read_bytes(), bench)


def test_the_recorded_log_of_a_healthy_node_is_of_no_interest(bench, shared_data):
    assert_of_no_interest(shared_data.read("kernel-lines/kmsg.1.log"), bench)


def assert_of_no_interest(log, bench):
    texts = [record.split(b";", 1)[1] for record in log.splitlines()]
    assert len(texts) > 40
    assert [text for text in texts if bench.judge.interesting(text)] == []
    assert [event for text in texts for event in bench.feed(text.decode())] == []
