"""What a node offers: NVIDIA GPUs through NVML, the CPU with a memory budget, simulated devices from a file."""
