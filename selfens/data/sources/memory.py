"""A dataset that was passed in Python; it can be loaded only by passing it again."""

from dataclasses import dataclass
from typing import ClassVar, NoReturn, final

from selfens.data.sources.base import Source, SourceOptions
from selfens.errors import DataError
from selfens.settings import setting


@final
class Memory(Source):
    """Stands in a run's config for the dataset that was passed to `train`."""

    @dataclass(frozen=True, kw_only=True)
    class Options(SourceOptions):
        name: ClassVar[str] = "memory"
        dataset: str = setting("arrays", "What the dataset is called.")

        @property
        def title(self) -> str:
            return self.dataset

    noun = "a dataset passed in Python"

    def peek(self) -> NoReturn:
        raise DataError("the config's source is a dataset passed in Python; pass it to train(..., dataset=...).")

    def load(self, *, seed: int, side: int | None, progress: bool) -> NoReturn:
        self.peek()
