"""Parses `dcgmi diag -j` of DCGM 1.7 to 4.

Source: github.com/NVIDIA/DCGM, dcgmi/Diag.cpp and testing/python3/dcgm_diag_schema.json; the oldest layout: the
output of nvvs in its user guide. Three layouts of one tree (test_categories, tests, results):

- DCGM 4, "DCGM Diagnostic": each result has entity_group and entity_id; test_summary has the test's status and the
  errors without an entity; all checks of the installation are one test, ``software``, whose errors begin with the name
  of the check
- DCGM 2 and 3, "DCGM GPU Diagnostic": each result has gpu_id; each check of the installation has one result, without a
  gpu_id or with that of the last error; errors are objects whose text is under "warning" or "warnings"
- earlier: gpu_ids "0,1,2", status in capitals, errors as plain text
"""

import re
from collections.abc import Iterator
from enum import StrEnum

import msgspec

from muster_checks.base.bounded_read import Unreadable, integer, json_document

ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
GPU = "GPU"
_ID_LIMIT = 1024  # DCGM writes 2^32 - 1 for "no GPU"
_NAMED = re.compile(r"\bGPU (?:id )?(\d{1,3})\b", re.I)


class DcgmStatus(StrEnum):
    PASS = "pass"  # noqa: S105 - a status, not a password
    FAIL = "fail"
    WARN = "warn"
    SKIP = "skip"
    UNREADABLE = ""


class DiagnosisError(msgspec.Struct, frozen=True):
    """``code``: from dcgm_errors.h; None if there is only a text. ``gpu``: the GPU in the text, if it names exactly
    one."""

    code: int | None
    text: str

    @property
    def gpu(self) -> int | None:
        named = {int(found) for found in _NAMED.findall(self.text)}
        return named.pop() if len(named) == 1 else None


class DcgmEntity(msgspec.Struct, frozen=True):
    """``GPU`` 5, ``CPU`` 0, …"""

    group: str
    number: int


class DcgmTestResult(msgspec.Struct, frozen=True):
    """One result of one test. ``entities``: the tested devices; empty if the document does not name them."""

    test: str
    status: DcgmStatus
    entities: tuple[DcgmEntity, ...] = ()
    errors: tuple[DiagnosisError, ...] = ()
    info: tuple[str, ...] = ()


class Diagnosis(msgspec.Struct, frozen=True):
    """``runtime_error``: the tool's error message if there are no results."""

    outcomes: tuple[DcgmTestResult, ...]
    runtime_error: str = ""


def is_diagnosis(text: bytes) -> bool:
    return any(f'"{root}"'.encode() in text[: 1 << 20] for root in ROOTS)


def parse(text: bytes) -> Diagnosis:
    """Raises Unreadable."""
    document = json_document(text)
    found = [document[root] for root in ROOTS if isinstance(document, dict) and root in document]
    root = found[0] if found else None
    if not isinstance(root, dict):
        raise Unreadable(f'expected an object "{ROOTS[0]}" or "{ROOTS[1]}", as dcgmi diag -j prints')
    runtime_error = root.get("runtime_error")
    diagnosis = Diagnosis(tuple(_outcomes(root)), runtime_error[:500] if isinstance(runtime_error, str) else "")
    if not diagnosis.outcomes and not diagnosis.runtime_error:
        raise Unreadable("dcgmi diag: the document contains no test and no error")
    return diagnosis


def _outcomes(root: dict[str, object]) -> Iterator[DcgmTestResult]:
    for category in _objects(root.get("test_categories")):
        for test in _objects(category.get("tests")):
            name = test.get("name") or test.get("test_name")
            if not isinstance(name, str):
                continue
            outcomes = [_outcome(name, result) for result in _objects(test.get("results"))]
            summary = test.get("test_summary")
            if isinstance(summary, dict):
                whole = _outcome(name, summary)
                # a summary that only repeats the results of its entities is left out
                if whole.errors or not any(outcome.status is whole.status for outcome in outcomes):
                    outcomes.append(whole)
            yield from outcomes


def _outcome(test: str, result: dict[str, object]) -> DcgmTestResult:
    value = result.get("status")
    status = value.strip().casefold() if isinstance(value, str) else ""
    return DcgmTestResult(
        test,
        DcgmStatus(status)
        if status in list(DcgmStatus)
        else DcgmStatus.SKIP
        if status in ("skipped", "not run")
        else DcgmStatus.UNREADABLE,
        _entities(result),
        tuple(_errors(result)),
        tuple(_texts(result.get("info"))),
    )


def _entities(result: dict[str, object]) -> tuple[DcgmEntity, ...]:
    group = result.get("entity_group")
    if isinstance(group, str):
        number = _number(result.get("entity_id"))
        return (DcgmEntity(group, number),) if number is not None else ()
    listed = result.get("gpu_ids", result.get("gpu_id"))
    numbers = [_number(part) for part in (listed.split(",") if isinstance(listed, str) else [listed])]
    return tuple(DcgmEntity(GPU, number) for number in numbers if number is not None)


def _number(value: object) -> int | None:
    number = integer(value)
    return number if number is not None and 0 <= number < _ID_LIMIT else None


def _errors(result: dict[str, object]) -> Iterator[DiagnosisError]:
    warnings = result.get("warnings", result.get("warning"))
    for entry in warnings if isinstance(warnings, list) else [warnings]:
        if isinstance(entry, dict):
            text = entry.get("warning", entry.get("warnings"))
            yield DiagnosisError(_code(entry), text.strip()[:1000] if isinstance(text, str) else "")
        elif isinstance(entry, str) and entry.strip():
            yield DiagnosisError(_code(result), entry.strip()[:1000])


def _code(entry: dict[str, object]) -> int | None:
    code = integer(entry.get("error_id"))
    return code if code is not None and code > 0 else None


def _texts(value: object) -> Iterator[str]:
    for entry in value if isinstance(value, list) else [value]:
        if isinstance(entry, str):
            yield entry[:2000]


def _objects(value: object) -> list[dict[str, object]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
