"""Where models come from: a package, folders, the Hugging Face cache, mlxcel's own store, a hub. Imports no torch."""

from mlxcel.runners.hub.locate import EMBEDDED_MODEL, download, locate
from mlxcel.runners.hub.store import StoredModel, default_root, list_models, remove_model

__all__ = ["EMBEDDED_MODEL", "StoredModel", "default_root", "download", "list_models", "locate", "remove_model"]
