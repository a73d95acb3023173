"""Work on NVIDIA GPUs through the CUDA driver, in short-lived child processes.

child.py, copies.py and arithmetic.py run in the child, where the driver may hang or crash; launcher.py runs the child
and starts it again behind the GPU on which it died; protocol.py is what the two say to each other. Only libcuda.so.1 is
needed, which comes with the driver: no toolkit, no CUDA runtime.
"""
