"""The composition root: the one room that builds objects across the others.

``source`` and ``models`` find what is served, ``settings`` turns options into each room's own settings, ``build`` puts the
objects together.
"""

from mlxcel.app.build import App, build_app
from mlxcel.app.models import Models, open_models
from mlxcel.app.source import Source, find_model, open_source

__all__ = ["App", "Models", "Source", "build_app", "find_model", "open_models", "open_source"]
