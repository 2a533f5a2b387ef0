"""Lets tests import the naive twins as `reference.xxx`, and keeps them to one thread: the networks here are tiny."""

import os
import sys
from pathlib import Path

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported, in subprocesses too
sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("selfens", deadline=None, max_examples=40)
settings.load_profile("selfens")
