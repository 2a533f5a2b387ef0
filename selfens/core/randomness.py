"""Random streams: one seed, and a separate stream for each purpose.

numpy mixes a list of numbers into one seed, and trailing zeros change nothing: [7] and [7, 0] are the same stream. Hence
purposes are large numbers that no epoch or count reaches.
"""

import numpy as np

ORDER, HELD_OUT, CORRUPTION, _, FOLDS, _, PROCESS, SUGGESTED = (2**31 + purpose for purpose in range(8))  # _: unused


def stream(seed: int, purpose: int, *more: int) -> np.random.Generator:
    """Return the generator of a purpose. Each value of `more`, such as the epoch, has a stream of its own."""
    return np.random.default_rng([seed, purpose, *more])
