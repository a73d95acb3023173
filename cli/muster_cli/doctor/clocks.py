"""Whether the clocks agree: the API server's, this machine's, the agents'. Pure.

An agent's clock shows in its NodeHealth: ``observedAt`` is its own word, the time in ``managedFields`` the API server's
for the same write.
"""

from collections.abc import Iterable, Iterator

from muster_checks.vocabulary import Verdict
from muster_cli.doctor.facts import HealthFacts
from muster_cli.doctor.findings import Finding, counted, some
from muster_kube.times import seconds

AREA = "clocks"
HERE_S = 5.0  # the Date header has whole seconds, and the answer takes its time
AGENT_AHEAD_S = 10.0
AGENT_BEHIND_S = 90.0  # a write that had to wait for the API server looks like a clock that is behind
_MEND = "chronyc tracking, or timedatectl, on that machine; muster check clock"


def judge(server: float | None, here: float, healths: Iterable[HealthFacts]) -> list[Finding]:
    """server, here: seconds since the epoch at the same moment; server is None where no answer bore a date."""
    found: list[Finding] = []
    if server is not None and abs(here - server) > HERE_S:
        what = f"this machine is {_off(here - server)} the API server: ages that are shown here are wrong by as much"
        found.append(Finding(AREA, Verdict.WARN, what, _MEND))
    found += _agents(healths)
    return found or [Finding(AREA, Verdict.PASS, "API server, this machine and agents agree")]


def _agents(healths: Iterable[HealthFacts]) -> Iterator[Finding]:
    off = {each.metadata.name: skew for each in healths if (skew := skew_of(each)) is not None}
    wrong = {name: skew for name, skew in off.items() if skew > AGENT_AHEAD_S or skew < -AGENT_BEHIND_S}
    if wrong:
        most = max(wrong.values(), key=abs)
        what = (
            f"the clocks of {counted(len(wrong), 'node')} ({some(wrong)}) are off, by up to {_off(most)} the API server"
        )
        yield Finding(AREA, Verdict.FAIL, what, _MEND)


def skew_of(health: HealthFacts) -> float | None:
    """Seconds by which the agent was ahead at its last write; None where nobody can tell."""
    said = seconds(health.status.observed_at)
    written = [
        seconds(each.time or "")
        for each in health.metadata.managed_fields
        if each.subresource == "status" or b'"f:observedAt"' in bytes(each.fields)
    ]
    return said - max(written) if said and written and max(written) else None


def _off(skew: float) -> str:
    size = f"{abs(skew):.0f} s" if abs(skew) < 600 else f"{abs(skew) / 60:.0f} min"
    return f"{size} {'ahead of' if skew > 0 else 'behind'}"
