"""Finds checkpoints on disk or on a hub, and reads their weights and configuration."""

from mlxcel.runners.weights.checkpoint import Checkpoint, CheckpointKind
from mlxcel.runners.weights.matrix import QuantisedMatrix
from mlxcel.runners.weights.opening import open_checkpoint

__all__ = ["Checkpoint", "CheckpointKind", "QuantisedMatrix", "open_checkpoint"]
