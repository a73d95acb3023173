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


class Says(StrEnum):
    FAULT = "fault"
    NOTICE = "notice"
    UNMEASURED = "unmeasured"

    @property
    def verdict(self) -> Verdict:
        """Of a failed test in which the code is all there is."""
        return {Says.FAULT: Verdict.FAIL, Says.NOTICE: Verdict.WARN, Says.UNMEASURED: Verdict.UNKNOWN}[self]


class Meaning(msgspec.Struct, frozen=True):
    """``name``: ``DCGM_FR_…``."""

    name: str
    fault_class: FaultClass
    says: Says
    why: str = ""


NO_CODE = Meaning("", FaultClass.CONTACT, Says.FAULT)


@cache
def meanings() -> dict[int, Meaning]:
    """By code."""
    text = files("muster_checks.dcgm").joinpath("errors.csv").read_text("utf-8")
    return {
        int(row["code"]): Meaning(f"DCGM_FR_{row['name']}", CLASSES[row["action"]], Says(row["says"]), row["why"])
        for row in csv.DictReader(text.splitlines())
    }


def meaning_of(code: int | None) -> Meaning:
    """A code that is newer than the table, or none at all, is a fault that a person has to look at."""
    if code is None:
        return NO_CODE
    return meanings().get(code) or Meaning(f"DCGM error {code}", FaultClass.CONTACT, Says.FAULT)
