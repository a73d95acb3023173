"""One reading of the NVIDIA GPUs, shared by all NVIDIA checks. A library, not a check.

gpu.py defines the values. nvml_child.py reads them from NVML in a child process, and smi_xml.py from
`nvidia-smi -q -x`. probe.py chooses between the two and shares one reading among checks that run at the same time.
judge.py has helpers for their judges, gpu_check.py declares a check on the reading, and models.yaml holds the expected
values of each GPU model.
"""

KNOWN_GPUS = "nvidia"  # the name under which History keeps the GPUs of earlier readings
