"""Settings of the operator: flags override ``MUSTER_OPERATOR_*``, which override one YAML file. All are checked at the
start.

An error names the place (file and key, variable or flag), the value found and what is allowed.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from muster_kube.process.logs import LogLevel
from muster_kube.process.settings import load_settings
from muster_operator.admission.pod_security import ALLOWED_FORMS, ALLOWED_WORDS, HOST_NETWORK, PRIVILEGED
from muster_operator.admission.validation import SpecLimits
from muster_operator.job import names
from muster_operator.job.snapshot import JobSetup
from muster_operator.visibility.advertisement import Advertising, Form

PREFIX = "MUSTER_OPERATOR_"
_NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_MAP_NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
_URL = r"^https?://[^\s/?#@]+(/[^\s?#]*)?$"
_IMAGE = r"^[^\s]+$"
_VERSION = r"^(v?\d+\.\d+(\.\d+)?)?$"
_INTERFACES = r"^[A-Za-z0-9_.:/,-]*$"  # comma-separated names or CIDR networks, as for Open MPI
_TAINT_KEY = r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"


def _listed(value: object) -> object:
    """An environment variable holds a comma-separated list."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


Namespaces = Annotated[
    tuple[Annotated[str, Field(pattern=_NAME)], ...], BeforeValidator(_listed), Field(max_length=256)
]
TaintKeys = Annotated[
    tuple[Annotated[str, Field(pattern=_TAINT_KEY)], ...], BeforeValidator(_listed), Field(max_length=16)
]


def _template_right(value: str) -> str:
    if not ALLOWED_FORMS.fullmatch(value):
        raise ValueError(f"expected one of {ALLOWED_WORDS}")
    return value


TemplateRights = Annotated[
    tuple[Annotated[str, AfterValidator(_template_right)], ...], BeforeValidator(_listed), Field(max_length=256)
]


class OperatorSettings(BaseModel):
    """Settings of the operator.

    - ``vipu_proxy``: URL of the V-IPU proxy
    - ``proxy_token``: file with the operator's token for the proxy, audience muster-vipu-proxy; no other token is sent,
      because the connection is not encrypted
    - ``proxy_namespace``: namespace of the tracker ConfigMap; None: the operator's
    - ``quarantine_namespace``: namespace of the tainter's ConfigMap of quarantined IPUs; None: that of the tracker
    - ``namespace``: of the lease; None: that of the pod or context
    - ``scope``: the operator handles only jobs of these namespaces, and validates only those; empty: all
    - ``port``: health; ``metrics_port``, ``webhook_port``: HTTPS
    - ``cert_dir``: tls.crt and tls.key of metrics and webhooks, which another component renews; None: generated
    - ``webhook_name``: of both webhook configurations, their Service and their Secret
    - ``host_network``, ``privileged``: what the operator adds to the jobs' pods, for RDMA
    - ``allow_in_templates``: what the pod templates of jobs may ask for: privileged, hostNetwork, hostPID, hostIPC,
      hostPath, nodeName, capability:NAME, serviceAccount:NAME; ``host_network`` and ``privileged`` allow it too
    - ``dns_policy``: of the jobs' pods; empty: ClusterFirstWithHostNet with ``host_network``, otherwise ClusterFirst
    - ``btl_tcp_if_include``: networks of jobs with several workers (Open MPI); empty: derived from the node's address
    - ``ipu_pods``: give IPUs to pods with the annotation graphcore.ai/ipus too; needs the webhook of pods and the right
      to patch pods
    - ``our_taints``: keys that no job tolerates unless it sets tolerateFaulty
    - ``restart_delay_s``: before a job's first restart; doubles with each restart up to ``restart_delay_limit_s``
    - ``free_partitions_at_end``: release the partitions of finished jobs, whatever their cleanPodPolicy
    - ``moves_per_hour``: maximum number of moves of one job away from bad hardware (healthPolicy.onFault: Move)
    - ``hold_timeout_s``: how long a job that cannot start as a whole keeps its partitions; 0: forever
    - ``hold_delay_s``: before it requests them again; doubles each time up to ``hold_delay_limit_s``, as in Kueue's
      waitForPodsReady
    - ``ipu_visibility``: write the free and total IPUs of V-IPU controllers on the nodes that they serve, as labels or
      as extended resources; none: do not
    - ``advertise_on_master``: also on nodes of the control plane
    - ``extender_port``: HTTPS port for kube-scheduler, which asks it where IPUs are free; None: no scheduler extender
    - ``devel_logs``: log the decisions about each job
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    kubeconfig: Path | None = None
    vipu_proxy: str = Field(pattern=_URL, max_length=512)
    proxy_token: Path
    proxy_namespace: str | None = Field(default=None, pattern=_NAME)
    tracker: str = Field(default=names.TRACKER, pattern=_MAP_NAME)
    quarantine: str = Field(default=names.QUARANTINE, pattern=_MAP_NAME)
    quarantine_namespace: str | None = Field(default=None, pattern=_NAME)
    namespace: str | None = Field(default=None, pattern=_NAME)
    scope: Namespaces = ()
    host: str = "0.0.0.0"  # noqa: S104 - probed by kubelets, called by the API server
    port: int = Field(default=8081, ge=0, le=65535)
    metrics_port: int = Field(default=8443, ge=0, le=65535)
    webhook_port: int = Field(default=9443, ge=0, le=65535)
    webhook_name: str = Field(default="muster-ipujob", pattern=_NAME)
    cert_dir: Path | None = None
    launcher_image: str = Field(default="launcher:latest", pattern=_IMAGE, max_length=512)
    launcher_image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "Never"
    kubectl_version: str = Field(default="", pattern=_VERSION)
    host_network: bool = True
    privileged: bool = True
    allow_in_templates: TemplateRights = ()
    dns_policy: Literal["", "ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"] = ""
    btl_tcp_if_include: str = Field(default="", pattern=_INTERFACES, max_length=256)
    ipu_pods: bool = False
    our_taints: TaintKeys = ("muster.dev/faulty",)
    max_ipus: int = Field(default=64, ge=1, le=1 << 20)
    restart_delay_s: float = Field(default=10.0, ge=0.0, le=3600.0, allow_inf_nan=False)
    restart_delay_limit_s: float = Field(default=360.0, ge=0.0, le=86400.0, allow_inf_nan=False)
    free_partitions_at_end: bool = False
    hold_timeout_s: float = Field(default=300.0, ge=0.0, le=86400.0, allow_inf_nan=False)
    hold_delay_s: float = Field(default=60.0, ge=0.0, le=3600.0, allow_inf_nan=False)
    hold_delay_limit_s: float = Field(default=3600.0, ge=0.0, le=86400.0, allow_inf_nan=False)
    moves_per_hour: int = Field(default=3, ge=0, le=1000)
    ipu_visibility: Form = "none"
    advertise_on_master: bool = False
    extender_port: int | None = Field(default=None, ge=0, le=65535)
    devel_logs: bool = False
    log_level: LogLevel = "info"
    log_format: Literal["text", "json"] = "text"

    @field_validator("max_ipus")
    @classmethod
    def _is_a_power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError("expected a power of two, because partitions have no other size")
        return value

    def limits(self) -> SpecLimits:
        added = {HOST_NETWORK: self.host_network, PRIVILEGED: self.privileged}
        allow = {*self.allow_in_templates, *(name for name, is_added in added.items() if is_added)}
        return SpecLimits(max_ipus=self.max_ipus, allow=frozenset(allow))

    def advertising(self) -> Advertising:
        return Advertising(self.ipu_visibility, self.advertise_on_master)

    def setup(self) -> JobSetup:
        return JobSetup(
            launcher_image=self.launcher_image,
            launcher_image_pull_policy=self.launcher_image_pull_policy,
            kubectl_version=self.kubectl_version,
            host_network=self.host_network,
            privileged=self.privileged,
            dns_policy=self.dns_policy,
            btl_tcp_if_include=self.btl_tcp_if_include,
            our_taints=self.our_taints,
            max_ipus=self.max_ipus,
            restart_delay_s=self.restart_delay_s,
            restart_delay_limit_s=self.restart_delay_limit_s,
            free_partitions_at_end=self.free_partitions_at_end,
            hold_timeout_s=self.hold_timeout_s,
            hold_delay_s=self.hold_delay_s,
            hold_delay_limit_s=self.hold_delay_limit_s,
            moves_per_hour=self.moves_per_hour,
        )


def load(file: Path | None, flags: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> OperatorSettings:
    """``flags``: values by setting name, None for a flag that is not set. Raises SettingsError."""
    return load_settings(OperatorSettings, PREFIX, file, flags, environ)
