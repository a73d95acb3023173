"""The agent's settings, from flags, ``MUSTER_AGENT_*`` variables and a YAML file, in this order of precedence.

They are validated before anything starts. An error names the place (file and key, variable or flag), the value found
and the values allowed.
"""

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from muster_checks.base.declaration import Check, Cost, Parameters
from muster_checks.registry import UnknownCheck, select_checks
from muster_kube.process.logs import LogFormat, LogLevel
from muster_kube.process.settings import SettingsError, explain, load_settings

PREFIX = "MUSTER_AGENT_"
FLAGS = ("kubeconfig", "node", "root", "kmsg", "port", "host", "state_dir", "pod_uid", "log_format", "log_level")
_PERIOD = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smhd]?)", re.ASCII)
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
SHORTEST_S, LONGEST_S = 5.0, 366 * 86_400.0
_DNS_NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
_NAMESPACE = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


def _sensible(seconds: float) -> float:
    if seconds and not SHORTEST_S <= seconds <= LONGEST_S:
        raise ValueError(f"{seconds:g} s: expected 0, or {SHORTEST_S:g} s to 366 days")
    return seconds


def _seconds(value: object) -> object:
    """A period in seconds: ``90s``, ``10m``, ``2h``, ``1d``; a bare number is hours, as in Autopilot's ``repeat``."""
    match = _PERIOD.fullmatch(str(value).strip()) if isinstance(value, str | int | float) else None
    if match is None or isinstance(value, bool):
        raise ValueError(
            "expected a duration such as 90s, 10m, 2h or 1d, or a number of hours; 0 disables periodic runs"
        )
    return float(match[1]) * _UNITS_S[match[2] or "h"]


# a shorter period would be a load on the node
Period = Annotated[float, BeforeValidator(_seconds), AfterValidator(_sensible)]


class CheckSettings(BaseModel):
    """Settings of one check.

    enabled:    whether it exists on this node; a check that is off by default needs it
    period:     seconds between two runs; 0: only on request; None: the check's default (see /checks)
    parameters: values for the check's parameters (see /checks)
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    enabled: bool = True
    period: Period | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)

    def enables(self, check: Check) -> bool:
        return self.enabled and (check.enabled or "enabled" in self.model_fields_set)


class AgentSettings(BaseModel):
    """The defaults suit an agent in a pod."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    node: str = Field(default_factory=lambda: socket.gethostname().lower(), pattern=_DNS_NAME)
    root: Path = Path("/")
    kmsg: Path | None = None
    kubeconfig: Path | None = None
    host: str = "0.0.0.0"  # noqa: S104 - clients are all over the cluster
    port: int = Field(default=3333, ge=0, le=65535)
    tls_port: int | None = Field(default=None, ge=0, le=65535)
    """Port for other agents, over TLS; None: two above ``port``, or any free one if that is 0."""
    state_dir: Path | None = None
    pod_uid: str = Field(default="", max_length=64)
    log_format: LogFormat = "text"
    log_level: LogLevel = "info"
    repeat: Period = 3600.0
    """Seconds between two runs of a heavy check, and the longest period of a light one; 0: no periodic runs."""
    plan: Literal["auto", "fleet", "local"] = "auto"
    """Who decides when a due heavy check runs: the tainter's leader (fleet), or this agent, as soon as the node is idle
    (local). auto: fleet with a cluster, otherwise local."""
    post_flight: tuple[str, ...] = ()
    """Heavy checks that become due when a job on this node has ended (plan local only; else see the policy)."""
    light_at_once: int = Field(default=4, ge=1, le=64)
    light_cpu_share: float = Field(default=0.05, gt=0, le=64)
    """Share of one core that light checks and their tools may use on average; beyond it they wait."""
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    """The kubelet's socket, which reports the devices of each pod; used if it exists."""
    run_as: str | None = Field(default=None, pattern=r"^[0-9]{1,9}(:[0-9]{1,9})?$")
    """UID[:GID] to switch to after opening the kernel log, with all capabilities dropped; None: no switch."""
    namespace: str | None = Field(default=None, pattern=_NAMESPACE)
    """Namespace of the agents' Service; None: that of the pod or of the kubeconfig context."""
    service: str = Field(default="autopilot-healthchecks", pattern=_NAMESPACE)
    """The headless Service whose EndpointSlices hold the addresses of all agents."""
    fleet_at_once: int = Field(default=64, ge=1, le=1024)
    """Number of nodes that one query of /status queries at the same time; upper bound of its ``batch``."""
    heavy_at_once: int = Field(default=16, ge=1, le=1024)
    """Number of nodes on which all queries to this agent together run heavy checks at the same time."""
    open_heavy_checks: bool = False
    """Let everybody who reaches the port run heavy checks on idle nodes, as Autopilot does; otherwise only callers over
    loopback or with the right to patch NodeHealths."""
    require_token: bool = False
    """Require for every /status, also over loopback, a Kubernetes token of a user who may patch NodeHealths."""
    canary_kernel_line: bool = False
    """Begin each canary with a line in /dev/kmsg. The process keeps a descriptor with which it can write there."""
    plugins: Path | None = None
    """Directory of additional checks as files (docs/plugins.md)."""
    tainter_url: str | None = None
    """URL of the tainter, which resolves selectors of /status and creates volume claims for the check pvc."""
    tainter_token: Path = Path("/var/run/secrets/muster.dev/token")
    """File with a token of this pod for the audience ``muster``, which the kubelet rotates (a projected volume)."""
    tainter_ca: Path | None = None
    """PEM bundle of trusted certificate authorities for an https tainter_url; None: those of the system."""
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
    def port_for_agents(self) -> int:
        """``tls_port``, or two above ``port``; 0: any free one."""
        return self.tls_port if self.tls_port is not None else self.port and self.port + 2

    @property
    def state_directory(self) -> Path:
        """``state_dir``, or /var/lib/muster under the root."""
        return self.state_dir if self.state_dir is not None else self.root / "var/lib/muster"


def load_agent_settings(
    file: Path | None, flags: Mapping[str, object], environ: Mapping[str, str] = os.environ
) -> AgentSettings:
    """flags: by name of the setting, None if not given. Raises SettingsError."""
    return load_settings(AgentSettings, PREFIX, file, flags, environ, nested={"checks": CheckSettings})


def check_periods(settings: AgentSettings, checks: Mapping[str, Check]) -> dict[str, float]:
    """Seconds between two runs of each periodic snapshot check. Raises SettingsError for a stream's period.

    Light checks keep their own period, about a minute, but at most ``repeat``.
    """
    periods: dict[str, float] = {}
    for name, check in checks.items():
        own = settings.checks.get(name, CheckSettings())
        if check.stream is not None:
            if own.period is not None:
                raise SettingsError(f"checks.{name}.period: {name} runs all the time: remove its period")
            continue
        if not own.enables(check):
            continue
        if own.period is not None:
            period_s = own.period
        elif check.period_s is None:
            continue
        else:
            period_s = settings.repeat if check.cost is Cost.HEAVY else min(check.period_s, settings.repeat)
        if period_s:
            periods[name] = period_s
    return periods


def check_parameters(settings: AgentSettings, checks: Mapping[str, Check]) -> dict[str, Parameters]:
    """The enabled checks' parameters, by name. Raises SettingsError."""
    chosen: dict[str, Parameters] = {}
    try:
        select_checks(settings.checks, checks)
    except UnknownCheck as error:
        raise SettingsError(f"checks: {error}") from error
    for name, check in checks.items():
        own = settings.checks.get(name, CheckSettings())
        if not own.enables(check):
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
