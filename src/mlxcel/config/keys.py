"""The API keys of a server, from flags, environment and file."""

from __future__ import annotations

from pathlib import Path

from mlxcel.config.network import NetworkConfig
from mlxcel.core.errors import StartupError


def api_keys(network: NetworkConfig) -> tuple[str, ...]:
    """Every accepted key.

    Raises:
        StartupError: the key file cannot be read or holds no key.
    """
    if not network.api_key_file:
        return network.api_keys
    try:
        lines = Path(network.api_key_file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise StartupError(f"--api-key-file: cannot read {network.api_key_file}") from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not keys:
        raise StartupError(f"--api-key-file: {network.api_key_file} holds no key")
    return (*network.api_keys, *keys)
