"""Serves any causal language model that transformers has modules for."""
