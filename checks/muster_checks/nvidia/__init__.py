"""What NVIDIA's driver says of its GPUs: one reading that every NVIDIA check shares. A library, no check of its own.

gpu.py has the values, nvml_child.py fills them from NVML in a process of its own, smi_xml.py from `nvidia-smi -q -x`,
probe.py chooses between the two and shares one reading among the checks that run at the same time, and judge.py has
what their judges share. gpu_check.py declares a check on that reading. models.yaml says what each GPU should do.
"""

KNOWN_GPUS = "nvidia"  # under this name History keeps which GPUs there were
