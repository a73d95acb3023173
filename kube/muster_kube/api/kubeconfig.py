"""Reads and merges kubeconfig files, and selects the current context.

Files are merged as by kubectl: for every key and every named entry, the first file that has it takes precedence.
Relative paths are relative to their file.
"""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from muster_kube.api.errors import ConfigError

Mapping = dict[str, Any]


@dataclass(frozen=True)
class KubeconfigEntry:
    """One named cluster, user or context, and its file."""

    kind: str
    name: str
    body: Mapping
    file: Path

    def where(self, key: str) -> str:
        return f"{self.file}: {self.kind}[{self.name}].{key}"

    def text(self, key: str) -> str | None:
        value = self.body.get(key)
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            raise ConfigError(f"{self.where(key)}: found {_show(value)}, expected a string")
        return value

    def flag(self, key: str) -> bool:
        value = self.body.get(key, False)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.where(key)}: found {_show(value)}, expected true or false")
        return value

    def path(self, key: str) -> Path | None:
        value = self.text(key)
        return None if value is None else self.file.parent / Path(value).expanduser()

    def pem(self, key: str) -> bytes | None:
        """The bytes of ``key``-data (base64), which takes precedence, or of the file that ``key`` names."""
        data = self.text(f"{key}-data")
        if data is not None:
            try:
                return base64.b64decode(data, validate=True)
            except (binascii.Error, ValueError) as error:
                raise ConfigError(f"{self.where(key + '-data')}: not base64: {error}") from error
        path = self.path(key)
        if path is None:
            return None
        try:
            return path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{self.where(key)}: cannot read {path}: {error.strerror}") from error


@dataclass(frozen=True)
class KubeconfigContext:
    """The current context: its cluster, its user (None: anonymous), its namespace."""

    context: KubeconfigEntry
    cluster: KubeconfigEntry
    user: KubeconfigEntry | None
    namespace: str


def read_kubeconfigs(files: Sequence[Path], *, skip_missing: bool = False) -> KubeconfigContext:
    """The current context of ``files`` merged. Raises ConfigError naming file and key."""
    documents = [(file, _read(file)) for file in files if not (skip_missing and not file.exists())]
    if not documents:
        raise ConfigError(f"kubeconfig: none of {', '.join(map(str, files))} exists")
    shown = ", ".join(str(file) for file, _ in documents)
    current = next((d["current-context"] for _, d in documents if d.get("current-context")), None)
    if not isinstance(current, str):
        raise ConfigError(f"{shown}: current-context: found {_show(current)}, expected the name of a context")
    context = _find(documents, "context", current, shown, "current-context")
    cluster_name = context.text("cluster")
    if cluster_name is None:
        raise ConfigError(f"{context.where('cluster')}: missing, expected the name of a cluster")
    cluster = _find(documents, "cluster", cluster_name, shown, context.where("cluster"))
    user_name = context.text("user")
    user = None if user_name is None else _find(documents, "user", user_name, shown, context.where("user"))
    return KubeconfigContext(context, cluster, user, context.text("namespace") or "default")


def _read(file: Path) -> Mapping:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"kubeconfig {file}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read kubeconfig {file}: {error}") from error
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"kubeconfig {file}: not YAML: {' '.join(str(error).split())}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"kubeconfig {file}: found {_show(document)}, expected a mapping with kind: Config")
    return document


def _find(documents: list[tuple[Path, Mapping]], kind: str, name: str, shown: str, asked_by: str) -> KubeconfigEntry:
    known: list[str] = []
    for file, document in documents:
        entries = document.get(f"{kind}s") or []
        if not isinstance(entries, list):
            raise ConfigError(f"{file}: {kind}s: found {_show(entries)}, expected a list")
        for number, entry in enumerate(entries):
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                raise ConfigError(f"{file}: {kind}s[{number}]: expected a mapping with a name")
            known.append(entry["name"])
            if entry["name"] == name:
                body = entry.get(kind) or {}
                if not isinstance(body, dict):
                    raise ConfigError(f"{file}: {kind}s[{name}].{kind}: found {_show(body)}, expected a mapping")
                return KubeconfigEntry(f"{kind}s", name, body, file)
    allowed = ", ".join(repr(k) for k in known) or f"none: there are no {kind}s"
    raise ConfigError(f"{shown}: {asked_by}: found {name!r}, expected one of the {kind}s: {allowed}")


def _show(value: object) -> str:
    """A wrong value for a message. Long values are truncated, so that no key or token is printed in full."""
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:20]}… ({type(value).__name__})"
