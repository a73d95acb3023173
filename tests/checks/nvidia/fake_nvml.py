"""Stands in for the module pynvml: answers what a test wrote down, raises NVMLError as pynvml does for the rest."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pynvml

NOT_SUPPORTED, UNKNOWN, LOST, RESET_REQUIRED, NO_PERMISSION = 3, 999, 15, 16, 4
NOT_LOADED, NO_LIBRARY, MISMATCH, CORRUPTED_INFOROM = 9, 12, 18, 14


class Error:
    """An NVML call that fails with ``code``."""

    def __init__(self, code: int) -> None:
        self.code = code


class FakeNvml:
    """``gpus``: for each GPU its answers by the name of the call without ``nvmlDeviceGet``: a value, an Error, or a
    function of the call's arguments. A whole GPU may be an Error."""

    def __init__(
        self,
        gpus: Sequence[dict[str, Any] | Error] = (),
        *,
        init: Error | None = None,
        driver: str | Error = "580.105.08",
        count: Error | None = None,
    ) -> None:
        self._gpus, self._init, self._driver, self._count = gpus, init, driver, count
        self.calls: list[str] = []

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        self._answer(self._init)

    def nvmlSystemGetDriverVersion(self) -> Any:  # noqa: N802 - NVML's name
        return self._answer(self._driver)

    def nvmlDeviceGetCount(self) -> Any:  # noqa: N802 - NVML's name
        return self._answer(self._count or len(self._gpus))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802 - NVML's name
        return self._answer(self._gpus[index])

    def nvmlDeviceValidateInforom(self, handle: dict[str, Any]) -> Any:  # noqa: N802 - NVML's name
        return self._answer(handle.get("ValidateInforom", Error(NOT_SUPPORTED)))

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDeviceGet"):
            return getattr(pynvml, name)
        call = name.removeprefix("nvmlDeviceGet")

        def ask(handle: dict[str, Any], *arguments: Any) -> Any:
            self.calls.append(call)
            answer = handle.get(call, Error(NOT_SUPPORTED))
            return self._answer(answer(*arguments) if callable(answer) else answer)

        return ask

    @staticmethod
    def _answer(answer: Any) -> Any:
        if isinstance(answer, Error):
            raise pynvml.NVMLError(answer.code)
        return answer


def fields(values: dict[int | tuple[int, int], float | Error]) -> Callable[[Sequence[tuple[int, int]]], list[Any]]:
    """Field values by number, or by (number, scope); what is not there is not supported."""

    def answer(wanted: Sequence[tuple[int, int]]) -> list[Any]:
        return [_field(values.get(pair, values.get(pair[0], Error(NOT_SUPPORTED)))) for pair in wanted]

    return answer


def _field(value: float | Error) -> Any:
    field = pynvml.c_nvmlFieldValue_t()
    if isinstance(value, Error):
        field.nvmlReturn = value.code
    elif isinstance(value, float):
        field.valueType, field.value.dVal = 0, value
    else:
        field.valueType, field.value.ullVal = 3, value
    return field


def filling(**values: Any) -> Callable[[Any], int]:
    """For calls that fill a structure: sets its members."""

    def fill(reference: Any) -> int:
        for name, value in values.items():
            setattr(reference._obj, name, value)
        return 0

    return fill


def h100(**changes: Any) -> dict[str, Any]:
    """What a healthy H100 answers, as nvidia-smi shows such a one (samples_of.py); two NVLinks instead of 18."""
    links = {(161, link): 0 for link in range(2)} | {(164, link): 26562 for link in range(2)}
    return {
        "PciInfo": SimpleNamespace(domain=0, bus=0x18, device=0),
        "UUID": "GPU-7c0ffee0-5a1e-4b2d-9c3f-0123456789ab",
        "Name": "NVIDIA H100 80GB HBM3",
        "Serial": "1752025031000",
        "VbiosVersion": "96.00.74.00.01",
        "MinorNumber": 0,
        "PersistenceMode": 1,
        "MigMode": [0, 0],
        "MemoryInfo": SimpleNamespace(total=81559 << 20, used=0),
        "FieldValues": fields(
            {82: 37, 91: 2, 95: 0, 230: 0, 186: 68920, 193: (1 << 32) - 8, 194: (1 << 32) - 2, 195: 0, 196: 0}
            | {74: 7_015_662_857_000, 252: 0, 253: 0}
            | links
        ),
        "CurrPcieLinkGeneration": 5,
        "MaxPcieLinkGeneration": 5,
        "GpuMaxPcieLinkGeneration": 5,
        "CurrPcieLinkWidth": 16,
        "MaxPcieLinkWidth": 16,
        "PcieReplayCounter": 150,
        "EccMode": [1, 1],
        "SramEccErrorStatus": filling(volatileCor=4, volatileUncParity=0, volatileUncSecDed=0, bThresholdExceeded=0),
        "RepairStatus": [0, 0],
        "TotalEccErrors": 0,
        "MemoryErrorCounter": 0,
        "RemappedRows": (0, 0, 0, 0),
        "RowRemapperHistogram": SimpleNamespace(max=2560, high=0, partial=0, low=0, none=0),
        "TemperatureV": 29,
        "MarginTemperature": 58,
        "PowerManagementLimitConstraints": [200_000, 700_000],
        "EnforcedPowerLimit": 700_000,
        "PowerManagementLimit": 700_000,
        "PowerManagementDefaultLimit": 700_000,
        "ClockInfo": 345,
        "MaxClockInfo": 1980,
        "CurrentClocksEventReasons": 0x1,
        "GpuFabricInfoV": filling(state=3, status=0, cliqueId=0, healthMask=0x1AA, healthSummary=1),
        "NvLinkState": 1,
        "NvLinkVersion": 6,
        "NvLinkRemoteDeviceType": 2,
        "ValidateInforom": None,
        "ComputeMode": 0,
        "ComputeRunningProcesses_v3": [],
        "GraphicsRunningProcesses_v3": [],
        "MPSComputeRunningProcesses_v3": [],
        "AddressingMode": 1,
        "ApplicationsClock": 1980,
        "DefaultApplicationsClock": 1980,
        **changes,
    }
