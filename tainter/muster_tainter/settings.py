"""The tainter's settings: a YAML file, overridden by ``MUSTER_TAINTER_*`` and by flags; all validated before the start.

An error gives the place (file and key, variable or flag), what was found and what is allowed.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from muster_kube.process.logs import LogFormat, LogLevel
from muster_kube.process.settings import load_settings

PREFIX = "MUSTER_TAINTER_"
FLAGS = (
    "kubeconfig", "policy", "dry_run", "host", "port", "namespace", "webhook_port", "cert_dir",
    "log_format", "log_level",
)  # fmt: skip
_NAMESPACE = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_PREFIX = r"^[A-Za-z0-9][-A-Za-z0-9_./]{0,316}$"
_ACCOUNT = r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"


# resource prefixes of the vendors' device plug-ins, and those used for shared devices
ACCELERATORS = (
    "nvidia.com/",
    "graphcore.ai/",
    "amd.com/",
    "gpu.intel.com/",
    "habana.ai/",
    "aws.amazon.com/neuron",
    "google.com/tpu",
    "volcano.sh/vgpu",
)


def _listed(value: object) -> object:
    """A variable holds a comma-separated list."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


Prefixes = Annotated[
    tuple[Annotated[str, Field(pattern=_PREFIX)], ...], BeforeValidator(_listed), Field(min_length=1, max_length=64)
]


class TainterSettings(BaseModel):
    """policy: None is the built-in one; namespace: of the Lease, trials_namespace: for the objects of volume trials,
    repair_namespace: for the Jobs of repairs whose template names none; None is the pod's or context's own.
    trials_image: of the pods of volume trials, which no caller can choose.

    accelerators: prefixes of accelerator resources: pods that hold one get an Event about their node's fault.
    agent_namespace: of the agents' pods; None: the Lease's. agent_selector: their label selector, as for kubectl.

    webhook_port: of the own-node rule, which API servers before 1.30 need; None: not served, 0: any free port.
    webhook_name: of its configuration, Service and Secret; agent_account: the account it applies to, ``NAMESPACE/NAME``
    or a name in the namespace above; cert_dir: externally managed tls.crt and tls.key, instead of the Secret.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    kubeconfig: Path | None = None
    policy: Path | None = None
    dry_run: bool = False
    host: str = "0.0.0.0"  # noqa: S104 - scraped from the whole cluster
    port: int = Field(default=3334, ge=0, le=65535)
    namespace: str | None = Field(default=None, pattern=_NAMESPACE)
    trials_namespace: str | None = Field(default=None, pattern=_NAMESPACE)
    trials_image: str = Field(default="busybox", min_length=1, max_length=512)
    repair_namespace: str | None = Field(default=None, pattern=_NAMESPACE)
    accelerators: Prefixes = ACCELERATORS
    agent_namespace: str | None = Field(default=None, pattern=_NAMESPACE)
    agent_selector: str = Field(default="app=muster-agent", min_length=1, max_length=512)
    webhook_port: int | None = Field(default=None, ge=0, le=65535)
    webhook_name: str = Field(default="muster-own-node", pattern=_NAMESPACE)
    agent_account: str = Field(default="muster-agent", pattern=_ACCOUNT)
    cert_dir: Path | None = None
    log_format: LogFormat = "text"
    log_level: LogLevel = "info"


def load(file: Path | None, flags: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> TainterSettings:
    """``flags``: by settings name, None for those not given. Raises SettingsError."""
    return load_settings(TainterSettings, PREFIX, file, flags, environ)
