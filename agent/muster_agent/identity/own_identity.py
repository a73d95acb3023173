"""The agent's own identity: its TLS contexts and the fingerprint that it publishes."""

import asyncio
import hashlib
import re
import ssl
import sys

import msgspec

from muster_kube.http.tls import load_key_pair, server_context

PROGRAM = "muster_agent.identity.certificate"
MAKE_S = 60.0  # it takes 0.2 s; a node under load may take long
_PEM = re.compile(rb"-----BEGIN [A-Z ]+-----.*?-----END [A-Z ]+-----\n", re.DOTALL)


class NoIdentity(Exception):
    """The program that makes the key has failed. The message says why."""


class OwnIdentity(msgspec.Struct, frozen=True):
    """fingerprint: SHA-256 of the certificate, hexadecimal. server, client: contexts that demand a certificate of the
    peer and prove that the peer has its key. Whose certificate it is, the caller must verify by its fingerprint."""

    fingerprint: str
    server: ssl.SSLContext
    client: ssl.SSLContext


async def make_identity() -> OwnIdentity:
    """A new key and certificate, in memory only. Raises NoIdentity."""
    command = (sys.executable, "-P", "-m", PROGRAM)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(MAKE_S):
            output, errors = await process.communicate()
    except TimeoutError as error:
        process.kill()
        await process.wait()
        raise NoIdentity(f"cannot make a key for TLS: {PROGRAM} did not end within {MAKE_S:g} s") from error
    parts = _PEM.findall(output)
    if process.returncode != 0 or len(parts) != 3:
        why = errors.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise NoIdentity(f"cannot make a key for TLS: {PROGRAM}: {why[0]}")
    return read_identity(*parts)


def read_identity(issuer: bytes, certificate: bytes, key: bytes) -> OwnIdentity:
    """The identity of these PEM texts (certificate.make_certificate)."""
    server, client = server_context(), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    server.num_tickets = 0  # every connection proves its key
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=issuer.decode("ascii"))
        load_key_pair(context, certificate, key)
    return OwnIdentity(fingerprint(ssl.PEM_cert_to_DER_cert(certificate.decode("ascii"))), server, client)


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate in DER, hexadecimal."""
    return hashlib.sha256(certificate).hexdigest()


def peer_fingerprint(connection: ssl.SSLObject | ssl.SSLSocket | None) -> str:
    """Fingerprint of the certificate whose key the peer of this connection has; empty without TLS."""
    certificate = connection.getpeercert(binary_form=True) if connection is not None else None
    return fingerprint(certificate) if certificate else ""
