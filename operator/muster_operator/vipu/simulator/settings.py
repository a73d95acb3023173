"""The simulator's settings: one YAML file, ``MUSTER_VIPU_SIM_*`` over it, flags over both."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from muster_kube.process.settings import load_settings

PREFIX = "MUSTER_VIPU_SIM_"
FLAGS = ("ipus", "state", "delay", "first_rack", "host", "port", "log_format")


class SimulatorSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    state: Path
    """The folder that it keeps its fleet in."""
    ipus: int | None = None
    """How many, four to an IPU-Machine; None: as the state has it, else 64."""
    delay: float = Field(default=1.0, ge=0, le=3600, allow_inf_nan=False)
    """Seconds that making, resetting and removing a partition take."""
    first_rack: int = Field(default=1, ge=0, le=55)
    """The third part of the first IPU-Machines' addresses: simulators beside each other need racks of their own."""
    host: str = "127.0.0.1"
    port: int = Field(default=8090, ge=0, le=65535)
    log_format: Literal["text", "json"] = "text"


def load(file: Path | None, flags: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> SimulatorSettings:
    """``flags``: by settings name, None for those not given. Raises SettingsError."""
    return load_settings(SimulatorSettings, PREFIX, file, flags, environ)
