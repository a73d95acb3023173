"""The measured bandwidth between the host and an accelerator, and the expected one."""

import msgspec


class Bandwidth(msgspec.Struct, frozen=True):
    """The bandwidth between one accelerator and the host, GB/s (1e9 bytes); None if not measured.

    component:  ``gpu/0000:3b:00.0``, ``ipu/<IPU-Machine address>/<board index>``
    trouble:    why it could not be measured, for people; otherwise empty
    """

    component: str
    to_device_gb_per_s: float | None
    from_device_gb_per_s: float | None
    trouble: str = ""


class HostLink(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about an accelerator's connection to the host.

    name:          of the product; accelerators of the same name are compared with each other
    link_gb_per_s: what its slowest link can carry in one direction
    expected_to_device_gb_per_s, …from…:  what public fleets require of the product
    busy:          why a low figure would prove nothing (another process uses the GPU); otherwise empty
    """

    name: str = ""
    link_gb_per_s: float | None = None
    expected_to_device_gb_per_s: float | None = None
    expected_from_device_gb_per_s: float | None = None
    busy: str = ""
