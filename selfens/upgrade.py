"""Configs of the first edition as configs of the second."""

from __future__ import annotations

from typing import Any


def upgrade_config(raw: dict[str, Any]) -> dict[str, Any]:
    """The second edition's form of a first-edition config, as JSON objects."""
    return raw
