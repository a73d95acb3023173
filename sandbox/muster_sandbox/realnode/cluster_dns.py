"""Resolves names of Services like the cluster DNS, with current data from the API server.

``SERVICE.NAMESPACE.svc.cluster.local`` as in Kubernetes' DNS specification (github.com/kubernetes/dns,
docs/specification.md 1.1.0): A records of the cluster IP, or for a headless Service of every endpoint that is ready.
IPv4 only, one question a query. CoreDNS itself is in no Debian package.
"""

import re
import struct
from typing import Any

import msgspec

from muster_kube.api.client import KubeClient
from muster_kube.api.errors import NotFound

ZONE = "svc.cluster.local"
A, IN = 1, 1  # RFC 1035, 3.2.2 and 3.2.4
NO_ERROR, NO_SUCH_NAME = 0, 3
TTL_S = 5  # the specification leaves it open; CoreDNS' own default
_ANSWER, _AUTHORITATIVE, _ASKED_TO_RECURSE = 0x8000, 0x0400, 0x0100
_THE_QUESTIONS_NAME = 0xC000 | 12  # a pointer to behind the header
_HEADER = struct.Struct(">6H")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class DnsQuestion(msgspec.Struct, frozen=True):
    """name: lower case, without the last dot; end: where it ends in the query."""

    number: int
    flags: int
    name: str
    type: int
    end: int


def parse_query(query: bytes) -> DnsQuestion | None:
    """None: no query, or not of one question."""
    try:
        number, flags, questions, *_ = _HEADER.unpack_from(query)
        labels, at = [], _HEADER.size
        while length := query[at]:
            labels.append(query[at + 1 : at + 1 + length].decode("ascii"))
            at += 1 + length
        kind, kingdom = struct.unpack_from(">2H", query, at + 1)
    except (struct.error, IndexError, UnicodeDecodeError):
        return None
    if flags & _ANSWER or questions != 1 or kingdom != IN:
        return None
    return DnsQuestion(number, flags, ".".join(labels).lower(), kind, at + 5)


def build_reply(query: bytes, question: DnsQuestion, addresses: list[str] | None) -> bytes:
    """``addresses``: of the requested Service; None: the name does not exist."""
    code = NO_SUCH_NAME if addresses is None else NO_ERROR
    found = [bytes(map(int, address.split("."))) for address in addresses or ()] if question.type == A else []
    flags = _ANSWER | _AUTHORITATIVE | question.flags & _ASKED_TO_RECURSE | code
    records = [struct.pack(">3HIH", _THE_QUESTIONS_NAME, A, IN, TTL_S, len(each)) + each for each in found]
    header = _HEADER.pack(question.number, flags, 1, len(records), 0, 0)
    return header + query[_HEADER.size : question.end] + b"".join(records)


class ServiceNames:
    """``client`` must be open. ``discovery``: where EndpointSlices are served (``/apis/discovery.k8s.io/v1``)."""

    def __init__(self, client: KubeClient, discovery: str) -> None:
        self._client = client
        self._discovery = discovery

    async def addresses(self, name: str) -> list[str] | None:
        """IPv4 addresses for the name of a Service; None if there is no such Service. Raises ApiError."""
        service, _, rest = name.partition(".")
        namespace, _, zone = rest.partition(".")
        if zone != ZONE or not (_LABEL.fullmatch(service) and _LABEL.fullmatch(namespace)):
            return None
        try:
            found = await self._client.get(f"/api/v1/namespaces/{namespace}/services/{service}")
        except NotFound:
            return None
        if (address := found["spec"].get("clusterIP")) not in (None, "", "None"):
            return [str(address)]
        place = f"{self._discovery}/namespaces/{namespace}/endpointslices"
        slices = await self._client.get(place, params={"labelSelector": f"kubernetes.io/service-name={service}"})
        return sorted(address for each in slices["items"] for address in _ready(each))


def _ready(slice_: dict[str, Any]) -> list[str]:
    if slice_["addressType"] != "IPv4":
        return []
    endpoints = [each for each in slice_["endpoints"] or () if each.get("conditions", {}).get("ready") is not False]
    return [address for endpoint in endpoints for address in endpoint["addresses"]]
