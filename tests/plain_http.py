"""A client for plain HTTP ports on loopback.

By default httpx reads the machine's whole CA bundle for each client, 25 ms of CPU, even if no request uses TLS. Tests
that poll a port create thousands of clients.
"""

import ssl

import httpx2

_NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def plain_http(timeout_s: float | None, base_url: str = "") -> httpx2.AsyncClient:
    """timeout_s: of each request; None: no limit."""
    return httpx2.AsyncClient(base_url=base_url, verify=_NO_AUTHORITIES, trust_env=False, timeout=timeout_s)
