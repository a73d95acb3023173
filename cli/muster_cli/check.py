"""`muster check [NAME…]`: run checks here and now, without agent or cluster; or on a recorded kernel log."""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from pydantic import ValidationError

from muster_agent.ledger import Ledger
from muster_checks.declaration import Check, NodeView, Stream
from muster_checks.registry import registry
from muster_checks.vocabulary import Finding, Result, Verdict, shorten, worst
from muster_cli.__main__ import EXIT_USAGE
from muster_cli.report import exit_code
from muster_kube.settings import explain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="*", help="checks to run; default: all light ones")
    parser.add_argument("--json", action="store_true", help="a JSON list of results")
    parser.add_argument("--sample", type=Path, metavar="FILE", help="a recorded kernel log instead of this machine's")
    parser.add_argument("--root", type=Path, default=Path("/"), help="another root for /proc, /sys and /dev")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PARAMETER=VALUE",
        help="a parameter of the check, see muster checks",
    )


def main(arguments: argparse.Namespace) -> int:
    checks = registry()
    unknown = [name for name in arguments.names if name not in checks]
    if unknown:
        print(f"muster: no check {', '.join(unknown)}; there are: {', '.join(sorted(checks))}", file=sys.stderr)
        return EXIT_USAGE
    chosen = [checks[name] for name in arguments.names or sorted(checks)]
    if not arguments.names:
        chosen = [check for check in chosen if check.cost.value == "light"]
    parameters = dict(pair.partition("=")[::2] for pair in arguments.set)
    if arguments.sample is not None:
        if not arguments.sample.is_file():
            print(f"muster: --sample {arguments.sample}: no such file", file=sys.stderr)
            return EXIT_USAGE
        chosen = [check for check in chosen if check.stream is not None]
        parameters |= {"source": "file", "path": str(arguments.sample.resolve()), "complete": "true"}
    for check in chosen:
        try:
            check.parameters.model_validate(parameters)
        except ValidationError as error:
            print(
                "\n".join(f"muster: {line}" for line in explain(error, check.name, check.parameters)), file=sys.stderr
            )
            return EXIT_USAGE
    results = asyncio.run(run(chosen, NodeView(arguments.root), parameters))
    print(msgspec.json.format(msgspec.json.encode(results)).decode() if arguments.json else as_text(results))
    return exit_code(worst([result.verdict for result in results]))


async def run(checks: Sequence[Check], node: NodeView, parameters: dict[str, str]) -> list[Result]:
    return [await run_once(check, node, parameters) for check in checks]


async def run_once(check: Check, node: NodeView, parameters: dict[str, str]) -> Result:
    """One result; ``parameters`` have been validated."""
    model = check.parameters.model_validate(parameters)
    started, clock = time.time(), time.monotonic()
    findings: tuple[Finding, ...] = ()
    verdict, reason = Verdict.UNKNOWN, ""
    try:
        async with asyncio.timeout(check.timeout_s):
            if check.probe is not None:
                findings = tuple(await check.probe(node, model))
                verdict, reason = worst([finding.verdict for finding in findings]), ""
            elif check.stream is not None:
                findings, reason = await _drain(check.stream(node, model, None), check.name)
                verdict = Verdict.UNKNOWN if reason else worst([finding.verdict for finding in findings])
    except TimeoutError:
        reason = f"no end after {check.timeout_s:g} s"
    return Result(
        check=check.name,
        verdict=verdict,
        reason="SourceUnreadable" if reason else findings[0].reason if findings else "",
        message=shorten(reason or (findings[0].message if findings else "")),
        findings=findings,
        started=started,
        duration_s=time.monotonic() - clock,
    )


async def _drain(stream: Stream, name: str) -> tuple[tuple[Finding, ...], str]:
    """What a stream finds in all that is there now: (findings, why it cannot be read)."""
    ledger = Ledger(name, boot_id="")

    async def take() -> None:
        async for batch in stream.events():
            ledger.take(batch)

    reader = asyncio.create_task(take())
    try:
        await stream.drain()
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
    return ledger.published()[0], stream.health()


def as_text(results: Sequence[Result]) -> str:
    lines = []
    for result in results:
        lines.append(f"{result.check}: {result.verdict} {result.message}".rstrip())
        for finding in result.findings:
            asks = f" ({finding.fault_class})" if finding.fault_class else ""
            times = f" x{finding.count}" if finding.count > 1 else ""
            origin = " [written from user space]" if finding.origin == "user" else ""
            lines.append(
                f"  {finding.verdict} {finding.component} {finding.reason}{asks}{times}: {finding.message}{origin}"
            )
    return "\n".join(lines)
