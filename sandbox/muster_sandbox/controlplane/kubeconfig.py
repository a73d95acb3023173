"""Self-contained kubeconfig files, with embedded certificates and tokens, so that copies work anywhere."""

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path


def certificate_user(certificate: bytes, key: bytes) -> dict[str, str]:
    return {"client-certificate-data": _encode(certificate), "client-key-data": _encode(key)}


def bearer_user(token: str) -> dict[str, str]:
    return {"token": token}


def write_kubeconfig(path: Path, *, server: str, ca: bytes, user: Mapping[str, str], namespace: str) -> None:
    """Written atomically, readable by its owner only. JSON, which is valid YAML."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "testbed", "cluster": {"server": server, "certificate-authority-data": _encode(ca)}}],
        "users": [{"name": "testbed", "user": dict(user)}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "testbed", "namespace": namespace}}],
        "current-context": "testbed",
    }
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(content, indent=1))
    draft.replace(path)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()
