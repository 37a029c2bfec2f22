"""transformers builds one model at a time.

While ``from_pretrained`` runs, it exchanges methods of transformers' base class, functions of torch and torch's default
dtype, and afterwards puts back what it found. Two threads at once would put back each other's substitutes: from then on the
process would never tie an output layer to its embedding again, and such models would answer with noise. Every model has an
owner thread that builds it, so all of them take this lock.
"""

from __future__ import annotations

import threading
from typing import Final

TRANSFORMERS_LOCK: Final = threading.Lock()
