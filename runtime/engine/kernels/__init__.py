"""Compute kernels in C for CPUs: compiled on first use, called through ctypes. No torch here."""
