"""Compiled CPU kernels: a whole decoder step in one call, where the optional library was built."""

from mlxcel.runners.kernels.library import KernelStatus, status

__all__ = ["KernelStatus", "status"]
