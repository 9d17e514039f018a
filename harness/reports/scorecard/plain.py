"""The scorecard as JSON."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from enum import Enum
from typing import Any

from harness.reports.scorecard import Scorecard

SCHEMA = 1


def as_json(card: Scorecard) -> dict[str, Any]:
    """Plain data; levels by name, times in ISO 8601, UTC."""
    return {"schema": SCHEMA, **_plain(card)}


def _plain(value: Any) -> Any:  # noqa: ANN401 -- whatever a scorecard holds
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, Enum):
        return str(value)
    return value.isoformat() if isinstance(value, date | datetime) else value
