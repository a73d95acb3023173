"""The CUDA driver (libcuda.so.1) through ctypes: the twenty-odd functions that a health check needs.

For child processes only: a call may never return, or may crash the process. Signatures: cuda.h of CUDA 11 and later
(driver 450 and later); functions with a second version are called by that name.
"""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

LIBRARY = "libcuda.so.1"
_ADDRESS_BYTES, _NAME_BYTES = 32, 256


class CudaError(Exception):
    """``call`` failed with ``error``, the driver's name for it (``CUDA_ERROR_DEVICE_UNAVAILABLE``)."""

    def __init__(self, call: str, error: str) -> None:
        super().__init__(f"{call}: {error}")
        self.call = call
        self.error = error


class CudaDriver:
    """An initialised driver. Raises CudaError, and OSError if the library does not exist."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._library = ctypes.CDLL(library)
        self.call("cuInit", c_uint(0))

    def call(self, function: str, *arguments: object) -> None:
        """Call ``function``; arguments are ctypes values, since the library is loaded without prototypes."""
        try:
            code = getattr(self._library, function)(*arguments)
        except AttributeError:
            raise CudaError(function, "not in this driver") from None
        if code:
            raise CudaError(function.removesuffix("_v2"), self._error_name(code))

    def count(self) -> int:
        number = c_int()
        self.call("cuDeviceGetCount", byref(number))
        return number.value

    def device(self, index: int) -> "CudaDevice":
        handle = c_int()
        self.call("cuDeviceGet", byref(handle), c_int(index))
        return CudaDevice(self, handle)

    def _error_name(self, code: int) -> str:
        name = c_char_p()
        known = self._library.cuGetErrorName(c_int(code), byref(name)) == 0 and name.value
        return name.value.decode("ascii", "replace") if known and name.value else f"error {code}"


class CudaDevice:
    """One GPU. The methods below :meth:`context` must run inside it."""

    def __init__(self, driver: CudaDriver, handle: c_int) -> None:
        self._handle = handle
        self.call = driver.call

    def address(self) -> str:
        text = ctypes.create_string_buffer(_ADDRESS_BYTES)
        self.call("cuDeviceGetPCIBusId", text, c_int(_ADDRESS_BYTES), self._handle)
        return text.value.decode("ascii", "replace").lower()

    def name(self) -> str:
        text = ctypes.create_string_buffer(_NAME_BYTES)
        self.call("cuDeviceGetName", text, c_int(_NAME_BYTES), self._handle)
        return text.value.decode("utf-8", "replace")

    @contextmanager
    def context(self) -> Iterator[None]:
        """The primary context. In exclusive mode, a GPU in use raises CUDA_ERROR_DEVICE_UNAVAILABLE here."""
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), self._handle)
        try:
            self.call("cuCtxSetCurrent", context)
            yield
        finally:
            self._let_go("cuDevicePrimaryCtxRelease_v2", self._handle)

    def free_bytes(self) -> int:
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    @contextmanager
    def memory(self, size: int) -> Iterator[c_uint64]:
        """Device memory: its address."""
        pointer = c_uint64()
        self.call("cuMemAlloc_v2", byref(pointer), c_size_t(size))
        try:
            yield pointer
        finally:
            self._let_go("cuMemFree_v2", pointer)

    @contextmanager
    def pinned(self, size: int) -> Iterator[c_void_p]:
        """Page-locked host memory: its address."""
        pointer = c_void_p()
        self.call("cuMemHostAlloc", byref(pointer), c_size_t(size), c_uint(0))
        try:
            yield pointer
        finally:
            self._let_go("cuMemFreeHost", pointer)

    def functions(self, ptx: str, names: Sequence[str]) -> dict[str, c_void_p]:
        """The kernels ``names`` of ``ptx``, compiled by the driver; valid while the context exists."""
        module = c_void_p()
        self.call("cuModuleLoadData", byref(module), c_char_p(ptx.encode()))
        found = {}
        for name in names:
            function = c_void_p()
            self.call("cuModuleGetFunction", byref(function), module, c_char_p(name.encode()))
            found[name] = function
        return found

    def launch(
        self, function: c_void_p, grid: tuple[int, int], block: tuple[int, int], arguments: Sequence[object]
    ) -> None:
        """Queue one kernel. ``arguments``: ctypes values in the order of its parameters."""
        values = (c_void_p * len(arguments))(*(ctypes.cast(ctypes.pointer(a), c_void_p) for a in arguments))  # type: ignore[type-var] # ctypes values of many types
        sizes = [c_uint(size) for size in (*grid, 1, *block, 1)]
        self.call("cuLaunchKernel", function, *sizes, c_uint(0), c_void_p(), values, c_void_p())

    def read(self, pointer: c_uint64, words: int) -> list[int]:
        """64-bit words from the beginning of device memory, read after all queued work."""
        buffer = (c_uint64 * words)()
        self.call("cuMemcpyDtoH_v2", buffer, pointer, c_size_t(8 * words))
        return list(buffer)

    def write(self, pointer: c_uint64, words: Sequence[int]) -> None:
        self.call("cuMemcpyHtoD_v2", pointer, (c_uint64 * len(words))(*words), c_size_t(8 * len(words)))

    def seconds(self, queue: Callable[[], None]) -> float:
        """How long the GPU worked on what ``queue`` adds to its stream, by the GPU's own clock."""
        start, stop = c_void_p(), c_void_p()
        for event in (start, stop):
            self.call("cuEventCreate", byref(event), c_uint(0))
        try:
            self.call("cuEventRecord", start, c_void_p())
            queue()
            self.call("cuEventRecord", stop, c_void_p())
            self.call("cuEventSynchronize", stop)
            took_ms = c_float()
            self.call("cuEventElapsedTime", byref(took_ms), start, stop)
        finally:
            for event in (start, stop):
                self._let_go("cuEventDestroy_v2", event)
        return took_ms.value / 1000

    def _let_go(self, function: str, what: object) -> None:
        # after a GPU error every call in its context fails, these included: only the first error is reported
        try:
            self.call(function, what)
        except CudaError:
            return
