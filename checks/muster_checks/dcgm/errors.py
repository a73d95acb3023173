"""DCGM's error codes and what each asks for: errors.csv.

code, name: enum dcgmError_enum, without its DCGM_FR_ (github.com/NVIDIA/DCGM, dcgmlib/dcgm_errors.h of DCGM 4.5)
action:     what NVSentinel does about it (github.com/NVIDIA/NVSentinel, Apache-2.0, its table of DCGM errors)
says:       ``fault``; ``notice`` where the action is NONE: a node that nobody is asked to repair is not taken away;
            also where the error is a setting that keeps no job from its work (persistence mode, a graphics process);
            ``unmeasured`` where the error is about the test and not about the hardware, with our reason in ``why``
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
        """Of a failed test in which the code is all there is."""
        return {ErrorKind.FAULT: Verdict.FAIL, ErrorKind.NOTICE: Verdict.WARN, ErrorKind.UNMEASURED: Verdict.UNKNOWN}[
            self
        ]


class ErrorMeaning(msgspec.Struct, frozen=True):
    """``name``: ``DCGM_FR_…``."""

    name: str
    fault_class: FaultClass
    says: ErrorKind
    why: str = ""


NO_CODE = ErrorMeaning("", FaultClass.CONTACT, ErrorKind.FAULT)


@cache
def load_meanings() -> dict[int, ErrorMeaning]:
    """By code."""
    text = files("muster_checks.dcgm").joinpath("errors.csv").read_text("utf-8")
    return {
        int(row["code"]): ErrorMeaning(
            f"DCGM_FR_{row['name']}", CLASSES[row["action"]], ErrorKind(row["says"]), row["why"]
        )
        for row in csv.DictReader(text.splitlines())
    }


def find_meaning(code: int | None) -> ErrorMeaning:
    """A code that is newer than the table, or none at all, is a fault that a person has to look at."""
    if code is None:
        return NO_CODE
    return load_meanings().get(code) or ErrorMeaning(f"DCGM error {code}", FaultClass.CONTACT, ErrorKind.FAULT)
