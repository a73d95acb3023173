"""Parses the output of NVIDIA's nvbandwidth 0.4 to 0.10, as text or from ``-j``.

Source: github.com/NVIDIA/nvbandwidth, output.cpp, json_output.cpp and README.md. A host test prints one row with a
column per GPU. PCI addresses of the devices are in the text output up to 0.8, and in the JSON as "GPU Device list".
Without them, the columns are in the order of the addresses (CUDA_DEVICE_ORDER=PCI_BUS_ID).
"""

import re
from collections.abc import Iterable

import msgspec

from muster_checks.base.bounded_read import Unreadable, json_document, number
from muster_checks.hardware.pci import normal_address

TO_DEVICE, FROM_DEVICE = "host_to_device_memcpy_ce", "device_to_host_memcpy_ce"
_DEVICE = re.compile(
    r"(?:Device )?(\d{1,3}): (.{1,200}?)"  # number and name
    r"(?: \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?)\))?"  # address
    r"(?:: .*)?"  # host
)
_COLUMNS_LIMIT = 64


class NvbandwidthGpu(msgspec.Struct, frozen=True):
    name: str
    address: str


class NvbandwidthReport(msgspec.Struct, frozen=True):
    """By CUDA's device numbers. ``error``: the tool's error message."""

    to_device: dict[int, float]
    from_device: dict[int, float]
    devices: dict[int, NvbandwidthGpu]
    error: str = ""


def is_nvbandwidth(text: bytes) -> bool:
    return b"nvbandwidth" in text[:4096] or TO_DEVICE.encode() in text or FROM_DEVICE.encode() in text


def parse(text: bytes) -> NvbandwidthReport:
    """Either form. Raises Unreadable if the text contains neither a bandwidth nor an error."""
    beginning = text[:4096].lstrip()
    report = _json(text) if beginning.startswith(b"{") else _text(text.decode("utf-8", "replace"))
    if not report.to_device and not report.from_device and not report.error:
        raise Unreadable("nvbandwidth: no bandwidth between host and device found")
    return report


def _json(text: bytes) -> NvbandwidthReport:
    document = json_document(text)
    root = document.get("nvbandwidth") if isinstance(document, dict) else None
    if not isinstance(root, dict):
        raise Unreadable("nvbandwidth: expected an object of that name")
    rows: dict[str, dict[int, float]] = {}
    tests = root.get("testcases")
    for test in tests if isinstance(tests, list) else []:
        if isinstance(test, dict) and test.get("status") == "Passed":
            rows[str(test.get("name"))] = _row(test.get("bandwidth_matrix"))
    listed = root.get("GPU Device list")
    return NvbandwidthReport(
        rows.get(TO_DEVICE, {}),
        rows.get(FROM_DEVICE, {}),
        _devices(line for line in (listed if isinstance(listed, list) else []) if isinstance(line, str)),
        str(root.get("error") or "")[:300],
    )


def _row(matrix: object) -> dict[int, float]:
    row = matrix[0] if isinstance(matrix, list) and matrix else None
    return _number_columns(row[:_COLUMNS_LIMIT]) if isinstance(row, list) else {}


def _number_columns(values: list[object]) -> dict[int, float]:
    found = ((column, number(value)) for column, value in enumerate(values))
    return {column: value for column, value in found if value is not None and value > 0}


def _text(text: str) -> NvbandwidthReport:
    rows: dict[str, dict[int, float]] = {}
    test = ""
    columns = 0
    lines = [line.strip()[:2000] for line in text[: 1 << 20].splitlines()]
    for line in lines:
        cells: list[object] = list(line.split())
        if line.startswith("Running "):
            test, columns = line.removeprefix("Running ").removesuffix("."), 0
        elif test and cells == [str(column) for column in range(len(cells))] and cells and not columns:
            columns = len(cells)
        elif columns and cells[:1] == ["0"] and len(cells) == columns + 1:
            rows[test], test = _number_columns(cells[1:]), ""
    errors = [line for line in lines if line.startswith(("ERROR", "[CUDA_ERROR", "NVML_ERROR", "Error: "))]
    devices = _devices(line for line in lines if line.startswith("Device "))
    return NvbandwidthReport(rows.get(TO_DEVICE, {}), rows.get(FROM_DEVICE, {}), devices, " ".join(errors)[:300])


def _devices(lines: Iterable[str]) -> dict[int, NvbandwidthGpu]:
    found = {}
    for line in lines:
        match = _DEVICE.fullmatch(line[:500])
        if match:
            found[int(match[1])] = NvbandwidthGpu(match[2], normal_address(match[3]) if match[3] else "")
    return found
