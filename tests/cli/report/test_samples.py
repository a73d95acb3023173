"""Which format `muster check --sample` recognises in a file, and what it answers."""

import io
import json
import os
import tarfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.gpuecc.test_rocm_smi import sample as rocm_smi
from tests.checks.ib.test_ibstat import EIGHT
from tests.checks.nvlink.test_probe import DCGMI

from muster_checks.dmesg.sources.text_formats import has_kernel_line, is_kernel_log, may_be_bare_messages
from muster_checks.registry import load_registry
from muster_cli.__main__ import main
from muster_cli.report.sample_formats import KERNEL_LOG, SAMPLE_FORMATS, recognise

CHECKS = Path(__file__).parents[2] / "checks"
OFF_THE_BUS = b"[ 1843.308145] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.\n"
RANDOM = bytes(range(256)) * 20
UNRECOGNISED = {
    "empty": b"",
    "an empty JSON object": b"{}",
    "another JSON object": b'{"name": "demo", "hosting": []}',
    "UTF-16": b"\xff\xfe<\0?\0x\0m\0l\0",
    "zeros": bytes(5000),
    "table": b"code,action\n79,RESET\n",
    "deep": b"[" * 100_000,
    "help text": b"usage: nvidia-smi [-h]\n",
    "binary with a kernel line": RANDOM + b"\n" + OFF_THE_BUS + RANDOM,
    "binary with bare messages": b"\0" + OFF_THE_BUS.partition(b"] ")[2] + RANDOM,
    "JSON that quotes a kernel line": json.dumps({"log": OFF_THE_BUS.decode(), "n": 1}).encode(),
    "log of an application": b"2025-11-20T03:42:11Z INFO started\n2025-11-20T03:42:12Z INFO done\n",
    "numbered notes": b"[1] A book.\n[2] Another book.\n",
}


@pytest.mark.parametrize("content", UNRECOGNISED.values(), ids=UNRECOGNISED)
def test_an_unrecognised_file_is_unknown_with_the_list_of_formats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    sample = tmp_path / "sample"
    sample.write_bytes(content)
    assert main(["check", "--sample", str(sample)]) == 3
    printed = capsys.readouterr().out
    assert "UNKNOWN" in printed
    assert "PASS" not in printed
    assert all(form.name in printed for form in SAMPLE_FORMATS)


@pytest.mark.parametrize("check", ["dmesg", "ipu", "dcgm", "membw"])
def test_a_named_check_is_unknown_for_an_unrecognised_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], check: str
) -> None:
    sample = tmp_path / "sample"
    sample.write_bytes(b"{}")
    assert main(["check", check, "--sample", str(sample), "--json"]) == 3
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["check"], result["verdict"], result["reason"]) == (check, "UNKNOWN", "NotASample")
    reads = [form.name for form in SAMPLE_FORMATS if check in form.checks]
    assert all(name in result["message"] for name in reads)


RECORDED = {
    "clock/samples/synchronised.csv": "chronyc -n -c tracking",
    "clock/samples/no_source.csv": "chronyc -n -c tracking",
    "dcgm/samples/diag_fail.json": "dcgmi diag -j",
    "dcgm/samples/dcgm4-gb10.json": "dcgmi diag -j",
    "dcgm/samples/nvvs-sixth-fails.json": "dcgmi diag -j",
    "disk/samples/nvme_smart_log.json": "nvme smart-log -o json",
    "disk/samples/smartctl_ata_failing.json": "smartctl -j",
    "disk/samples/smartctl_nvme.json": "smartctl -j",
    "gpumem/samples/arithmetic.jsonl": "python -m muster_checks.cuda.arithmetic",
    "graphcore/samples/gc_hostsynclatencytest.json": "gc-hostsynclatencytest",
    "graphcore/samples/gc_hostsynclatencytest.txt": "gc-hostsynclatencytest",
    "graphcore/samples/gc_hosttraffictest.json": "gc-hosttraffictest -j",
    "graphcore/samples/gc_info_device_c2.txt": "gc-info --device-info, gc-inventory",
    "graphcore/samples/gc_info_device_m2000.txt": "gc-info --device-info, gc-inventory",
    "graphcore/samples/gc_info_list.txt": "gc-info -l",
    "graphcore/samples/gc_iputraffictest.json": "gc-iputraffictest -j",
    "graphcore/samples/gc_links_failed_1.0.x.json": "gc-links -j",
    "graphcore/samples/gc_links_pod.json": "gc-links -j",
    "graphcore/samples/gc_monitor.txt": "gc-monitor",
    "graphcore/samples/gcipuinfo_health_check.json": "gcipuinfo: checkHealthOfDevices",
    "graphcore/samples/poplar_error_softerr.txt": "a program's output with an error of the Poplar runtime",
    "graphcore/samples/vipu_list_partitions.txt": "vipu list partitions",
    "iperf/samples/tcp.json": "iperf3 -J",
    "iperf/samples/refused.json": "iperf3 -J",
    "ipmi/samples/sel_elist.txt": "ipmitool sel elist",
    "ipmi/samples/sensor.txt": "ipmitool sensor",
    "ipmi/samples/ipmi_sel.txt": "ipmi-sel (FreeIPMI)",
    "ipmi/samples/ipmimonitoring.txt": "ipmi-sensors, ipmimonitoring (FreeIPMI)",
    "memory/samples/meminfo.txt": "/proc/meminfo",
    "nccl/samples/h100x8.txt": "all_reduce_perf (nccl-tests)",
    "nvidia/samples/nvlink-h100.txt": "nvidia-smi nvlink --status",
    "pciebw/samples/nvbandwidth-8.json": "nvbandwidth",
    "pciebw/samples/nvbandwidth-0.10.txt": "nvbandwidth",
    "ping/samples/busybox-loss.txt": "ping",
    "ping/samples/inetutils-sound.txt": "ping",
    "ping/samples/iputils-ipv6.txt": "ping",
    "services/samples/gpu-node.txt": "systemctl show",
    "dmesg/samples/kmsg.log": "a kernel log (dmesg, /dev/kmsg, syslog or journalctl -k)",
}


@pytest.mark.parametrize(("file", "name"), RECORDED.items())
def test_recorded_output_is_recognised_by_its_content(file: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    form = recognise((CHECKS / file).read_bytes())
    assert form is not None
    assert form.name == name
    main(["check", "--sample", str(CHECKS / file)])
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.endswith(f"recognised as {name}")
    assert not any("NotASample" in row for row in rows)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (DCGMI, "dcgmi nvlink --link-status"),
        ("".join(EIGHT).encode(), "ibstat"),
        (rocm_smi((0, 0)), "rocm-smi --showrasinfo"),
    ],
)
def test_text_forms_are_recognised_by_their_content(text: bytes, name: str) -> None:
    form = recognise(text)
    assert form is not None
    assert form.name == name


def test_the_xml_of_nvidia_smi_and_a_packed_sys_are_recognised() -> None:
    smi = recognise(b'<?xml version="1.0" ?>\n<nvidia_smi_log>\n</nvidia_smi_log>\n')
    assert smi is not None
    assert "gpuecc" in smi.checks
    for compression in ("", "xz", "gz", "bz2"):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode=f"w:{compression}") as archive:
            archive.addfile(tarfile.TarInfo("sys/class/net/eth0/mtu"), io.BytesIO())
        form = recognise(packed.getvalue())
        assert form is not None
        assert "nic" in form.checks


def test_every_check_that_reads_recorded_output_has_a_format() -> None:
    checks = {name for name, check in load_registry().items() if check.recorded is not None} | {KERNEL_LOG}
    assert {name for form in SAMPLE_FORMATS for name in form.checks} == checks


def test_a_check_that_reads_another_format_is_unknown_and_names_both(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "nic", "--sample", str(CHECKS / "dcgm/samples/diag_fail.json")]) == 3
    printed = capsys.readouterr().out
    assert all(fact in printed for fact in ("NotASample", "dcgmi diag -j", "/sys"))


def test_json_output_holds_the_results_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "dmesg.txt"
    log.write_bytes(OFF_THE_BUS)
    assert main(["check", "--json", "--sample", str(log)]) == 2
    printed = capsys.readouterr()
    assert [result["check"] for result in json.loads(printed.out)] == ["dmesg"]
    assert printed.err.startswith("muster: ")
    assert "kernel log" in printed.err


@pytest.mark.parametrize("text", [OFF_THE_BUS, OFF_THE_BUS.partition(b"] ")[2]], ids=["with a time", "bare"])
def test_a_kernel_log_may_come_through_a_pipe(tmp_path: Path, text: bytes) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(text,))
    writer.start()
    assert main(["check", "--sample", str(pipe)]) == 2
    writer.join()


def test_a_long_kernel_log_is_read_as_one(tmp_path: Path) -> None:
    log = tmp_path / "dmesg.txt"
    log.write_bytes(OFF_THE_BUS + b"[ 1843.400000] usb 1-1: new high-speed device\n" * 120_000)
    assert main(["check", "--sample", str(log)]) == 2


@pytest.mark.parametrize(
    "line",
    [
        b"6,4004,9184121699,-;text",
        b"<6>text",
        b"[    1.2] text",
        b"<3>[ 1843.308145] text",
        b"[Thu Nov 20 03:42:11 2025] text",
        b"2025-11-20T03:42:11,123456+00:00 text",
        b"2025-11-20T03:42:11.1+00:00 host kernel: text",
        b"Nov 20 03:42:11 host kernel: [ 12.3] text",
    ],
)
def test_a_kernel_log_is_recognised_by_lines_of_any_form(line: bytes) -> None:
    assert has_kernel_line(line)
    assert is_kernel_log(b"saved by hand\n" + line + b"\n")
    assert not is_kernel_log(b"some text\n" * 10 + line + b"\n")
    assert not is_kernel_log(b"some\0text\n" * 3 + line + b"\n")


@pytest.mark.parametrize(
    "text",
    [
        b'{\n   "dmesg": [\n      {\n         "pri": 3,\n         "msg": "%s"\n      }\n   ]\n}\n',
        b'{"__CURSOR": "s=1", "_TRANSPORT": "kernel", "PRIORITY": "3", "MESSAGE": "%s"}\n',
    ],
)
def test_a_kernel_log_as_json_is_read(text: bytes, tmp_path: Path) -> None:
    log = tmp_path / "log.json"
    log.write_bytes(text % b"NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")
    assert main(["check", "--sample", str(log)]) == 2
    assert not is_kernel_log(text.replace(b"kernel", b"stdout").replace(b"dmesg", b"events"))


def test_a_serial_console_with_firmware_and_logins_is_a_kernel_log() -> None:
    assert is_kernel_log(b"Press F2 to enter setup\r\n" * 5 + OFF_THE_BUS + b"node-7 login: \r\n")


def test_a_syslog_with_few_kernel_lines_is_a_kernel_log() -> None:
    others = b"Nov 20 03:42:11 host sshd[7]: session opened\n" * 50
    assert is_kernel_log(others + b"Nov 20 03:42:11 host kernel: text\n")
    assert not is_kernel_log(others)


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=200))
def test_no_bytes_are_too_strange(noise: bytes) -> None:
    assert has_kernel_line(noise) in (True, False)
    assert is_kernel_log(noise) in (True, False)
    assert may_be_bare_messages(noise) in (True, False)
    recognise(noise)
