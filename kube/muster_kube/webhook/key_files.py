"""A server's key pair in files, as cert-manager's mounted Secret has it.

Does not load the library that makes certificates (10 MB of memory, 0.1 s), so that files can be checked at the start.
"""

import ssl
from pathlib import Path
from typing import NamedTuple

from muster_kube.api.errors import ConfigError
from muster_kube.http.tls import load_key_pair, server_context

CERTIFICATE, KEY, AUTHORITIES = "tls.crt", "tls.key", "ca.crt"  # as in a Secret of type kubernetes.io/tls
_FILE_LIMIT = 1 << 20  # bytes


class KeyFiles(NamedTuple):
    """PEM. authorities: empty if the folder has no such file"""

    certificate: bytes
    key: bytes
    authorities: bytes


def read_key_files(folder: Path) -> KeyFiles:
    """Raises ConfigError if one cannot be read."""
    authorities = _read(folder / AUTHORITIES) if (folder / AUTHORITIES).exists() else b""
    return KeyFiles(_read(folder / CERTIFICATE), _read(folder / KEY), authorities)


def check_key_files(folder: Path) -> None:
    """Raises ConfigError if they cannot be served."""
    files = read_key_files(folder)
    try:
        load_key_pair(server_context(), files.certificate, files.key)
    except ssl.SSLError as error:
        raise ConfigError(f"{folder}: certificate and key do not load: {error}") from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as opened:
            return opened.read(_FILE_LIMIT)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the file: {error.strerror}") from error
