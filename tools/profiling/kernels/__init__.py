"""Kernels that the profilers are tried on."""
