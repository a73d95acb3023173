"""DCGM's error codes and the action that each requires: errors.csv.

code, name: enum dcgmError_enum, without the prefix DCGM_FR_ (github.com/NVIDIA/DCGM, dcgmlib/dcgm_errors.h of DCGM 4.5)
action:     NVSentinel's action (github.com/NVIDIA/NVSentinel, Apache-2.0, its table of DCGM errors)
kind:       ``fault``; ``notice`` if the action is NONE, because a node that needs no repair stays in service, or if the
            error is a setting that stops no job (persistence mode, a graphics process); ``unmeasured`` if the error
            concerns the test and not the hardware, with our reason in ``why``
"""

import csv
from enum import StrEnum
from functools import cache
from importlib.resources import files

import msgspec

from muster_checks.base.vocabulary import FaultClass, Verdict

CLASSES = {
    "NONE": FaultClass.NONE,
    "COMPONENT_RESET": FaultClass.RESET,
    "RESTART_VM": FaultClass.REBOOT,
    "RESTART_BM": FaultClass.REBOOT,
    "CONTACT_SUPPORT": FaultClass.CONTACT,
}


class ErrorKind(StrEnum):
    FAULT = "fault"
    NOTICE = "notice"
    UNMEASURED = "unmeasured"

    @property
    def verdict(self) -> Verdict:
        """Verdict of a failed test that reports only this code."""
        return {ErrorKind.FAULT: Verdict.FAIL, ErrorKind.NOTICE: Verdict.WARN, ErrorKind.UNMEASURED: Verdict.UNKNOWN}[
            self
        ]


class ErrorMeaning(msgspec.Struct, frozen=True):
    """``name``: ``DCGM_FR_…``."""

    name: str
    fault_class: FaultClass
    kind: ErrorKind
    why: str = ""


NO_CODE = ErrorMeaning("", FaultClass.CONTACT, ErrorKind.FAULT)


@cache
def load_meanings() -> dict[int, ErrorMeaning]:
    """By code."""
    text = files("muster_checks.dcgm").joinpath("errors.csv").read_text("utf-8")
    return {
        int(row["code"]): ErrorMeaning(
            f"DCGM_FR_{row['name']}", CLASSES[row["action"]], ErrorKind(row["kind"]), row["why"]
        )
        for row in csv.DictReader(text.splitlines())
    }


def find_meaning(code: int | None) -> ErrorMeaning:
    """A missing code, or one newer than the table, is a fault that a person must examine."""
    if code is None:
        return NO_CODE
    return load_meanings().get(code) or ErrorMeaning(f"DCGM error {code}", FaultClass.CONTACT, ErrorKind.FAULT)
