"""mlxcel: a local inference server for chat, tools, embeddings and more."""

__version__ = "0.1.0"
