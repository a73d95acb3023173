"""What was measured on the way between the host and an accelerator, and what that way should carry."""

import msgspec


class Bandwidth(msgspec.Struct, frozen=True):
    """The bandwidth of one accelerator's way to the host, GB/s (1e9 bytes); None where it was not measured.

    component:  ``gpu/0000:3b:00.0``, ``ipu/<IPU-Machine address>/<board index>``
    trouble:    why it could not be measured, for people; empty when it could
    """

    component: str
    to_device_gb_per_s: float | None
    from_device_gb_per_s: float | None
    trouble: str = ""


class HostLink(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an accelerator's way to the host.

    name:          the product's; accelerators of one name are compared with each other
    link_gb_per_s: what its slowest link could carry in one direction
    expected_to_device_gb_per_s, …from…:  what public fleets expect of the product
    busy:          why a low figure would prove nothing (somebody else uses the GPU); empty where nobody does
    """

    name: str = ""
    link_gb_per_s: float | None = None
    expected_to_device_gb_per_s: float | None = None
    expected_from_device_gb_per_s: float | None = None
    busy: str = ""
