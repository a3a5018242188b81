"""Which NVIDIA GPU is here. In: a device index. Out: its name, compute capability and memory, or None.

Asks the driver library through ctypes, so that building an engine needs no CUDA package beside TensorRT itself.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attngraft.lower import Target

__all__ = ["DeviceFacts", "describe_device", "driver_version", "on_this_device"]

# Values of CUdevice_attribute, cuda.h.
_ATTRIBUTE_CC_MAJOR = 75
_ATTRIBUTE_CC_MINOR = 76
_NAME_BYTES = 256


@dataclass(frozen=True)
class DeviceFacts:
    """One GPU, as the driver describes it."""

    name: str
    compute_capability: str
    """`major.minor`, for example `9.0`."""
    memory_bytes: int


def _driver() -> ctypes.CDLL | None:
    """The initialised driver library, or None where there is no driver or no GPU."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return library if library.cuInit(0) == 0 else None


def driver_version() -> str | None:
    """The newest CUDA version that the installed driver serves, as `major.minor`, or None without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def describe_device(index: int = 0) -> DeviceFacts | None:
    """The GPU of that index, or None where there is none."""
    driver = _driver()
    device = ctypes.c_int()
    if driver is None or driver.cuDeviceGet(ctypes.byref(device), index) != 0:
        return None
    name = ctypes.create_string_buffer(_NAME_BYTES)
    driver.cuDeviceGetName(name, _NAME_BYTES, device)
    memory = ctypes.c_size_t()
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    version = []
    for attribute in (_ATTRIBUTE_CC_MAJOR, _ATTRIBUTE_CC_MINOR):
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        version.append(value.value)
    return DeviceFacts(name.value.decode(), f"{version[0]}.{version[1]}", memory.value)


def on_this_device(target: Target) -> Target:
    """The target on the first GPU here, unless it names one or there is none."""
    device = describe_device()
    return target if device is None else target.on(device.compute_capability)
