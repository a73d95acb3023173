"""The agent's settings: one YAML file, ``MUSTER_AGENT_*`` over it, flags over both; all checked before anything starts.

An error names the place (file and key, variable or flag), what was found and what is allowed.
"""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from muster_checks.declaration import Check, Parameters
from muster_checks.registry import UnknownCheck, select
from muster_kube.settings import SettingsError, explain, load_settings

PREFIX = "MUSTER_AGENT_"
FLAGS = ("kubeconfig", "node", "root", "kmsg", "port", "host", "state_dir", "pod_uid", "log_format")
_DNS_NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"


class CheckSettings(BaseModel):
    """Settings of one check. ``parameters``: its own, see /checks."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    enabled: bool = True
    parameters: dict[str, Any] = Field(default_factory=dict)


class Settings(BaseModel):
    """All of them; the defaults are those of an agent in a pod."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    node: str = Field(default_factory=lambda: socket.gethostname().lower(), pattern=_DNS_NAME)
    root: Path = Path("/")
    kmsg: Path | None = None
    kubeconfig: Path | None = None
    host: str = "0.0.0.0"  # noqa: S104 - a node's agent is asked from the whole cluster
    port: int = Field(default=3333, ge=0, le=65535)
    state_dir: Path | None = None
    pod_uid: str = Field(default="", max_length=64)
    log_format: Literal["text", "json"] = "text"
    plugins: Path | None = None
    """A folder of checks that an operator brings as files (docs/plugins.md)."""
    tainter_url: str | None = None
    """Where the tainter answers, which makes a volume claim for the check pvc; None: nobody does."""
    tainter_token: Path = Path("/var/run/secrets/muster.dev/token")
    """A token of this pod for the audience ``muster``, kept fresh by the kubelet (a projected volume)."""
    tainter_ca: Path | None = None
    """PEM bundle to trust with an https tainter_url; None: the system's."""
    claim_grace_s: float = Field(default=5.0, gt=0, le=60)
    checks: dict[str, CheckSettings] = Field(default_factory=dict)

    @field_validator("tainter_url")
    @classmethod
    def _is_base_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)  # raises ValueError, as parts.port does
        whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if not whole or not value.isprintable() or set("@?# ") & set(value):
            raise ValueError("expected http://HOST[:PORT] or https://HOST[:PORT]")
        return value.rstrip("/")

    @property
    def state_directory(self) -> Path:
        """``state_dir``, or /var/lib/muster under the root."""
        return self.state_dir if self.state_dir is not None else self.root / "var/lib/muster"


def load(file: Path | None, flags: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> Settings:
    """``flags``: by settings name, None for those not given. Raises SettingsError."""
    return load_settings(Settings, PREFIX, file, flags, environ, nested={"checks": CheckSettings})


def parameters_of(settings: Settings, checks: Mapping[str, Check]) -> dict[str, Parameters]:
    """The enabled checks' parameters, by name. Raises SettingsError."""
    chosen: dict[str, Parameters] = {}
    try:
        select(settings.checks, checks)
    except UnknownCheck as error:
        raise SettingsError(f"checks: {error}") from error
    for name, check in checks.items():
        own = settings.checks.get(name, CheckSettings())
        if not own.enabled:
            continue
        values = dict(own.parameters)
        if name == "dmesg" and settings.kmsg is not None:
            values["path"] = settings.kmsg
        if not values:
            # the defaults need no validation, and building the validators of thirty checks costs 2 MB
            chosen[name] = check.parameters.model_construct()
            continue
        try:
            chosen[name] = check.parameters.model_validate(values)
        except ValidationError as error:
            place = f"checks.{name}.parameters"
            raise SettingsError("\n".join(explain(error, place, check.parameters))) from error
    return chosen
