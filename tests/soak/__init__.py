"""The soak: what goes wrong with processes, files and disks, at random but from fixed seeds. See CONTRIBUTING.md.

python -m tests.soak --kills 300 --files 20000 --pairs 120    what `make soak` does; one that was killed goes on
python -m tests.soak --only files/npz/17                      one case again; its name decides its random numbers
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `support`, as in the tests
