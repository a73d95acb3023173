"""A proof that a caller may patch NodeHealths, for requests to an agent that cannot carry a token: the API server's
proxy drops tokens, and between pods they would cross the network unencrypted.

The caller writes the digest of a random secret into an annotation of any NodeHealth, which takes that right, and sends
the secret with the request. An agent that finds the annotation knows that the caller had the right. Agents themselves
cannot write it: they may patch only the status, and the API server ignores other changes in such a patch. The secret is
worth two minutes of checks, and nothing at the API server.
"""

import hashlib
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound
from muster_kube.api.times import rfc3339, seconds
from muster_kube.nodehealth import PATH, NodeHealth

HEADER = "muster-permit"  # NODE SECRET: the NodeHealth with the annotation
PREFIX = "permit.muster.dev/"  # then the digest; the value is the time at which it expires
VALID_S = 120.0  # covers clocks that differ by a minute
_FORM = re.compile(r"([a-z0-9][-a-z0-9.]{0,252}) ([-_A-Za-z0-9]{43})", re.ASCII)


@dataclass(frozen=True)
class RunPermit:
    """A permit in the annotations of NodeHealth ``node``."""

    node: str
    secret: str

    @property
    def header(self) -> str:
        """The value of HEADER."""
        return f"{self.node} {self.secret}"

    @property
    def annotation(self) -> str:
        return PREFIX + hashlib.sha256(self.secret.encode()).hexdigest()[:40]  # the API allows 63 characters


async def write_permit(client: KubeClient, node: str, *, wall: Callable[[], float] = time.time) -> RunPermit:
    """Write a new permit, and delete expired ones of others. Raises ApiError, such as Forbidden without the right."""
    permit = RunPermit(node, secrets.token_urlsafe(32))
    now = wall()
    written = await _annotate(client, node, {permit.annotation: rfc3339(now + VALID_S)})
    old = [
        key for key, until in written.metadata.annotations.items() if key.startswith(PREFIX) and seconds(until) < now
    ]
    if old:
        await _annotate(client, node, dict.fromkeys(old))
    return permit


async def delete_permit(client: KubeClient, permit: RunPermit) -> None:
    """Raises ApiError."""
    await _annotate(client, permit.node, {permit.annotation: None})


async def is_permitted(client: KubeClient, header: str, *, wall: Callable[[], float] = time.time) -> bool:
    """Whether ``header`` proves the right now. Raises ApiError if that cannot be determined."""
    form = _FORM.fullmatch(header)
    if form is None:
        return False
    permit = RunPermit(form[1], form[2])
    try:
        health = await client.get(f"{PATH}/{permit.node}", type=NodeHealth)
    except NotFound:
        return False
    ends = seconds(health.metadata.annotations.get(permit.annotation, ""))
    return wall() < ends <= wall() + 2 * VALID_S


async def _annotate(client: KubeClient, node: str, annotations: dict[str, Any]) -> NodeHealth:
    return await client.patch(f"{PATH}/{node}", {"metadata": {"annotations": annotations}}, type=NodeHealth)
