"""Ends generations that repeat themselves: the detector, and which policy applies to a request."""

from __future__ import annotations

import logging
import re
from collections import deque
from typing import Final

from mlxcel.core.sampling import LoopDetection

_log = logging.getLogger(__name__)

DEFAULT_LOOP_DETECTION: Final = LoopDetection(min_pattern_tokens=1, max_pattern_tokens=20, min_count=4)
_OFF: Final = LoopDetection(max_pattern_tokens=0)

_OFF_WORDS: Final = frozenset({"off", "0", "none", "false", "disabled"})
_ON_WORDS: Final = frozenset({"on", "default", "true", "enabled"})
_NUMBERS: Final = re.compile(r"(\d{1,9})\s*([,:])\s*(\d{1,9})\s*\2\s*(\d{1,9})", re.ASCII)


class LoopDetector:
    """Tells when the generated tokens end in a pattern repeated often enough.

    A token costs time in proportion to its own occurrences among the last ``max_pattern_tokens``.

    Args:
        settings: what counts as a loop. When disabled, nothing does.
    """

    def __init__(self, settings: LoopDetection) -> None:
        self._enabled = settings.enabled
        self._longest = settings.max_pattern_tokens
        self._shortest = min(max(settings.min_pattern_tokens, 1), settings.max_pattern_tokens)
        self._repeats = settings.min_count - 1
        self._position = 0
        self._places: dict[int, deque[int]] = {}
        # Period -> how many tokens in a row, up to now, equal the one a period before.
        self._runs: dict[int, int] = {}

    def push(self, token_id: int) -> bool:
        """Append a token; True when the tail now is a pattern repeated at least ``min_count`` times."""
        if not self._enabled:
            return False
        position = self._position
        self._position = position + 1
        places = self._places.setdefault(token_id, deque())
        while places and position - places[0] > self._longest:
            places.popleft()
        before = self._runs
        self._runs = {
            period: before.get(period, 0) + 1 for place in places if (period := position - place) >= self._shortest
        }
        places.append(position)
        return any(run >= period * self._repeats for period, run in self._runs.items())


def parse_loop_policy(env_value: str) -> LoopDetection | None:
    """The policy that ``MLXCEL_LOOP_DETECTION`` sets: a word for off or on, or ``MIN,MAX,COUNT`` (also with colons).

    Returns:
        None when the value is empty or malformed; the latter is logged.
    """
    value = env_value.strip().lower()
    if not value:
        return None
    if value in _OFF_WORDS:
        return _OFF
    if value in _ON_WORDS:
        return DEFAULT_LOOP_DETECTION
    numbers = _NUMBERS.fullmatch(value)
    if numbers is None:
        _log.warning(
            "MLXCEL_LOOP_DETECTION is ignored: %r is neither off, on nor MIN,MAX,COUNT such as 1,20,4", env_value[:80]
        )
        return None
    shortest, longest, count = int(numbers[1]), int(numbers[3]), int(numbers[4])
    return LoopDetection(max_pattern_tokens=longest, min_pattern_tokens=min(max(shortest, 1), longest), min_count=count)


def resolve_loop_policy(request: LoopDetection | None, operator: LoopDetection | None, family: str) -> LoopDetection | None:
    """What applies to a request: its own fields, else the operator's setting, else on for Gemma 4, else off.

    Args:
        request: None when the request names none of the fields; an explicit zero switches detection off.
        operator: from :func:`parse_loop_policy`.
        family: the model type of the checkpoint.

    Returns:
        None when detection is off.
    """
    policy = request or operator or (DEFAULT_LOOP_DETECTION if family.startswith("gemma4") else _OFF)
    return policy if policy.enabled else None
