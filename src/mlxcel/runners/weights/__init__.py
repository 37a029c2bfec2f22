"""Reads the weights and the configuration of checkpoints on disk."""

from mlxcel.runners.hub import locate
from mlxcel.runners.weights.checkpoint import Checkpoint, CheckpointKind
from mlxcel.runners.weights.matrix import QuantisedMatrix
from mlxcel.runners.weights.opening import open_checkpoint

__all__ = ["Checkpoint", "CheckpointKind", "QuantisedMatrix", "locate", "open_checkpoint"]
