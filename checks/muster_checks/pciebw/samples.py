"""What was measured on the way between the host and an accelerator."""

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
