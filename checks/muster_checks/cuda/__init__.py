"""Runs work on NVIDIA GPUs through the CUDA driver, in short-lived child processes.

child.py, copies.py and arithmetic.py run in the child, where the driver may hang or crash. launcher.py starts the child
and, if a GPU kills it, starts it again with the next GPU. protocol.py defines the messages between them. Only
libcuda.so.1 is needed, which comes with the driver: no toolkit, no CUDA runtime.
"""
