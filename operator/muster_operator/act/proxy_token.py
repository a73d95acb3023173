"""The operator's token for the V-IPU proxy.

The connection to the proxy is not encrypted. Whoever reads it, or controls the proxy, has the token. Therefore a token
that anything else accepts too, such as the API server, is never sent.
"""

import base64
from pathlib import Path

import msgspec

from muster_kube.api.credentials import FileToken
from muster_kube.api.errors import ConfigError
from muster_operator.job.partition_api import PROXY_AUDIENCE


class _Claims(msgspec.Struct):
    """Of a JSON Web Token. aud: one audience or several (RFC 7519, section 4.1.3)."""

    aud: str | tuple[str, ...] = ()


class ProxyToken:
    """The token in ``file``, which the kubelet rotates (a projected volume)."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._token = FileToken(file)

    async def header(self) -> str:
        """Raises ConfigError if the file has no token, or a token for any other audience."""
        header = await self._token.header()
        audiences = _read_audiences(header)
        if audiences != (PROXY_AUDIENCE,):
            raise ConfigError(
                f"proxy_token: {self._file}: found a token for {', '.join(audiences) or 'no audience'}, which is not "
                f"sent; expected one for the audience {PROXY_AUDIENCE} alone: a projected volume (serviceAccountToken) "
                f"as in Muster's chart, or kubectl create token ACCOUNT --audience={PROXY_AUDIENCE}"
            )
        return header

    def refused(self, header: str | None) -> bool:
        return self._token.refused(header)


def _read_audiences(header: str) -> tuple[str, ...]:
    """Of a bearer token, unverified; empty if it is no JSON Web Token."""
    _, _, rest = header.partition(".")
    payload, _, _ = rest.partition(".")
    try:
        found = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=="), type=_Claims).aud
    except (ValueError, msgspec.MsgspecError):
        return ()
    return (found,) if isinstance(found, str) else found
