"""What this machine has: driver, GPUs, memory, CUDA compiler, installed packages."""
