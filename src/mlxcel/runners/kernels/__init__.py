"""Compiled CPU kernels: a whole decoder step in one call, where the optional library was built."""
