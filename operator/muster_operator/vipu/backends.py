"""The back ends by name, for ``muster vipu-proxy --backend``."""

from typing import Literal, get_args

from muster_operator.vipu.command import CommandController
from muster_operator.vipu.controller import VipuController
from muster_operator.vipu.simulator_client import SimulatorController

Backend = Literal["vipu", "sim"]


def create_controller(backend: str, host: str, port: int) -> VipuController:
    """vipu: the program of that name on PATH; sim: HTTP to ``muster vipu-sim``. Raises ValueError."""
    if backend == "sim":
        return SimulatorController(host, port)
    if backend == "vipu":
        return CommandController(host, port)
    raise ValueError(f"backend: {backend!r}: expected {' or '.join(get_args(Backend))}")
