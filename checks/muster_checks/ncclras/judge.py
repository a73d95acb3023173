"""Judges what RAS reports: which ranks do not answer, and which ones the others wait for.

Pure functions. The job reports, so a finding is a WARN at most, and it names a node only by the report's address.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from muster_checks.base.vocabulary import Finding, Measurement, Verdict, shorten
from muster_checks.ncclras.report import UNKNOWN_HOST, RasCommunicator, RasRank

SILENT, BEHIND = "SilentRanks", "RanksBehind"
HOSTS_LIMIT = 32  # findings; the rest is a number
_SHOWN = 4

Silent = Mapping[tuple[str, int], RasRank]  # by communicator and rank


def silent_ranks(communicators: Iterable[RasCommunicator]) -> Silent:
    return {(each.name, rank.rank): rank for each in communicators for rank in each.silent}


def judge(
    communicators: Sequence[RasCommunicator],
    confirmed: Collection[tuple[str, int]],
    stalled_s: Mapping[str, float],
    own: Collection[str],
) -> list[Finding]:
    """confirmed: silent in two readings. stalled_s: communicators without progress, and for how long in seconds.

    own: addresses of this node. Other nodes are named by the node of the first rank, or by all if that is not known.
    """
    by_place: dict[tuple[str, str], list[str]] = {}
    for each in communicators:
        speaks = each.first_host in ("", UNKNOWN_HOST, *own)
        silent = [rank for rank in each.silent if (each.name, rank.rank) in confirmed]
        for reason, ranks, why in (
            (SILENT, silent, "answers RAS no more"),
            (BEHIND, each.behind if each.name in stalled_s else (), _waited(stalled_s.get(each.name, 0.0))),
        ):
            for rank in ranks:
                component = "host" if rank.host in own else f"peer/{rank.host}"
                if component == "host" or speaks:
                    by_place.setdefault((component, reason), []).append(f"{_name(rank)} of {each.name} {why}")
    measured = _measured(communicators)
    findings = [
        Finding(
            component=component,
            verdict=Verdict.WARN,
            reason=reason,
            message=shorten("; ".join(texts[:_SHOWN]) + _more(len(texts) - _SHOWN) + "; by the job's own report"),
            measurements=(Measurement("ranks", len(texts)),),
        )
        for (component, reason), texts in sorted(by_place.items())[:HOSTS_LIMIT]
    ]
    if not any(finding.component == "host" for finding in findings):
        message = f"no rank of this node is silent in {len(communicators)} communicators"
        findings.append(
            Finding(component="host", verdict=Verdict.PASS, reason="Ok", message=message, measurements=measured)
        )
    return findings


def _measured(communicators: Sequence[RasCommunicator]) -> tuple[Measurement, ...]:
    return (
        Measurement("communicators", len(communicators)),
        Measurement("silent_ranks", sum(len(each.silent) for each in communicators)),
        Measurement("ranks_behind", sum(len(each.behind) for each in communicators)),
    )


def _waited(seconds: float) -> str:
    return f"has launched fewer operations than most, and none was launched for {seconds:.0f} s"


def _name(rank: RasRank) -> str:
    where = f"GPU {rank.gpu}, process {rank.pid}" if rank.pid else "process unknown"
    return f"rank {rank.rank} ({where}{', node unknown' if rank.host == UNKNOWN_HOST else ''})"


def _more(number: int) -> str:
    return f" and {number} more" if number > 0 else ""
