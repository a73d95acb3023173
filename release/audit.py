"""``make audit``: asks OSV (osv.dev) which vulnerabilities are known in the Python packages that Muster runs with.

Ends with 0 if none is known, 2 if one is, 3 if not every package was answered for, 64 for wrong arguments. pip-audit
asks. It ends with 0 where a service does not know a package, and with 1 both for a vulnerability and for a service that
cannot be reached. So its answer is read here, not its exit status.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[1]
LOCKED = ROOT / "requirements/command-line.txt"  # has all packages of the image, too
OSV = "https://api.osv.dev/v1/query"
EXIT_VULNERABLE, EXIT_UNKNOWN = 2, 3
LIMIT_S = 600


class Vulnerability(msgspec.Struct, frozen=True):
    id: str
    fix_versions: tuple[str, ...] = ()
    description: str = ""


class Package(msgspec.Struct, frozen=True):
    """vulns: None if the service gave no answer, for the reason ``skip_reason``."""

    name: str
    version: str = ""
    vulns: tuple[Vulnerability, ...] | None = None
    skip_reason: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What pip-audit writes with ``--format json``."""

    dependencies: tuple[Package, ...]


def ask(requirements: Path, url: str) -> Answer | str:
    """A text says why there is no answer."""
    with tempfile.TemporaryDirectory(prefix="muster-audit-") as folder:
        out = Path(folder) / "answer.json"
        options = ["--require-hashes", "--disable-pip", "--progress-spinner", "off", "--cache-dir", folder]
        service = ["--vulnerability-service", "osv", "--osv-url", url]
        command = [sys.executable, "-m", "pip_audit", *options, *service, "--format", "json", "--output", str(out)]
        try:
            done = subprocess.run(
                [*command, "--requirement", str(requirements)],
                capture_output=True, text=True, timeout=LIMIT_S, check=False,
            )  # fmt: skip
            return msgspec.json.decode(out.read_bytes(), type=Answer)
        except subprocess.TimeoutExpired:
            return f"no answer within {LIMIT_S} s"
        except OSError:
            return (done.stderr.strip().splitlines() or [f"pip-audit ended with {done.returncode}"])[-1]
        except msgspec.MsgspecError as error:
            return f"pip-audit's answer: {error}"


def report(answer: Answer | str, url: str) -> int:
    """Print it. Returns the exit status."""
    if isinstance(answer, str) or not answer.dependencies:
        why = answer if isinstance(answer, str) else "it was asked for no package"
        print(f"muster: {url}: {why}: nothing is known about any package", file=sys.stderr)
        return EXIT_UNKNOWN
    found = [(each, vulnerability) for each in answer.dependencies for vulnerability in each.vulns or ()]
    for package, vulnerability in found:
        fixed = f"fixed in {', '.join(vulnerability.fix_versions)}" if vulnerability.fix_versions else "no fix is known"
        print(f"{package.name} {package.version}: {vulnerability.id}: {fixed}: {vulnerability.description[:200]}")
    unanswered = [each for each in answer.dependencies if each.vulns is None]
    for package in unanswered:
        print(f"muster: {package.name}: no answer: {package.skip_reason}", file=sys.stderr)
    print(f"{len(answer.dependencies) - len(unanswered)} packages, {len(found)} known vulnerabilities")
    if found:
        return EXIT_VULNERABLE
    return EXIT_UNKNOWN if unanswered else 0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make audit", description=__doc__, exit_on_error=False)
    parser.add_argument("--osv-url", default=OSV, metavar="URL", help=f"service that answers as {OSV}")
    parser.add_argument("--requirement", default=LOCKED, type=Path, metavar="FILE", help="default: %(default)s")
    try:
        given = parser.parse_args(arguments)
    except (argparse.ArgumentError, SystemExit) as error:
        if isinstance(error, SystemExit) and not error.code:
            return 0
        print(f"muster: {error}", file=sys.stderr)
        return 64
    return report(ask(given.requirement, given.osv_url), given.osv_url)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
