"""HTTP status of each error, the same in every dialect."""

from __future__ import annotations

from mlxcel.core import errors

_STATUS: dict[type[errors.MlxcelError], int] = {
    errors.InvalidRequest: 400,
    errors.ContextOverflow: 400,
    errors.NotFound: 404,
    errors.PayloadTooLarge: 413,
    errors.FeatureDisabled: 403,
    errors.NoModelForRoute: 501,
    errors.CapabilityMissing: 501,
    errors.AuthError: 401,
    errors.TimedOut: 504,
    errors.CapacityError: 503,
}


def status_of(error: errors.MlxcelError) -> int:
    """The status of the closest ancestor in the table; 500 for anything else."""
    return next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)
