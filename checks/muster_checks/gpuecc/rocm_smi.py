"""Judges the recorded output of `rocm-smi --showrasinfo` (AMD), with one table for each GPU.

The format (python_smi_tools/rocm_smi.py of rocm_smi_lib)::

    GPU[0]:         RAS INFO
             Block       Status    uncorrectable err  correctable err
               UMC      ENABLED                    0                0

The source writes the corrected errors first, under the heading of the uncorrectable ones. So the table does not say
which of the two it counts: errors only warn, and the kernel log (check dmesg) says what they are.
"""

import re

from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict

TEXT_LIMIT_BYTES = 1 << 20
_GPU = re.compile(r"GPU\[([0-9]{1,3})\]: \tRAS INFO\s*")
_ROW = re.compile(r"\s*([A-Z][A-Z0-9_]{1,31})\s+([A-Z][A-Z ]{1,31}?)(?:\s+([0-9]{1,18})\s+([0-9]{1,18}))?\s*")


def judge_rocm_smi(text: bytes) -> list[Finding] | None:
    """A finding for each GPU that counts errors; None for another format."""
    counts: dict[int, list[tuple[str, int]]] = {}
    blocks: list[tuple[str, int]] = []
    for line in text[:TEXT_LIMIT_BYTES].decode("utf-8", "replace").splitlines():
        if gpu := _GPU.fullmatch(line):
            blocks = counts.setdefault(int(gpu[1]), [])
        elif (row := _ROW.fullmatch(line)) and row[3]:
            blocks.append((row[1], int(row[3]) + int(row[4])))
    return [_judge(gpu, blocks) for gpu, blocks in counts.items() if blocks] or None


def _judge(gpu: int, blocks: list[tuple[str, int]]) -> Finding:
    bad = [f"{block} {errors}" for block, errors in blocks if errors]
    measured = (Measurement("errors", sum(errors for _, errors in blocks)),)
    if not bad:
        message = f"no error in {len(blocks)} blocks since the driver was loaded"
        return _finding(gpu, Verdict.PASS, "Ok", message, measured)
    message = f"ECC errors, corrected or not: {', '.join(bad[:6])}: see the check dmesg"
    return _finding(gpu, Verdict.WARN, "EccErrors", message, measured, FaultClass.CONTACT)


def _finding(
    gpu: int,
    verdict: Verdict,
    reason: str,
    message: str,
    measured: tuple[Measurement, ...],
    fault_class: FaultClass = FaultClass.NONE,
) -> Finding:
    return Finding(
        component=f"gpu/index-{gpu}",
        verdict=verdict,
        reason=reason,
        message=message,
        fault_class=fault_class,
        measurements=measured,
    )
