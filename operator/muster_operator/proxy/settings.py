"""Settings of the proxy: flags override ``MUSTER_VIPU_PROXY_*``, which override the original's ``PROXY_*`` and a YAML
file."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from muster_kube.process.settings import SettingsError, load_settings
from muster_operator.job.names import QUARANTINE, TRACKER
from muster_operator.proxy.controllers.list_syntax import parse_controller_list
from muster_operator.proxy.partition_limits import is_power_of_two

PREFIX = "MUSTER_VIPU_PROXY_"
# set by the chart of the original
ORIGINAL = {
    "PROXY_PORT": "PORT",
    "PROXY_READ_TIMEOUT": "READ_TIMEOUT",
    "PROXY_WRITE_TIMEOUT": "WRITE_TIMEOUT",
    "PROXY_IDLE_TIMEOUT": "IDLE_TIMEOUT",
    "PROXY_NAMESPACE": "NAMESPACE",
}
_NAMESPACE = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
_ACCOUNT = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
LEVELS = {"error": 0, "warning": 1, "info": 2, "debug": 6}
"""Level names that all parts accept, in addition to the original's 1 to 6."""
_Seconds = Annotated[float, Field(gt=0, le=86400)]


def _split_list(value: object) -> object:
    """An environment variable holds a comma-separated list."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _read_level(value: object) -> object:
    """A flag or environment variable holds text: the name of a level, or its number."""
    if not isinstance(value, str) or value.isdecimal():
        return value
    if value not in LEVELS:
        raise ValueError(f"expected {', '.join(LEVELS)}, or a number from 1 to 6")
    return LEVELS[value]


Accounts = Annotated[
    tuple[Annotated[str, Field(pattern=_ACCOUNT)], ...], BeforeValidator(_split_list), Field(max_length=64)
]


class ProxySettings(BaseModel):
    """Settings of the V-IPU proxy.

    - ``backend``: vipu (the command line program) or sim
    - ``controllers``: the list of V-IPU controllers (``host:port:key=value,…``), or
    - ``controllers_file``: a file with the list, reread every 5 seconds (a mounted ConfigMap), or
    - ``controllers_map``: a watched ConfigMap with the list under ``controllers.yaml``. One of the three is required
    - ``allowed``: service accounts that may use /partitions, ``namespace/name``; empty: muster-operator in the proxy's
      namespace
    - ``namespace``: of the tracker; None: that of the pod or context
    - ``quarantine_namespace``: of the tainter, which writes that ConfigMap; None: that of the tracker
    - ``max_ipus``: of a partition, a power of two
    - ``parked_limit``: maximum number of partitions that keep quarantined IPUs out of use
    - ``read_timeout``, ``write_timeout``, ``idle_timeout``: seconds to receive a request, to send its response, and
      between two requests
    - ``log_level``: error, warning, info or debug; or 1 warnings, 2 actions, 3 reasons, 4 calls to V-IPU, 5 requests, 6
      everything
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    kubeconfig: Path | None = None
    backend: Literal["vipu", "sim"] = "vipu"
    controllers: str | None = Field(default=None, max_length=64 << 10)
    controllers_file: Path | None = None
    controllers_map: str | None = Field(default=None, pattern=_NAME)
    tracker: str = Field(default=TRACKER, pattern=_NAME)
    quarantine: str = Field(default=QUARANTINE, pattern=_NAME)
    quarantine_namespace: str | None = Field(default=None, pattern=_NAMESPACE)
    namespace: str | None = Field(default=None, pattern=_NAMESPACE)
    allowed: Accounts = ()
    max_ipus: int = Field(default=64, ge=1, le=1 << 20)
    parked_limit: int = Field(default=16, ge=0, le=1024)
    host: str = "0.0.0.0"  # noqa: S104 - the operator and people ask from the whole cluster
    port: int = Field(default=8080, ge=0, le=65535)
    read_timeout: _Seconds = 30.0
    write_timeout: _Seconds = 300.0
    idle_timeout: _Seconds = 60.0
    log_level: Annotated[int, BeforeValidator(_read_level)] = Field(default=2, ge=0, le=6)
    log_format: Literal["text", "json"] = "text"

    @field_validator("max_ipus")
    @classmethod
    def _is_power_of_two(cls, value: int) -> int:
        if not is_power_of_two(value):
            raise ValueError("expected a power of two")
        return value

    @field_validator("controllers")
    @classmethod
    def _has_a_valid_entry(cls, value: str | None) -> str | None:
        endpoints, problems = parse_controller_list(value or "")
        if problems and not endpoints:
            raise ValueError("; ".join(problems))
        return value

    @model_validator(mode="after")
    def _has_one_list(self) -> "ProxySettings":
        given = [self.controllers, self.controllers_file, self.controllers_map]
        if all(each is None for each in given):
            raise ValueError("one of --controllers, --controllers-file or the setting controllers_map is required")
        if sum(each is not None for each in given) > 1:
            raise ValueError("expected only one of --controllers, --controllers-file and the setting controllers_map")
        return self


FLAGS = frozenset(ProxySettings.model_fields)


def load(file: Path | None, flags: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> ProxySettings:
    """``flags``: values by setting name, None for a flag that is not set. Raises SettingsError."""
    known = dict(environ)
    renamed: dict[str, str] = {}
    for theirs, ours in ORIGINAL.items():
        if theirs in environ and PREFIX + ours not in environ:
            known[PREFIX + ours] = environ[theirs]
            renamed[PREFIX + ours] = theirs
    try:
        return load_settings(ProxySettings, PREFIX, file, flags, known)
    except SettingsError as error:
        text = str(error)
        for ours, theirs in renamed.items():
            text = text.replace(f"{ours}:", f"{theirs}:")
        raise SettingsError(text) from error
