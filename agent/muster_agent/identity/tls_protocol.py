"""HTTP over TLS between agents. Imported only to serve HTTP: it loads uvicorn."""

import asyncio

from starlette.requests import Request

from muster_agent.identity.own_identity import peer_fingerprint
from muster_kube.http.client_timeouts import Impatient

_KEY = "muster_peer"  # in the state of a connection, which no client can write


class TlsProtocol(Impatient):
    """Passes the fingerprint of the client's certificate on to the requests of the connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as its base does
        self.app_state[_KEY] = peer_fingerprint(transport.get_extra_info("ssl_object"))
        super().connection_made(transport)


def sender_fingerprint(request: Request) -> str:
    """Fingerprint of the certificate of the client that sent the request; empty if it did not come over TLS."""
    return str(request.scope.get("state", {}).get(_KEY, ""))
