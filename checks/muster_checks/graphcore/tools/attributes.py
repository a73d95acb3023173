"""The attributes of IPUs: `gc-info -d ID --device-info` and gc-inventory, ``key: value`` lines.

Source: docs.graphcore.ai, command-line-tools 1.2.1 and latest, "Device attributes"; gc-inventory of 1.0.45 uses older
names. Sensors are N/A unless the application on the IPU reads them (GCDA_MONITOR=1).
"""

import re

import msgspec

from muster_checks.base.bounded_read import Unreadable, number
from muster_checks.graphcore import component_of
from muster_checks.graphcore.tools.words import lines, name, word

_LINE = re.compile(r'\s*"?([A-Za-z][A-Za-z0-9 ()_-]{0,60})"?:\s?(.*)')
_NOW_CALLED = {"serial number": "board serial number", "type": "board type", "ipu": "board ipu index"}
DEVICES_LIMIT = 1024  # sixteen times the largest partition; no machine prints more
_LETTERS = re.compile(r"[A-Za-z]{3,}")


class IpuAttributes(msgspec.Struct, frozen=True, kw_only=True):
    """The attributes of one IPU; None or empty if not reported.

    error_state:  "no errors", or what is wrong; None if the software (before 2022) has no such attribute, empty if it
                  could not be read
    link_…:       the IPU's link to its host or gateway, GT/s and lanes
    …errors:      corrected link errors, since an unknown time or in this session; only their rise is meaningful
    parity_…:     the driver's own limit of parity errors and the period it counts them in; their count is not public.
                  ``parity_initialised`` is 0 on a healthy IPU that has not been used yet
    """

    component: str
    board: str = ""
    error_state: str | None = None
    link_gt_per_s: float | None = None
    link_width: float | None = None
    link_errors: float | None = None
    link_errors_session: float | None = None
    host_link_errors: float | None = None
    parity_threshold: float | None = None
    parity_interval_s: float | None = None
    parity_initialised: float | None = None
    die_temp_c: float | None = None
    board_temp_c: float | None = None
    ipu_power_w: float | None = None
    board_power_w: float | None = None
    clock_mhz: float | None = None


def parse(text: bytes) -> list[IpuAttributes]:
    """One entry per device in ``text``. Raises Unreadable."""
    blocks: list[dict[str, str]] = []
    for line in lines(text):
        if line.strip() in ("Device Info:", "Device:"):
            blocks.append({})
        elif blocks and (found := _LINE.fullmatch(line)):
            key = found[1].strip().lower()
            blocks[-1].setdefault(_NOW_CALLED.get(key, key), found[2].rstrip(", ").strip('"'))
    if len(blocks) > DEVICES_LIMIT:
        raise Unreadable(f"{len(blocks)} devices: expected at most {DEVICES_LIMIT}")
    devices = [_attributes(block) for block in blocks if name(block.get("id")).isdigit()]
    if not devices:
        raise Unreadable("no IPU attributes: expected 'Device Info:' or 'Device:' followed by an id")
    return devices


def _attributes(block: dict[str, str]) -> IpuAttributes:
    def value(key: str) -> float | None:
        # none of these values is ever negative
        found = number(word(block.get(key)))
        return found if found is not None and found >= 0 else None

    return IpuAttributes(
        component=component_of(
            name(block.get("ipuof host")), name(block.get("board ipu index")), name(block.get("pci id")), block["id"]
        ),
        board=name(block.get("board type")),
        error_state=_error_state(block.get("ipu error state")),
        link_gt_per_s=value("link speed"),
        link_width=value("link width"),
        link_errors=value("link correctable error count"),
        link_errors_session=value("link correctable error count (session)"),
        host_link_errors=value("host link correctable error count"),
        parity_threshold=value("parity error count threshold"),
        parity_interval_s=value("parity error threshold interval"),
        parity_initialised=value("parity initialised"),
        die_temp_c=value("average die temp"),
        board_temp_c=value("average board temp"),
        ipu_power_w=value("ipu power"),
        board_power_w=value("total board power"),
        clock_mhz=value("clock"),
    )


def _error_state(text: str | None) -> str | None:
    if text is None:
        return None
    value = word(text)
    return value if _LETTERS.search(value) else ""
