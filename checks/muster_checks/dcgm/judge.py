"""Turns the results of a diagnosis into findings for each GPU. Pure.

Every result of every test counts. A component without an error gets one PASS with the number of its tests.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from muster_checks.base.execution import CannotTell
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict, severity
from muster_checks.dcgm.errors import ErrorKind, ErrorMeaning, find_meaning
from muster_checks.dcgm.parse import GPU, DcgmEntity, DcgmStatus, DcgmTestResult, Diagnosis, DiagnosisError

HOST = "host"
# from mild to severe: a reset does not resolve what a person must examine
_ORDER = (FaultClass.NONE, FaultClass.RESET, FaultClass.REBOOT, FaultClass.CONTACT)
# DCGM 4 puts all checks of the installation in this test; the error begins with the check's earlier name
_INSTALLATION = "software"
_CHECK_NAME = re.compile(r"([A-Z][A-Za-z/ ]{2,39}): ")


class _EntityErrors(msgspec.Struct, frozen=True):
    """One result or error of a test for one component."""

    component: str
    test: str
    verdict: Verdict
    fault_class: FaultClass = FaultClass.NONE
    text: str = ""

    @property
    def reason(self) -> str:
        return "Dcgm" + "".join(word.capitalize() for word in re.findall(r"[A-Za-z0-9]+", self.test))[:80]


def judge(diagnosis: Diagnosis, addresses: Mapping[int, str]) -> list[Finding]:
    """addresses: PCI addresses by DCGM's GPU numbers, as far as they are known.

    Raises CannotTell if there are no results or every test was skipped.
    """
    if diagnosis.runtime_error:
        raise CannotTell(f"dcgmi diag: {diagnosis.runtime_error}", "DiagNotRun")
    errors = [one for outcome in diagnosis.outcomes for one in _group_errors(outcome, addresses)]
    if not errors:
        skipped = ", ".join(sorted({outcome.test for outcome in diagnosis.outcomes}))
        raise CannotTell(f"dcgmi diag: every test was skipped ({skipped})", "AllSkipped")
    bad: dict[tuple[str, str], list[_EntityErrors]] = {}
    passed: dict[str, list[str]] = {}
    for one in errors:
        if one.verdict is Verdict.PASS:
            passed.setdefault(one.component, []).append(one.test)
        else:
            bad.setdefault((one.component, one.reason), []).append(one)
    blamed = {component for component, _ in bad}
    sound = [_pass(component, tests) for component, tests in passed.items() if component not in blamed]
    return [_merge(everything) for everything in bad.values()] + sound + _judge_untested(diagnosis, addresses, errors)


def _judge_untested(
    diagnosis: Diagnosis, addresses: Mapping[int, str], errors: Iterable[_EntityErrors]
) -> list[Finding]:
    """SKIP for each test that did not run on a component, so that its earlier findings stay open."""
    everything = list(errors)
    known = {HOST, *(f"gpu/{address}" for address in addresses.values()), *(one.component for one in everything)}
    reported = {(one.component, one.reason) for one in everything}
    skipped = {
        _EntityErrors(component, outcome.test, Verdict.SKIP)
        for outcome in diagnosis.outcomes
        if outcome.status is DcgmStatus.SKIP
        for component in [_component(entity, addresses) for entity in outcome.entities] or sorted(known)
    }
    return [
        Finding(component=one.component, verdict=Verdict.SKIP, reason=one.reason, message=f"{one.test} did not run")
        for one in sorted(skipped, key=lambda one: (one.component, one.test))
        if (one.component, one.reason) not in reported
    ]


def _group_errors(outcome: DcgmTestResult, addresses: Mapping[int, str]) -> Iterator[_EntityErrors]:
    if outcome.status is DcgmStatus.SKIP:
        return
    components = [_component(entity, addresses) for entity in outcome.entities]
    if outcome.status in (DcgmStatus.PASS, DcgmStatus.UNREADABLE):
        verdict, text = (Verdict.PASS, "") if outcome.status is DcgmStatus.PASS else (Verdict.UNKNOWN, "no status")
        yield from (_EntityErrors(component, outcome.test, verdict, text=text) for component in components or [HOST])
        return
    blamed: set[str] = set()
    for error in outcome.errors:
        # the error belongs to the GPU that it names if the result has several or no entities, else to all entities
        named = (
            [DcgmEntity(GPU, error.gpu)] if error.gpu is not None and len(outcome.entities) != 1 else outcome.entities
        )
        for component in [_component(entity, addresses) for entity in named] or [HOST]:
            blamed.add(component)
            yield _of_error(outcome, component, error)
    if not blamed:
        for component in components or [HOST]:
            yield _of_error(outcome, component, DiagnosisError(None, ""))


def _of_error(outcome: DcgmTestResult, component: str, error: DiagnosisError) -> _EntityErrors:
    meaning = find_meaning(error.code)
    test = outcome.test
    if test.casefold() == _INSTALLATION and (check := _CHECK_NAME.match(error.text)) is not None:
        test = check[1]
    verdict = Verdict.WARN if outcome.status is DcgmStatus.WARN else meaning.kind.verdict
    known = verdict is Verdict.FAIL or (verdict is Verdict.WARN and error.code is not None)
    fault_class = meaning.fault_class if known else FaultClass.NONE
    return _EntityErrors(component, test, verdict, fault_class, _text(error, meaning))


def _text(error: DiagnosisError, meaning: ErrorMeaning) -> str:
    why = f"; {meaning.why}" if meaning.kind is ErrorKind.UNMEASURED else ""
    return " ".join(part for part in (error.text, f"({meaning.name}{why})" if meaning.name else "") if part)


def _component(entity: DcgmEntity, addresses: Mapping[int, str]) -> str:
    if entity.group.casefold() != GPU.casefold():
        return HOST  # for example, the CPUs of a Grace node
    return f"gpu/{addresses.get(entity.number, entity.number)}"


def _merge(errors: Iterable[_EntityErrors]) -> Finding:
    everything = list(errors)
    worst = max(everything, key=lambda one: severity(one.verdict))
    deciding = [one for one in everything if one.verdict is worst.verdict]
    texts = "; ".join(dict.fromkeys(one.text for one in (*deciding, *everything) if one.text))
    word = {Verdict.FAIL: "failed", Verdict.WARN: "warns"}.get(worst.verdict, "could not be measured")
    return Finding(
        component=worst.component,
        verdict=worst.verdict,
        reason=worst.reason,
        message=f"{worst.test} {word}: {texts or 'dcgmi gives no reason; run dcgmi diag -v'}",
        fault_class=max((one.fault_class for one in deciding), key=_ORDER.index),
    )


def _pass(component: str, tests: list[str]) -> Finding:
    names = list(dict.fromkeys(tests))
    return Finding(
        component=component,
        verdict=Verdict.PASS,
        reason="Passed",
        message=f"passed: {', '.join(names)}",
        measurements=(Measurement("tests_passed", float(len(names)), ""),),
    )
