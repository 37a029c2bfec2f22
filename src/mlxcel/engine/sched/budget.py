"""How many prompt tokens a step may carry without holding up the rows that decode in it: a small model of step times."""

from __future__ import annotations

_SMOOTHING = 0.2  # weight of the newest measurement
_STEP_RATIO = 2.5  # a step that also prefills may take this many times a plain decode step
_TILE_TOKENS = 32  # attention reads a row's context once per so many of its tokens: a part of a tile costs a whole one
_PROBE_STEPS = 64  # shared or drafted steps in a row, at least, before a plain decode step is measured again


class StepCosts:
    """Running averages of measured step times.

    Plain decode steps are averaged by row count (in powers of two); of shared steps, the extra time per prompt token. Small
    slices cost more per token than whole chunks do, so only shared steps count for the latter.

    Args:
        grant_interval: N of the prefill grant: a prompt may lose one of N + 1 steps to a measurement.
    """

    def __init__(self, grant_interval: int) -> None:
        self._probe_steps = max(_PROBE_STEPS, grant_interval + 1)
        self._decode_s: dict[int, float] = {}
        self._shared_token_s: float | None = None
        self._other_steps = 0  # since the last plain decode step

    def observe(self, *, decode_rows: int, prefill_tokens: int, drafted: bool, step_s: float) -> None:
        """Take the measured time of a step; ``drafted``: it verified drafts besides."""
        if not decode_rows:
            return
        bucket = decode_rows.bit_length()
        if not prefill_tokens and not drafted:
            self._other_steps = 0
            self._decode_s[bucket] = _smooth(self._decode_s.get(bucket), step_s)
            return
        self._other_steps += 1
        if not prefill_tokens:
            return
        decode_s = self._decode_s.get(bucket)
        if decode_s is not None:
            token_s = max(step_s - decode_s, 0.1 * step_s) / prefill_tokens
            self._shared_token_s = _smooth(self._shared_token_s, token_s)

    def plain_step_s(self, decode_rows: int) -> float:
        """Average time of a step that only decodes; 0 while unknown."""
        return self._decode_s.get(decode_rows.bit_length(), 0.0)

    def wants_plain_step(self, decode_rows: int) -> bool:
        """True when the next step should only decode, to learn what that costs with so many rows."""
        return self._other_steps >= self._probe_steps or decode_rows.bit_length() not in self._decode_s

    def shared_tokens(self, decode_rows: int) -> int:
        """Prompt tokens that fit beside ``decode_rows`` decoding rows, in whole tiles; 0 while nothing is known."""
        decode_s = self._decode_s.get(decode_rows.bit_length())
        if decode_s is None or not self._shared_token_s:
            return 0
        tokens = (_STEP_RATIO - 1.0) * decode_s / self._shared_token_s
        return int(tokens + _TILE_TOKENS / 4) // _TILE_TOKENS * _TILE_TOKENS


def _smooth(average: float | None, value: float) -> float:
    return value if average is None else average + _SMOOTHING * (value - average)
