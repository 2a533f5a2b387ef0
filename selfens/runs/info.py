"""RunInfo: what a run records about itself, in run.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from selfens.config import MAX_THREADS
from selfens.errors import ConfigError
from selfens.settings import Section, setting

MAX_SIDE = 2**24  # numbers along one side of an input; more cannot be trained on


@dataclass(frozen=True, kw_only=True)
class RunInfo(Section):
    """What a run was made of. A value of the wrong type raises a ConfigError."""

    section: ClassVar[str] = "run"
    id: str = setting("", "Hash of config, labels and data; equal runs have the same.")
    config: str = setting("", "Hash of the config, to detect later edits.")
    data: str = setting("arrays", "Name of the data.")
    fingerprint: str = setting("", "Hash of inputs, labels and classes.")
    test_fingerprint: str = setting("", "Hash of the test rows.")
    rows: int = setting(0, "Training rows, extra ones included.", at_least=1)
    extra_rows: int = setting(0, "Number of extra rows among them.", at_least=0)
    extra: str = setting("", "Source of the extra rows.")
    labeled: int = setting(0, "Number of labeled training rows.", at_least=1)
    test_rows: int = setting(0, "Test rows.", at_least=0)
    classes: tuple[str, ...] = setting((), "Names of the classes.")
    input_shape: tuple[int, ...] = setting((), "Shape of an encoded row.")
    encoder: dict[str, Any] = setting(None, "What the encoder has learned.")
    skipped: tuple[str, ...] = setting((), "Files that could not be read, and why.")
    residence: str = setting("device", "Where the inputs were kept.")
    processes: int = setting(1, "Number of processes that trained together.", at_least=1)
    parameters: int = setting(0, "Number of trained parameters.", at_least=0)
    environment: dict[str, Any] = setting(None, "Versions, hardware, threads.")
    custom_network: bool = setting(False, "A network was passed in Python.")
    custom_method: bool = setting(False, "A method was passed in Python.")
    custom_options: str = setting("", "The options of that method.")
    note: str = setting("", "How the config was chosen.")

    def __post_init__(self) -> None:
        super().__post_init__()
        names, sides = self.classes, self.input_shape
        has_names = all(isinstance(name, str) for name in names) and len({*names}) == len(names) > 1
        has_shape = all(type(side) is int and 0 < side < MAX_SIDE for side in sides) and len(sides) in (1, 2, 3)
        if not has_names or not has_shape:
            raise ConfigError("run.classes or run.input_shape holds invalid values.")
        threads = self.environment.get("threads")
        if not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
            raise ConfigError("run.environment has no valid number of threads.")

    def to_json(self, file_format: str) -> str:
        return json.dumps({"format": file_format} | asdict(self), indent=2) + "\n"

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> RunInfo:
        """Invert `to_json`. Raises a ConfigError or KeyError for anything else."""
        values: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in raw.items()}
        del values["format"]
        if different := values.keys() ^ {item.name for item in fields(cls)}:
            raise KeyError(min(different))
        return cls(**values)
