"""Asks RAS, and asks again if a rank is silent: a process that is just ending is silent for a moment."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
import psutil

from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell
from muster_checks.base.vocabulary import Finding
from muster_checks.ncclras import NCCLRAS, NcclRasParameters
from muster_checks.ncclras.client import ask
from muster_checks.ncclras.judge import judge, silent_ranks
from muster_checks.ncclras.parse_json import parse_json
from muster_checks.ncclras.parse_text import parse_text
from muster_checks.ncclras.report import MalformedReport, RasCommunicator, host_of

_ROUNDING_S = 1.0
COMMUNICATORS_KEPT = 256  # whose progress is followed; a job has a few for each kind of parallelism


async def probe(node: NodeView, parameters: NcclRasParameters) -> list[Finding]:
    found = await _ask(parameters)
    first = silent_ranks(found)
    if first:
        await asyncio.sleep(parameters.again_after_s)
        found = await _ask(parameters)
    confirmed = first.keys() & silent_ranks(found).keys()
    return judge(found, confirmed, _stalled(node, found, parameters.stalled_after_s), own_addresses())


async def _ask(parameters: NcclRasParameters) -> list[RasCommunicator]:
    return await ask(parameters.address, parameters.ras_port, timeout_s=parameters.answer_timeout_s)


def _stalled(node: NodeView, found: Sequence[RasCommunicator], after_s: float) -> Mapping[str, float]:
    """Communicators with ranks behind that have made no progress, and for how long."""
    followed = [each for each in found if each.behind][:COMMUNICATORS_KEPT]
    name = NCCLRAS.name
    node.history.note(name, {each.name: each.progress for each in followed})
    series = node.history.of(name)
    stalled = {}
    for each in followed:
        rise = series[each.name].rise(after_s) if each.name in series else None
        if rise is not None and rise.amount == 0 and rise.over_s >= after_s - _ROUNDING_S:
            stalled[each.name] = rise.over_s
    return stalled


def own_addresses() -> frozenset[str]:
    """All IP addresses of this network namespace."""
    texts = (each.address.partition("%")[0] for every in psutil.net_if_addrs().values() for each in every)
    return frozenset(map(host_of, texts)) - {host_of("")}


def judge_recorded(text: bytes) -> list[Finding] | None:
    """Judges one answer of ``ncclras``, in either format. One reading cannot tell who is late from who is stuck."""
    try:
        if text.lstrip()[:1] == b"{" and b'"communicators"' in text:
            found = parse_json(text)
        elif b"Communicators..." in text:
            found = parse_text(text)
        else:
            return None
    except MalformedReport as error:
        raise CannotTell(str(error), "Unparsable") from None
    found = [msgspec.structs.replace(each, first_host="") for each in found]  # of whichever node
    return judge(found, silent_ranks(found).keys(), {}, ())
