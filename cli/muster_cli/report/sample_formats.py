"""The formats that `muster check --sample` recognises, and the checks that read each of them.

A format is recognised by text that only its tool prints, never because nothing else fits: a file without such text
has no format, and no check judges it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from muster_checks.dcgm.parse import is_diagnosis
from muster_checks.dmesg.sources.text_formats import is_kernel_log, may_be_bare_messages
from muster_checks.hardware.recorded_tree import is_tar
from muster_checks.nvidia.smi_xml import is_smi_xml
from muster_checks.pciebw.nvbandwidth import is_nvbandwidth

LOOKED_AT_BYTES = 1 << 20
KERNEL_LOG = "dmesg"


@dataclass(frozen=True)
class SampleFormat:
    """``name``: the tool's command line, or what the file is. ``matches`` gets the whole file."""

    name: str
    checks: tuple[str, ...]
    matches: Callable[[bytes], bool]


def _text(*patterns: bytes) -> Callable[[bytes], bool]:
    """Every one of ``patterns`` is found in the first MiB; ``^`` and ``$`` match at line ends."""
    compiled = [re.compile(pattern, re.M) for pattern in patterns]
    return lambda text: all(pattern.search(text, 0, LOOKED_AT_BYTES) for pattern in compiled)


def _json(*members: bytes) -> Callable[[bytes], bool]:
    """The file begins as a JSON object, and all of ``members`` (patterns) are names in its first MiB."""
    names = _text(*(rb'"(?:%s)"\s*:' % member for member in members))
    return lambda text: text.lstrip().startswith(b"{") and names(text)


_GPU_CHECKS = ("gpuconfig", "gpucount", "gpuecc", "gpufabric", "gpupower", "gputemp", "nvlink", "remapped")

# the first that matches is taken
SAMPLE_FORMATS: tuple[SampleFormat, ...] = (
    SampleFormat("a tar file of /sys (.tar, .tar.xz, .tar.gz, .tar.bz2)", ("pcielink", "nic", "ib"), is_tar),
    SampleFormat("nvidia-smi -q -x", _GPU_CHECKS, is_smi_xml),
    SampleFormat(
        "nvidia-smi nvlink --status", ("nvlink",), _text(rb"^GPU [0-9]{1,3}: [^\n]{1,96} \(UUID: \S{1,64}\)[ \t\r]*$")
    ),
    SampleFormat("dcgmi nvlink --link-status", ("nvlink",), _text(rb"^\|  NvLink Link Status  \|[ \t\r]*$")),
    SampleFormat("rocm-smi --showrasinfo", ("gpuecc",), _text(rb"^GPU\[[0-9]{1,3}\]: \tRAS INFO[ \t\r]*$")),
    SampleFormat("ibstat", ("ib",), _text(rb"^CA '[\w.-]{1,64}'[ \t\r]*$")),
    SampleFormat("dcgmi diag -j", ("dcgm", "pciebw"), is_diagnosis),
    SampleFormat("nvbandwidth", ("pciebw",), is_nvbandwidth),
    SampleFormat("python -m muster_checks.cuda.copies", ("pciebw",), _text(rb'^\{"type":\s?"copied"')),
    SampleFormat("python -m muster_checks.cuda.arithmetic", ("gpumem",), _text(rb'^\{"type":\s?"computed"')),
    SampleFormat("all_reduce_perf (nccl-tests)", ("nccl",), _text(rb"^#.*\bbusbw\b")),
    SampleFormat("ncclras", ("ncclras",), _text(rb"^Communicators\.\.\.")),
    SampleFormat("ncclras -f json", ("ncclras",), _json(rb"nccl_version", rb"communicators")),
    SampleFormat("gc-hosttraffictest -j", ("pciebw",), _text(rb'"(?:host|tile)_transfer_speed')),
    SampleFormat("gc-info --device-info, gc-inventory", ("ipu",), _text(rb"^[ \t]*Device(?: Info)?:[ \t]*\r?$")),
    SampleFormat("gc-info -l", ("ipu",), _text(rb"-\+- Id:|device listing")),
    SampleFormat("gc-monitor", ("ipu",), _text(rb"^\+---", rb"^\|.*(?:gc-monitor|ttached)")),
    SampleFormat("gcipuinfo: checkHealthOfDevices", ("ipu",), _json(rb"hosts")),
    SampleFormat(
        "a program's output with an error of the Poplar runtime",
        ("ipu",),
        _text(rb"recoverable_runtime_error:\s{0,4}\[Recovery action: [A-Z_]{1,40}\]"),
    ),
    SampleFormat("gc-links -j", ("ipulink",), _text(rb'"(?:from[ _]pcie[ _]id|overall[ _]result)"\s*:')),
    SampleFormat("gc-iputraffictest -j", ("ipulink",), _text(rb'"device0"\s*:')),
    SampleFormat("gc-hostsynclatencytest", ("ipulink",), _text(rb'"time_to_sync_us"\s*:|^o Using device Id')),
    SampleFormat(
        "vipu list partitions",
        ("ipulink",),
        _text(rb"^[^\n]{0,200}Partition +\|[^\n]{0,400}\bState\b"),
    ),
    SampleFormat("iperf3 -J", ("iperf",), _json(rb"start", rb"intervals|end")),
    SampleFormat("smartctl -j", ("disk",), _json(rb"smartctl")),
    SampleFormat("nvme smart-log -o json", ("disk",), _json(rb"critical_warning", rb"spare_thresh")),
    SampleFormat("ping", ("ping",), _text(rb" packets transmitted, ")),
    SampleFormat(
        "chronyc -n -c tracking",
        ("clock",),
        _text(rb"\A\s*(?:[^,\n]*,){13}(?:Normal|Not synchronised|\w+ second)\s*\Z"),
    ),
    SampleFormat("systemctl show", ("services",), _text(rb"^LoadState=")),
    SampleFormat(
        "ipmitool sel elist",
        ("ipmi",),
        _text(rb"^ *[0-9a-fA-F]{1,8} *\| *(?:\d\d/\d\d/\d{4}|[Pp]re-[Ii]nit)[^|\n]*\|(?:[^|\n]*\|){2}"),
    ),
    SampleFormat(
        "ipmitool sensor",
        ("ipmi",),
        _text(rb"^[^|\n]+\|[^|\n]*\|[^|\n]*\| *(?:ok|nc|cr|nr|na|ns) *(?:\|[^|\n]*){6}$"),
    ),
    SampleFormat(
        "ipmi-sel (FreeIPMI)",
        ("ipmi",),
        _text(rb"^[0-9]{1,6} *\| *(?:[A-Z][a-z]{2}-[0-9]{2}-[0-9]{4}|PostInit) *\|(?:[^|\n]*\|){3}"),
    ),
    SampleFormat(
        "ipmi-sensors, ipmimonitoring (FreeIPMI)", ("ipmi",), _text(rb"^ID +\| Name +\| Type +\|[^\n]*\| Reading +\|")
    ),
    SampleFormat("/proc/meminfo", ("memory",), _text(rb"\A\s*MemTotal: +\d+ kB")),
    SampleFormat("a kernel log (dmesg, /dev/kmsg, syslog or journalctl -k)", (KERNEL_LOG,), is_kernel_log),
)
# lines without a time carry no mark: they are a kernel log when the catalogue knows one of them
BARE_MESSAGES = SampleFormat("kernel messages without times", (KERNEL_LOG,), may_be_bare_messages)


def recognise(text: bytes) -> SampleFormat | None:
    return next((each for each in SAMPLE_FORMATS if each.matches(text)), None)
