"""Settings of the simulator: flags override ``MUSTER_VIPU_SIM_*``, which override one YAML file."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from muster_kube.process.logs import LogLevel
from muster_kube.process.settings import load_settings

PREFIX = "MUSTER_VIPU_SIM_"
FLAGS = ("ipus", "state", "delay", "first_rack", "host", "port", "log_level", "log_format")


class SimulatorSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    state: Path
    """Directory where the simulator saves its fleet."""
    ipus: int | None = None
    """Number of IPUs, four per IPU-Machine; None: that of the saved state, or 64."""
    delay: float = Field(default=1.0, ge=0, le=3600, allow_inf_nan=False)
    """Seconds to create, reset or remove a partition."""
    first_rack: int = Field(default=1, ge=0, le=55)
    """Third octet of the addresses in the first rack. Simulators of one cluster need different racks."""
    host: str = "127.0.0.1"
    port: int = Field(default=8090, ge=0, le=65535)
    log_level: LogLevel = "info"
    log_format: Literal["text", "json"] = "text"


def load(file: Path | None, flags: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> SimulatorSettings:
    """``flags``: values by setting name, None for a flag that is not set. Raises SettingsError."""
    return load_settings(SimulatorSettings, PREFIX, file, flags, environ)
