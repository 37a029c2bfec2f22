"""Wire surfaces: the translation between each dialect and the nouns of ``core``. Pure, never awaits.

Every endpoint module has a request model, ``to_job(request, context)``, ``render(...)`` and, where it streams, a
``StreamWriter``. Dialects are siblings and never import each other; what they share is in this package's own modules.
"""
