"""Poplar runtime errors in the output of any program: the IPU, and the recovery action that Poplar requests.

    [Poplar][Load engine] recoverable_runtime_error: [Recovery action: IPU_RESET] CIUERRVR.IPUSOFTERR error on IPU 0 …

Source: a test of graphcore/tensorflow (the text) and docs.graphcore.ai, poplar-api, "Exceptions" (the actions).
CIUERRVR is a register of the IPU; it holds the first error.
"""

import re

import msgspec

from muster_checks.base.vocabulary import FaultClass, Finding, Verdict

MARK = b"recoverable_runtime_error:"  # in every error
_ERROR = re.compile(
    r"recoverable_runtime_error:\s{0,4}\[Recovery action: ([A-Z_]{1,40})\]"
    r"(?:\s{0,4}CIUERRVR\.(\w{1,40}) error on IPU (\d{1,9}))?",
    re.ASCII,
)
# Poplar's recovery action (the same page; LINK_RESET: graphcore/tensorflow) -> verdict, class, advice
_ACTIONS = {
    "IPU_RESET": (Verdict.WARN, FaultClass.RESTART_APP, "restart the program, which resets the IPU"),
    "LINK_RESET": (Verdict.FAIL, FaultClass.QUARANTINE, "retrain the IPU-Links: run gc-links on the idle machine"),
    "PARTITION_RESET": (Verdict.FAIL, FaultClass.QUARANTINE, "reset the V-IPU partition, which retrains its links"),
    "FULL_RESET": (Verdict.FAIL, FaultClass.QUARANTINE, "power-cycle the IPU-Machine"),
}


class PoplarError(msgspec.Struct, frozen=True):
    """``first_error``: name in CIUERRVR, e.g. ``IPUSOFTERR``; ``device_id``: of the IPU; both empty if not printed."""

    action: str
    first_error: str
    device_id: str


def parse(text: bytes) -> list[PoplarError]:
    """The errors in ``text`` in order, without repeats; empty if there are none."""
    found = _ERROR.findall(text[: 1 << 20].decode("utf-8", "replace"))
    return [PoplarError(*error) for error in dict.fromkeys(found)]


def judge(error: PoplarError, component: str) -> Finding:
    verdict, fault_class, advice = _ACTIONS.get(
        error.action, (Verdict.WARN, FaultClass.NONE, "see Poplar's documentation of exceptions")
    )
    which = f"CIUERRVR.{error.first_error}" if error.first_error else "a runtime error"
    return Finding(
        component=component,
        verdict=verdict,
        reason=f"Ciuerrvr:{error.first_error}" if error.first_error else "PoplarError",
        message=f"Poplar reports {which}, recovery action {error.action}: {advice}",
        fault_class=fault_class,
    )
