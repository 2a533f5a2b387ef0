"""Lets tests import the naive twins as `reference.xxx`."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("selfens", deadline=None, max_examples=40)
settings.load_profile("selfens")
