"""Runs `dcgmi diag`, and explains why it did not run."""

from collections.abc import Sequence

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.commands import Output
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere, ToolMissing
from muster_checks.base.threads import in_thread
from muster_checks.base.vocabulary import Finding, Verdict
from muster_checks.dcgm.discovery import read_addresses
from muster_checks.dcgm.judge import judge
from muster_checks.dcgm.parse import Diagnosis, parse
from muster_checks.dcgm.program import find_dcgmi
from muster_checks.hardware.pci import nvidia_gpus

PACKAGE = "datacenter-gpu-manager-4-core (of DCGM 3 and older: datacenter-gpu-manager)"
# NVIDIA's documentation: level 1 takes seconds, 2 about two minutes, 3 about fifteen, 4 longer; eight GPUs at level 4
# can take more than an hour
LEVEL_TIMEOUT_S = {1: 180.0, 2: 900.0, 3: 2400.0, 4: 7200.0}
STOP_S = 30.0
_TIMED_OUT = (124, 137)  # exit codes of timeout(1)
# texts that dcgmi prints (Command.cpp, Diag.cpp, dcgm_structs.h), the reason, and what to do
_TROUBLES = (
    (("already running",), "Busy", "another diagnostic is running; the next run of this check tries again"),
    (
        ("unable to establish a connection", "unable to connect", "connection invalid", "connection is not valid"),
        "NoHostEngine",
        "start the host engine (systemctl start nvidia-dcgm), or set checks.dcgm.parameters.host to its address",
    ),
    (
        ("nvvs binary was not found",),
        "ToolMissing",
        "install datacenter-gpu-manager-4-cuda12 (or -cuda13), which contains the diagnostic",
    ),
    (
        ("recommended driver", "driver is not", "nvml", "libnvidia-ml", "driver version"),
        "DriverMissing",
        "check that the NVIDIA driver is loaded (nvidia-smi)",
    ),
    (
        # of the dynamic loader (glibc, elf/dl-catch.c, dl-version.c, dl-minimal.c)
        ("error while loading shared libraries", "symbol lookup error", "relocation error", "not found (required by"),
        "ToolMissing",
        "dcgmi does not start: install it together with its libraries",
    ),
)


async def probe(node: NodeView, level: int, host: str = "") -> list[Finding]:
    """host: address of the host engine; empty: localhost."""
    gpus = await in_thread(node, nvidia_gpus, node)
    if not gpus:
        raise NotHere("no NVIDIA GPU on the PCI bus")
    if find_dcgmi(node) is None:
        raise ToolMissing("dcgmi", PACKAGE)
    where = ("--host", host) if host else ()
    addresses = await read_addresses(node, where)
    findings = judge(await diagnose(node, ("-r", str(level), "-j", *where), LEVEL_TIMEOUT_S[level]), addresses)
    return findings + _judge_untested(findings, [gpu.address for gpu in gpus if gpu.driver in ("", "nvidia")])


def _judge_untested(findings: Sequence[Finding], addresses: Sequence[str]) -> list[Finding]:
    """UNKNOWN for GPUs that the diagnostic omitted while it tested others by their addresses."""
    tested = {finding.component for finding in findings}
    components = [f"gpu/{address}" for address in addresses]
    if tested.isdisjoint(components):
        return []
    message = "dcgmi diag has no result for this GPU; see the check gpucount"
    return [
        Finding(component=component, verdict=Verdict.UNKNOWN, reason="NotTested", message=message)
        for component in components
        if component not in tested
    ]


async def diagnose(node: NodeView, arguments: tuple[str, ...], timeout_s: float) -> Diagnosis:
    """Run ``dcgmi diag``. Raises CannotTell."""
    # a killed dcgmi leaves the host engine working on the GPUs; after SIGTERM it stops the diagnostic first
    gently = ("timeout", "-k", f"{STOP_S:g}", f"{timeout_s:g}") if node.commands.which("timeout") else ()
    argv = (*gently, *(find_dcgmi(node) or ("dcgmi",)), "diag", *arguments)
    output = await node.commands.run(argv, timeout_s=timeout_s + 2 * STOP_S if gently else timeout_s)
    if output.timed_out or (gently and output.exit_code in _TIMED_OUT):
        raise CannotTell(f"dcgmi diag: no end within {timeout_s:g} s, stopped", "Timeout")
    if output.missing:
        raise ToolMissing("dcgmi", PACKAGE)
    try:
        # a failed test also sets the exit code, so only the document counts
        diagnosis = parse(output.stdout)
    except Unreadable as error:
        printed = (output.stdout + output.stderr).decode("utf-8", "replace")
        raise _explain_refusal(printed, output, str(error)) from None
    if diagnosis.runtime_error:
        raise _explain_refusal(diagnosis.runtime_error, output, diagnosis.runtime_error)
    return diagnosis


def _explain_refusal(printed: str, output: Output, otherwise: str) -> CannotTell:
    """Why there are no results, and what to do if that is known."""
    folded = printed[:20_000].casefold()
    for words, reason, advice in _TROUBLES:
        if any(word in folded for word in words):
            first = next(line.strip() for line in printed.splitlines() if any(w in line.casefold() for w in words))
            return CannotTell(f"dcgmi diag: {first[:120]}; {advice}", reason)
    return CannotTell(
        f"dcgmi diag: {otherwise[:150]}" + (f" ({output.trouble})" if output.trouble else ""), "DiagNotRun"
    )
