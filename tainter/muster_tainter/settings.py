"""The tainter's settings: one YAML file, ``MUSTER_TAINTER_*`` over it, flags over both; all checked before the start.

An error names the place (file and key, variable or flag), what was found and what is allowed.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from muster_kube.process.settings import load_settings

PREFIX = "MUSTER_TAINTER_"
_NAMESPACE = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_PREFIX = r"^[A-Za-z0-9][-A-Za-z0-9_./]{0,316}$"
_ACCOUNT = r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"


# device plug-ins of the vendors, and what they are renamed to where devices are shared
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
    """A variable holds a list with commas."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


Prefixes = Annotated[
    tuple[Annotated[str, Field(pattern=_PREFIX)], ...], BeforeValidator(_listed), Field(min_length=1, max_length=64)
]


class TainterSettings(BaseModel):
    """policy: None is the built-in one; namespace: of the lease, trials_namespace: of the claims and pods that are made
    to try a volume; None is the pod's or context's own.

    accelerators: how names of resources begin that are accelerators: pods that hold one are told of their node's fault.
    agent_namespace: where the agents' pods are; None: the lease's. agent_selector: their labels, as kubectl takes them.

    webhook_port: of the own-node rule, which API servers before 1.30 need; None: it is not served, 0: any free one.
    webhook_name: of its configuration, Service and Secret; agent_account: whom it binds, ``NAMESPACE/NAME`` or a name
    in the namespace above; cert_dir: tls.crt and tls.key that somebody else keeps fresh, instead of the Secret.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    kubeconfig: Path | None = None
    policy: Path | None = None
    dry_run: bool = False
    host: str = "0.0.0.0"  # noqa: S104 - scraped from the whole cluster
    port: int = Field(default=3334, ge=0, le=65535)
    namespace: str | None = Field(default=None, pattern=_NAMESPACE)
    trials_namespace: str | None = Field(default=None, pattern=_NAMESPACE)
    accelerators: Prefixes = ACCELERATORS
    agent_namespace: str | None = Field(default=None, pattern=_NAMESPACE)
    agent_selector: str = Field(default="app=muster-agent", min_length=1, max_length=512)
    webhook_port: int | None = Field(default=None, ge=0, le=65535)
    webhook_name: str = Field(default="muster-own-node", pattern=_NAMESPACE)
    agent_account: str = Field(default="muster-agent", pattern=_ACCOUNT)
    cert_dir: Path | None = None
    log_format: Literal["text", "json"] = "text"


def load(file: Path | None, flags: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> TainterSettings:
    """``flags``: by settings name, None for those not given. Raises SettingsError."""
    return load_settings(TainterSettings, PREFIX, file, flags, environ)
