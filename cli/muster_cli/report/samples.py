"""`muster check --sample FILE`: judges the recorded output of a tool. People report a wrong verdict this way."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

from muster_checks.base.declaration import Check, NodeView, Parameters
from muster_checks.base.execution import run_recorded
from muster_checks.base.vocabulary import Result, Verdict
from muster_cli.cluster.local_checks import run_check
from muster_cli.report.sample_formats import BARE_MESSAGES, KERNEL_LOG, SAMPLE_FORMATS, SampleFormat, recognise

SAMPLE_LIMIT_BYTES = 64 << 20
NOT_A_SAMPLE = "NotASample"


class BadSample(Exception):
    """The file cannot be read, or is too large."""


@dataclass(frozen=True)
class SampleReport:
    """``heading``: lines that name the recognised format, or every format that can be recognised."""

    heading: list[str]
    results: list[Result]


def judge_sample(
    file: Path, checks: Sequence[Check], parameters: Mapping[str, Parameters], *, named: bool
) -> SampleReport:
    """The results of all ``checks`` that read the format of ``file``. Raises BadSample.

    named: the user named the checks, so each of them must have a result
    """
    text = _read(file)
    form = recognise(text)
    results: list[Result] = []
    if form is None:
        for check in checks:
            # a check of an installed package recognises its own format
            if not _formats_of(check) and (result := run_recorded(check, text, parameters[check.name])) is not None:
                form = SampleFormat(f"recorded output that the check {check.name} reads", (check.name,), bool)
                results.append(result)
    if form is None and BARE_MESSAGES.matches(text):
        for check in checks:
            if check.name == KERNEL_LOG and (result := _judge_kernel_log(check, text, parameters[check.name])).findings:
                form = BARE_MESSAGES
                results.append(result)
    elif form is not None and not results:
        for check in checks:
            if check.name in form.checks and (result := _judge(check, text, parameters[check.name])) is not None:
                results.append(result)
    judged = {result.check for result in results}
    if named:
        results += [_unknown(check.name, _why_not(file, form, check)) for check in checks if check.name not in judged]
    elif not results:
        results.append(_unknown("sample", f"{file}: {_unused(form)}"))
    return SampleReport(_heading(file, form, named=named), results)


def _formats_of(check: Check) -> list[SampleFormat]:
    return [each for each in SAMPLE_FORMATS if check.name in each.checks]


def _judge(check: Check, text: bytes, parameters: Parameters) -> Result | None:
    if check.name == KERNEL_LOG:
        return _judge_kernel_log(check, text, parameters)
    return run_recorded(check, text, parameters)


def _judge_kernel_log(check: Check, text: bytes, parameters: Parameters) -> Result:
    values = parameters.model_dump(exclude_unset=True) | {"source": "file", "complete": True}
    with NamedTemporaryFile(prefix="muster-sample-") as copy:  # `--sample <(dmesg)` can be read only once
        copy.write(text)
        copy.flush()
        values["path"] = Path(copy.name)
        return asyncio.run(run_check(check, NodeView(), check.parameters.model_validate(values)))


def _heading(file: Path, form: SampleFormat | None, *, named: bool) -> list[str]:
    if form is not None:
        return [f"{file}: recognised as {form.name}"]
    if named:  # each result lists the formats of its check
        return []
    known = [*SAMPLE_FORMATS, BARE_MESSAGES]
    width = max(len(each.name) for each in known)
    rows = [f"  {each.name:<{width}}  {', '.join(each.checks)}" for each in known]
    return [f"{file}: format not recognised; --sample recognises these formats, for these checks:", *rows]


def _why_not(file: Path, form: SampleFormat | None, check: Check) -> str:
    mine = "; ".join(each.name for each in _formats_of(check))
    own = "its own format" if check.recorded is not None else "no recorded output"
    reads = f"{check.name} reads: {mine}" if mine else f"{check.name} reads {own}"
    if form is None:
        return f"{file}: format not recognised; {reads}"
    if check.name in form.checks:
        return f"{file}: recognised as {form.name}, but {check.name} finds nothing to judge in it"
    return f"{file}: recognised as {form.name}; {reads}"


def _unused(form: SampleFormat | None) -> str:
    if form is None:
        return "format not recognised"
    return f"recognised as {form.name}, but no check ({', '.join(form.checks)}) finds anything to judge in it"


def _unknown(check: str, message: str) -> Result:
    return Result(check=check, verdict=Verdict.UNKNOWN, reason=NOT_A_SAMPLE, message=message)


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            text = opened.read(SAMPLE_LIMIT_BYTES + 1)
    except FileNotFoundError:
        raise BadSample(f"--sample {file}: no such file") from None
    except OSError as error:
        raise BadSample(f"--sample {file}: {error.strerror or error}") from None
    if len(text) > SAMPLE_LIMIT_BYTES:
        raise BadSample(f"--sample {file}: larger than {SAMPLE_LIMIT_BYTES >> 20} MiB")
    return text
