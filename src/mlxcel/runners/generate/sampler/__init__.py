"""Sampling: one token a row, each row by its own settings, all rows at once."""

from mlxcel.runners.generate.sampler.sampler import Draw, Sampler

__all__ = ["Draw", "Sampler"]
