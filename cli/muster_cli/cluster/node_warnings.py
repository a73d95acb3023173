"""Warnings about a node that only Events show: those of the tainter's own sources, which are in no object.

The text of an Event is shown and decides nothing: whoever may write Events in the namespace ``default`` can write it.
"""

from collections.abc import Collection

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import ApiError, Forbidden
from muster_kube.api.objects import Event
from muster_kube.api.times import rfc3339_whole, seconds
from muster_tainter.events.recorder import EVENTS_PATH
from muster_tainter.explain.durations import lasted
from muster_tainter.explain.explanation import ChainLink, FaultChain
from muster_tainter.faults.event_only import WARNING_REASON, finding_of
from muster_tainter.policy.recovery import SOURCE_CHECKS

EVENTS_LIMIT = 100  # the API server sends them by name, so these need not be the latest; a node seldom has ten


async def read_node_warnings(
    client: KubeClient, name: str, now: float, known: Collection[str]
) -> tuple[list[FaultChain], str]:
    """(one for each finding; why there may be others, or empty). known: findings that are shown already, as ``CHECK
    COMPONENT REASON``. Raises nothing."""
    selector = f"involvedObject.kind=Node,involvedObject.name={name},reason={WARNING_REASON}"
    try:
        page = await client.list_page(EVENTS_PATH, Event, params={"fieldSelector": selector, "limit": EVENTS_LIMIT})
    except Forbidden:
        return [], "warnings of sources other than the agent are not shown: needs the right to list events"
    except ApiError as error:
        return [], f"warnings of sources other than the agent are not shown: cannot read the node's Events: {error}"
    latest: dict[str, tuple[float, str]] = {}
    for event in page.items:
        fault, text = finding_of(event.message)
        at = seconds(event.last_timestamp or "")
        if fault.partition(" ")[0] in SOURCE_CHECKS and fault not in known and at >= latest.get(fault, (0.0, ""))[0]:
            latest[fault] = at, text
    more = f"more than {EVENTS_LIMIT} Events warn about this node; not all are shown" if page.continue_ else ""
    return [_chain(fault, at, text, now) for fault, (at, text) in sorted(latest.items())], more


def _chain(fault: str, at: float, text: str, now: float) -> FaultChain:
    since = f"{lasted(now - at)} ago ({rfc3339_whole(at)}), by an Event; it may be over"
    return FaultChain(fault, "WARN", (ChainLink("saw", text), ChainLink("since", since)))
