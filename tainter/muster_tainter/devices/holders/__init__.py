"""The pods that hold a device: reading them, telling them, and draining the device."""
