"""Judges kernel limits and states.

Formats: the kernel's Documentation/admin-guide/sysctl (file-nr, tainted) and filesystems/fuse.rst (connections).
"""

from collections.abc import Mapping, Sequence

import msgspec

from muster_checks.base.counter_history import Rise
from muster_checks.base.execution import CannotTell
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict, shorten
from muster_checks.os import OsParameters

# bits of /proc/sys/kernel/tainted that record a fault since boot (kernel: admin-guide/tainted-kernels.rst)
FAULT_BITS = {4: "a machine check", 5: "a bad page", 7: "an oops", 14: "a soft lockup"}


class KernelLimit(msgspec.Struct, frozen=True):
    """How much of one kernel limit is in use."""

    name: str
    used: int
    limit: int


class KernelState(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel's state; None if it cannot be read.

    tainted: the kernel's taint bits; modules: the loaded ones; free_blocks: of 2 MiB, in all zones
    fuse:    waiting requests and congestion threshold by connection
    nfs:     major timeouts of each NFS mount since it was mounted
    """

    limits: Sequence[KernelLimit] = ()
    tainted: int | None = None
    modules: frozenset[str] | None = None
    free_blocks: int | None = None
    fuse: Mapping[str, tuple[int, int]] = {}
    nfs: Mapping[str, int] = {}


def judge(state: KernelState, nfs_rises: Mapping[str, Rise], parameters: OsParameters) -> list[Finding]:
    """All findings are WARN: a node at a limit is slow or rejects connections, but its hardware is healthy."""
    if not state.limits and state.tainted is None:
        raise CannotTell("cannot read /proc/sys and /proc/loadavg")
    findings = [_limit(limit, parameters.max_share) for limit in state.limits]
    if state.tainted is not None:
        findings.append(_tainted(state.tainted))
    if state.free_blocks is not None:
        findings.append(_free_blocks(state.free_blocks, parameters.min_free_2mib_blocks))
    wanted = [word for part in parameters.modules.split(",") if (word := part.strip().replace("-", "_"))]
    findings += [_module(name, state.modules) for name in wanted]
    findings += [_fuse_finding(name, *counts) for name, counts in state.fuse.items()]
    findings += [_nfs(mount, nfs_rises.get(mount), parameters) for mount in state.nfs]
    return findings


def _limit(limit: KernelLimit, max_share: float) -> Finding:
    full = limit.used > max_share * limit.limit
    return Finding(
        component=f"limit/{limit.name}",
        verdict=Verdict.WARN if full else Verdict.PASS,
        reason="NearLimit" if full else "Room",
        message=f"{limit.name}: {limit.used} of {limit.limit} in use"
        + (f", above {max_share:.0%}: raise the limit, or find what uses it up" if full else ""),
        measurements=(Measurement("used", limit.used, "", round(max_share * limit.limit)),),
    )


def _tainted(bits: int) -> Finding:
    faults = [text for bit, text in FAULT_BITS.items() if bits >> bit & 1]
    return Finding(
        component="kernel",
        verdict=Verdict.WARN if faults else Verdict.PASS,
        reason="FaultSinceBoot" if faults else "NoFaultSinceBoot",
        message=f"the kernel recorded {', '.join(faults)} since boot: see the kernel log"
        if faults
        else "no fault since boot",
        fault_class=FaultClass.REBOOT if faults else FaultClass.NONE,
        measurements=(Measurement("tainted", bits),),
    )


def _free_blocks(free: int, least: int) -> Finding:
    short = free < least
    return Finding(
        component="memory/blocks",
        verdict=Verdict.WARN if short else Verdict.PASS,
        reason="Fragmented" if short else "Whole",
        message=f"{free} free blocks of 2 MiB" + (f" (limit {least}): huge pages cannot be allocated" if short else ""),
        measurements=(Measurement("free_2mib_blocks", free, "", float(least)),),
    )


def _module(name: str, loaded: frozenset[str] | None) -> Finding:
    verdict, reason, state = Verdict.PASS, "Loaded", "loaded"
    if loaded is None:
        verdict, reason, state = Verdict.UNKNOWN, "NotReadable", "cannot read /proc/modules"
    elif name not in loaded:
        verdict, reason, state = Verdict.WARN, "NotLoaded", f"required, but not loaded: run modprobe {name}"
    return Finding(
        component=f"module/{name}"[:128], verdict=verdict, reason=reason, message=shorten(f"{name}: {state}")
    )


def _fuse_finding(name: str, waiting: int, threshold: int) -> Finding:
    # at this threshold the kernel itself treats the connection as congested (filesystems/fuse.rst)
    congested = waiting >= threshold
    return Finding(
        component=f"fuse/{name}"[:128],
        verdict=Verdict.WARN if congested else Verdict.PASS,
        reason="Congested" if congested else "Flowing",
        message=f"FUSE connection {name}: {waiting} waiting requests, congested from {threshold} on",
        measurements=(Measurement("waiting", waiting, "", threshold),),
    )


def _nfs(mount: str, rise: Rise | None, parameters: OsParameters) -> Finding:
    amount = rise.amount if rise is not None else 0.0
    late = amount > parameters.nfs_timeouts
    return Finding(
        component=f"mount{mount if mount.startswith('/') else '/' + mount}"[:128],
        verdict=Verdict.WARN if late else Verdict.PASS,
        reason="NfsTimeouts" if late else "Answering",
        message=shorten(
            f"{mount}: the NFS server did not answer {amount:g} requests in {rise.over_s if rise else 0:.0f} s"
        ),
        measurements=(Measurement("major_timeouts", amount, "", float(parameters.nfs_timeouts)),),
    )
