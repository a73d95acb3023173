"""Parses NVIDIA's lines: Xid, SXid, and the codes within Xid 74, 144 to 150 and 154.

Text in, values out; the catalogue defines what a value means for the node. All publicly known forms are parsed (with
and without ``PCI:``, function, and text after the code); other text gives no value.
"""

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from muster_checks.dmesg.catalogue.match import compile_fixed
from muster_checks.dmesg.catalogue.types import LinkBitRow, Nvlink5Row

MATCHES_PER_RECORD = 16  # more Xid in one record than any driver prints
_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?"
_SHORT_ADDRESS = r"[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]"  # without its domain, as lspci shows one of domain 0
# "GPU-I:05" after the address names a MIG instance (NVIDIA driver; not seen on real hardware by us)
_REST = r"(?:,[ \t]*(?P<rest>.*)|[ \t]*$)"
XID = rf"^NVRM: Xid \((?:PCI:)?(?P<address>{_ADDRESS})(?: [\w:. -]{{1,60}})?\): (?P<code>\d{{1,5}}){_REST}"
SXID = rf"^(?:nvidia-nvswitch\d*: |NVRM: )?SXid \((?:PCI:)?(?P<address>{_ADDRESS})\): (?P<code>\d{{1,6}}){_REST}"
GPU_UUID = rf"^NVRM: GPU at (?:PCI:)?(?P<address>{_ADDRESS}): (?P<uuid>GPU-[0-9A-Za-z-]{{1,64}})"
# written into the system log by a job that resets GPUs
RESET_DONE = (
    r"^(?:(?:nvsentinel-gpu-reset|root)(?:\[\d+\])?: )?"
    r"GPU reset executed: (?P<uuid>\S{1,80}), success: true"
)

_SXID_REST = r"^(?:(?P<word>(?i:non-?fatal|fatal))\b,?\s*)?(?:Link (?P<link>-?\d+)\s*)?(?P<text>.*)"
_SXID_FOLLOWS = r"^(?:(?i:non-?fatal|fatal), )?(?:Link -?\d+ )?(?:Severity \d+ Engine instance|Data \{)|\bdata\[\d+\]"
_NVLINK5 = (
    r"^(?P<unit>[A-Za-z][\w/ ]*?)\s+(?P<word>(?i:link fatal|non-?fatal|fatal))\b.*?"
    r"\(\s*0x(?P<info>[0-9a-fA-F]{1,8})[\s,]+0x(?P<status>[0-9a-fA-F]{1,8})\b"
)
_NVLINK5_WORD = r"(?P<word>(?i:non-?fatal|fatal))"
_NVLINK5_UNIT = r"^(?P<unit>[A-Z][A-Z0-9_]{2,})\b"
_LINK_REGISTERS = (
    r"link (?P<link>-?\d{1,4})\s*\(\s*"
    + r",\s*".join(rf"0x(?P<r{number}>[0-9a-fA-F]{{1,16}})" for number in range(1, 8))
    + r"\s*\)"
)
_RECOVERY = r"to 0x[0-9a-fA-F]+ \((?P<action>[^)]{1,60})\)"
# The process that an Xid names. Its name is a user's choice of at most 15 characters and may contain ", ", so the field
# ends at the last comma within that length.
_PROCESS = (
    r"^pid=.{0,80}name=.{0,15}(?:, |$)",
    r"^pid=(?:'.{0,64}'|[^,']{0,20}), name=[^,]*(?:, |$)",
    r"^pid=(?:'.{0,64}'|[^,']{0,20})(?:, |$)",
)
_PLAIN_ADDRESS = rf"^(?:{_ADDRESS}|{_SHORT_ADDRESS})$"


@lru_cache(maxsize=512)
def decode_pci_address(text: str) -> str | None:
    """``0000:b3:00.0`` in lower case and with its function; None if ``text`` is not a PCI address."""
    text = text.strip(":. ")
    if len(text) > 24 or compile_fixed(_PLAIN_ADDRESS).search(text.encode("utf-8", "replace")) is None:
        return None
    domain, _, rest = (text if text.count(":") == 2 else f"0:{text}").lower().partition(":")
    # some lines pad the domain to eight digits; the kernel's own device name uses four if they are enough
    return f"{domain.lstrip('0'):0>4}:{rest if '.' in rest else rest + '.0'}"


class XidLine(msgspec.Struct, frozen=True):
    """``address``: as from :func:`decode_pci_address`; ``rest``: the text after the code and the process."""

    address: str
    code: int
    rest: str


def decode_xids(text: bytes) -> list[XidLine]:
    """The Xid in one record, in order."""
    found = compile_fixed(XID).find_all(text, MATCHES_PER_RECORD)
    return [
        XidLine(decode_pci_address(one["address"]) or "", int(one["code"]), _without_process(one.get("rest", "")))
        for one in found
    ]


def _without_process(rest: str) -> str:
    for pattern in _PROCESS:
        found = compile_fixed(f"(?P<process>{pattern})").search(rest.encode())
        if found is not None:
            return rest[len(found["process"]) :]
    return rest


class SxidLine(msgspec.Struct, frozen=True):
    """``fatal``: the severity that the line states (None: none); ``follows``: it continues the line before it."""

    address: str
    code: int
    fatal: bool | None
    link: int | None
    text: str
    follows: bool


def decode_sxids(text: bytes) -> list[SxidLine]:
    """The SXid in one record, in order."""
    lines = []
    for one in compile_fixed(SXID).find_all(text, MATCHES_PER_RECORD):
        rest = one.get("rest", "").encode()
        parts = compile_fixed(_SXID_REST).search(rest) or {}
        word, link = parts.get("word"), parts.get("link")
        lines.append(
            SxidLine(
                address=decode_pci_address(one["address"]) or "",
                code=int(one["code"]),
                fatal=None if word is None else not word.lower().startswith("non"),
                link=int(link) if link is not None and len(link) < 6 else None,
                text=parts.get("text", "").strip(),
                follows=compile_fixed(_SXID_FOLLOWS).search(rest) is not None,
            )
        )
    return lines


class Nvlink5Error(msgspec.Struct, frozen=True):
    """``unit``: as the line names it, empty if it names none; ``fatal``: the severity that the line states;
    ``action``: RESET_GPU, IGNORE, XID_154_EVAL, or empty if no row matches; ``investigate``: the row's second column.
    """

    unit: str
    fatal: bool
    action: str = ""
    investigate: str = ""


_SEVERITY = {"IGNORE": 0, "XID_154_EVAL": 1, "RESET_GPU": 2}


def decode_nvlink5(code: int, rest: str, rows: Sequence[Nvlink5Row]) -> Nvlink5Error:
    """Decode the text of Xid 144 to 150: ``<unit> <word> <XCn> <in> Link <n> (<intrInfo> <errorStatus> ...)``.

    The bits of intrInfo have one layout before R575 and another from R575 on, and the line does not name the driver. So
    the rows of the line's unit are tried in both layouts. If the matching rows have different actions, the severity
    that the line states decides: the worst action for Fatal, the mildest otherwise.
    """
    text = rest.encode()
    whole = compile_fixed(_NVLINK5).search(text)
    if whole is None:
        word = (compile_fixed(_NVLINK5_WORD).search(text) or {}).get("word", "")
        unit = (compile_fixed(_NVLINK5_UNIT).search(text) or {}).get("unit", "")
        return Nvlink5Error(unit, fatal=word.lower() == "fatal")
    units = tuple(part.strip().replace(" ", "_") for part in whole["unit"].split("/"))
    fatal = not whole["word"].lower().startswith("non")
    info, status = int(whole["info"], 16), int(whole["status"], 16)
    fitting = [row for row in rows if row.code == code and row.fits_unit(units) and row.fits_info(info)]
    # a status is one value, or several one-bit values at once
    chosen = [r for r in fitting if r.fits_status(status)] or [r for r in fitting if r.within_status(status)]
    if not chosen:
        return Nvlink5Error(units[0], fatal)
    pick = max if fatal else min
    row = pick(chosen, key=lambda r: _SEVERITY.get(r.action, 2))
    return Nvlink5Error(units[0], fatal, row.action, row.investigate)


class LinkError(msgspec.Struct, frozen=True):
    """Xid 74: the link's number and the rows of its bits. ``unlisted``: a bit is set that is not in NVIDIA's table."""

    link: int
    bits: tuple[LinkBitRow, ...]
    unlisted: bool


LISTED_REGISTERS = (1, 3, 4, 5)  # the others have no meaning on the products that the table covers


def decode_link_error(rest: str, table: Sequence[LinkBitRow]) -> LinkError | None:
    """Decode ``... link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)``; None if the seven registers are missing."""
    found = compile_fixed(_LINK_REGISTERS).search(rest.encode())
    if found is None:
        return None
    known = {(row.register, row.bit): row for row in table}
    bits: list[LinkBitRow] = []
    unlisted = False
    for register in LISTED_REGISTERS:
        value = int(found[f"r{register}"], 16)
        for bit in range(value.bit_length()):
            if value >> bit & 1:
                row = known.get((register, bit))
                if row is None:
                    unlisted = True
                else:
                    bits.append(row)
    return LinkError(int(found["link"]), tuple(bits), unlisted)


def decode_recovery_action(rest: str) -> str:
    """The new action of Xid 154 (``GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)``)."""
    return (compile_fixed(_RECOVERY).search(rest.encode()) or {}).get("action", "")


def decode_gpu_uuids(text: bytes) -> list[tuple[str, str]]:
    """(uuid, address) of ``NVRM: GPU at PCI:0000:9b:00: GPU-...``, which the driver prints before its first Xid."""
    found = compile_fixed(GPU_UUID).find_all(text, MATCHES_PER_RECORD)
    return [(one["uuid"], decode_pci_address(one["address"]) or "") for one in found]


def decode_resets(text: bytes) -> list[str]:
    """UUIDs of GPUs that were reset successfully."""
    return [one["uuid"] for one in compile_fixed(RESET_DONE).find_all(text, MATCHES_PER_RECORD)]
