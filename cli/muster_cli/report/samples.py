"""`muster check --sample FILE`: judges what a tool printed elsewhere, which is how people report a wrong verdict."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile

from muster_checks.base.declaration import Check, NodeView, Parameters
from muster_checks.base.execution import run_recorded
from muster_checks.base.vocabulary import Result, Verdict
from muster_checks.dmesg.sources.text_formats import has_kernel_line
from muster_cli.cluster.local_checks import run_check

SAMPLE_LIMIT_BYTES = 64 << 20


class BadSample(Exception):
    """The file cannot be used, or is of no kind that is known."""


def judge_sample(
    file: Path, checks: Sequence[Check], parameters: Mapping[str, Parameters], *, named: bool
) -> list[Result]:
    """The results of all ``checks`` that read such a file. Raises BadSample.

    named: the checks were asked for by name, so each must say something
    """
    text = _read(file)
    results: list[Result] = []
    for check in checks:
        result = run_recorded(check, text, parameters[check.name])
        if result is None and named and check.stream is None:
            result = Result(
                check=check.name,
                verdict=Verdict.UNKNOWN,
                reason="NotASample",
                message=f"{file}: not what {check.name} reads; see muster checks",
            )
        if result is not None:
            results.append(result)
    for check in checks:
        # a kernel log has no form of its own: what nothing else knows is read as one
        if check.stream is not None and "complete" in check.parameters.model_fields and (named or not results):
            results.append(_kernel_log(check, file, text, parameters[check.name]))
    if not results:
        raise BadSample(f"--sample {file}: no check reads such a file")
    return results


def _kernel_log(check: Check, file: Path, text: bytes, parameters: Parameters) -> Result:
    values = parameters.model_dump(exclude_unset=True) | {"source": "file", "complete": True}
    with NamedTemporaryFile(prefix="muster-sample-") as copy:  # `--sample <(dmesg)` can be read but once
        copy.write(text)
        copy.flush()
        values["path"] = Path(copy.name)
        result = asyncio.run(run_check(check, NodeView(), check.parameters.model_validate(values)))
    if result.findings or has_kernel_line(text):
        return result
    return Result(
        check=check.name,
        verdict=Verdict.UNKNOWN,
        reason="NotASample",
        message=f"{file}: no line of it is a kernel log's, and no check knows what else it may be",
        started=result.started,
        duration_s=result.duration_s,
    )


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
