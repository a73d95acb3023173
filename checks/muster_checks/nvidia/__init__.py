"""What NVIDIA's driver says of its GPUs: one reading that every NVIDIA check shares.

gpu.py has the values, nvml_child.py fills them from NVML in a process of its own, smi_xml.py from `nvidia-smi -q -x`,
and reading.py chooses between the two and shares one reading among the checks that run at the same time.
"""
