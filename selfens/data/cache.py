"""Where selfens keeps what can be computed or downloaded again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """SELFENS_CACHE, else the platform's place for caches."""
    if os.environ.get("SELFENS_CACHE"):
        return Path(os.environ["SELFENS_CACHE"]).expanduser()
    try:
        import platformdirs
    except ImportError:  # not needed to train on files of one's own
        return Path.home() / ".cache" / "selfens"
    return platformdirs.user_cache_path("selfens")
