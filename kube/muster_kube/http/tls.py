"""TLS contexts of servers, without the library that makes certificates (10 MB of memory)."""

import os
import ssl


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def load_key_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load PEM. ssl reads only files: this one is in memory, so that no key is written to disk. Raises ssl.SSLError."""
    number = os.memfd_create("certificate")
    try:
        with os.fdopen(os.dup(number), "wb") as file:
            file.write(certificate + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{number}")
    finally:
        os.close(number)
