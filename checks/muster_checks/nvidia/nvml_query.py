"""Queries NVML about one GPU, call by call: a call that fails leaves only its own field empty."""

from collections.abc import Callable, Iterable
from ctypes import byref
from typing import Any, TypeVar

T = TypeVar("T")

NOT_SUPPORTED = frozenset({2, 3, 6, 13, 21, 22, 23, 25, 26})
"""Codes that mean "this GPU or driver does not have it": invalid argument and version mismatch (an older driver's
answer to a newer call), not supported, not found, no function, no data, no ECC in a virtual GPU, deprecated."""
CORRUPTED_INFOROM = 14
LOST = frozenset({11, 15, 16, 28})
"""Codes that mean "this GPU cannot be used": interrupt trouble, lost, reset required, not found."""


class GpuLost(Exception):
    """The driver reports that this GPU is lost."""


class NvmlQuery:
    """Queries NVML about one GPU. ``nvml``: the module pynvml, or a stand-in."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml = nvml
        self.handle = handle
        self.errors: dict[str, str] = {}

    def get(self, field: str, name: str, *arguments: object) -> Any:
        """The result of ``nvmlDeviceGet<name>(handle, …)``; None if it fails."""
        function = getattr(self.nvml, f"nvmlDeviceGet{name}", None)
        if function is None:  # this release of the library does not have it
            return None
        return self._try(field, lambda: function(self.handle, *arguments))

    def first(self, field: str, *names: str) -> Any:
        """The result of the first of several functions that succeeds: newer drivers drop functions of older ones."""
        return next((value for name in names if (value := self.get(field, name)) is not None), None)

    def flag(self, field: str, name: str, *arguments: object) -> bool | None:
        value = self.get(field, name, *arguments)
        return None if value is None else bool(value)

    def scaled(self, field: str, name: str, *arguments: object, by: float = 1.0) -> float | None:
        value = self.get(field, name, *arguments)
        return None if value is None else value / by

    def struct(self, field: str, name: str, *kinds: str) -> Any:
        """The structure that the function fills: the newest of ``kinds`` that this driver supports."""
        for kind in kinds:
            make = getattr(self.nvml, kind, None)
            info = None if make is None else make()
            if info is not None and self.get(field, name, byref(info)) is not None:
                return info
        return None

    def fields(self, field: str, wanted: Iterable[int], scope: int = 0) -> dict[int, float]:
        """Field values by number, without those that the driver does not have."""
        numbers = list(wanted)
        values = self.get(field, "FieldValues", [(number, scope) for number in numbers])
        found: dict[int, float] = {}
        for number, value in zip(numbers, values or (), strict=False):
            if value.nvmlReturn == 0:
                found[number] = _value(value)
            elif value.nvmlReturn in LOST:
                raise GpuLost(str(self.nvml.NVMLError(value.nvmlReturn)))
            elif value.nvmlReturn not in NOT_SUPPORTED:
                self.errors[field] = str(self.nvml.NVMLError(value.nvmlReturn))
        return found

    def inforom_valid(self, field: str) -> bool | None:
        """Whether the checksums of the InfoROM are correct."""
        validate = getattr(self.nvml, "nvmlDeviceValidateInforom", None)
        if validate is None:  # this release of the library does not have it
            return None

        def valid() -> bool:
            try:
                validate(self.handle)
            except self.nvml.NVMLError as error:
                if error.value != CORRUPTED_INFOROM:
                    raise
                return False
            return True

        return self._try(field, valid)

    def _try(self, field: str, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except self.nvml.NVMLError as error:
            if error.value in LOST:
                raise GpuLost(str(error)) from None
            if error.value not in NOT_SUPPORTED:
                self.errors[field] = str(error)
        except Exception as error:  # a name that is not UTF-8, a structure that ctypes rejects
            self.errors[field] = type(error).__name__
        return None


def _value(value: Any) -> float:
    """A field value as NVML types it: double, three unsigned, two signed, short."""
    names = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    number: float = getattr(value.value, names[value.valueType] if value.valueType < len(names) else "ullVal")
    return number
