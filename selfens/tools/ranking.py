"""Ranking: several methods trained on the same labels and judged on the same rows, beside the simple methods of `baselines`.

If there are few test rows, all methods are judged by the same folds instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path

from selfens import encoders
from selfens.config import Config
from selfens.core import launcher
from selfens.data import sources
from selfens.data.dataset import Dataset
from selfens.data.labels import choose_labels
from selfens.data.split import FEWEST
from selfens.errors import ConfigError, SelfensError
from selfens.runs.evidence import Evidence
from selfens.runs.history import total_seconds
from selfens.runs.run import Run
from selfens.tools.comparison import Comparison, Result
from selfens.tools.folds import default_folds, evidence_by_folds
from selfens.tools.measure import evidence_on_test_rows
from selfens.training.loop import train
from selfens.training.progress import Progress, WarningsOnly

VECTOR_METHODS = ("committee", "mean-teacher", "temporal", "supervised")
IMAGE_METHODS = ("temporal-teacher", "fixmatch", "temporal", "supervised")
TRAINING = 0.85  # share of the time; the rest is for loading, baselines and files
HEADERS = ("", "error %", "90 % interval", "seconds", "")


@dataclass(frozen=True, eq=False)
class Ranking:
    """Runs of the methods, by name; each has evidence on the same rows."""

    runs: Mapping[str, Run]

    @cached_property
    def best(self) -> str:
        """The method with the fewest mistakes; of several, the quickest."""
        spent = {name: total_seconds(run.history) for name, run in self.runs.items()}
        return min(self.runs, key=lambda name: (int(self._evidence(name).wrong.sum()), spent[name]))

    @cached_property
    def comparison(self) -> Comparison:
        """The best method beside the others and the simple ones. All errors have the same correction, so ranks stay."""
        run, best = self.runs[self.best], self._evidence(self.best)
        others = {name: self._evidence(name).probabilities.argmax(axis=1) for name in self.runs if name != self.best}
        return Comparison(
            replace(best, others={**others, **best.others}), len(run.labels.rows), is_images=len(run.input_shape) == 3
        )

    @property
    def results(self) -> list[Result]:
        """The lowest error first; `differs` says whether it differs from that of the best method by more than chance."""
        ours, *others = self.comparison.results
        return sorted([replace(ours, name=self.best), *others], key=attrgetter("error"))  # ours first among equals

    def seconds(self, name: str) -> float | None:
        """Return how long it took to train a method; None for simple ones, which take next to nothing."""
        return total_seconds(self.runs[name].history) if name in self.runs else None

    @property
    def lines(self) -> list[str]:
        """A table, and what it was measured on."""
        table: list[tuple[str, ...]] = [HEADERS]
        for each in self.results:
            (low, high), spent = each.interval, self.seconds(each.name)
            cells = (f"{each.error:.2f}", f"{low:.1f} to {high:.1f}", "" if spent is None else f"{spent:.0f}")
            table.append((each.name, *cells, self._remark(each)))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        rows = [
            "  ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:]), remark]).rstrip()
            for name, *cells, remark in table
        ]
        evidence = self.comparison.evidence
        how = f"labeled rows, by the same {evidence.folds} folds" if evidence.folds else "test rows"
        count = f"{self.comparison.num_labels:,} labels"
        return [*rows, f"All on the same {count} and the same {len(evidence.wrong):,} {how}.", *self.comparison.notes]

    def _remark(self, result: Result) -> str:
        if result.name == self.best:
            return "best method"
        is_better = result.error < self.comparison.results[0].error
        return ("better" if is_better else "") if result.differs else "may be as good"

    def _evidence(self, name: str) -> Evidence:
        evidence = self.runs[name].evidence
        assert evidence is not None
        return evidence


def suitable_methods(chosen: Config) -> tuple[str, ...]:
    """Return the methods to compare on data with these automatic settings."""
    return VECTOR_METHODS if chosen.method.name == VECTOR_METHODS[0] else IMAGE_METHODS


def rank(
    configs: Mapping[str, Config],
    folder: Path,
    *,
    seconds: float | None = None,
    display: Callable[[], Progress] = WarningsOnly,
) -> Ranking:
    """Train a run for each method in a directory of its name, and judge all of them on the same rows.

    A method that cannot be trained on the data is left out, with a warning.

    Parameters
    ----------
    configs
        By the name of the method; they differ in nothing that labels and folds depend on.
    seconds
        How long all of it may take; each method gets an equal share, of which folds take as much as they need.
    display
        Makes a display for each training.
    """
    launcher.check_single_process("a comparison of methods")
    if len(configs) < 2:
        raise ConfigError(f"{', '.join(configs) or 'no method'} was given; name two methods or more to compare.")
    ends = None if seconds is None else time.perf_counter() + seconds
    shown, folds, runs = display(), _folds(next(iter(configs.values()))), dict[str, Run]()
    for number, (name, config) in enumerate(configs.items()):
        limit = None
        if ends is not None:
            share = (ends - time.perf_counter()) / (len(configs) - number)
            limit = TRAINING * share / (1 + folds)
            if limit <= 0:
                shown.warn(f"{name} is left out: the time limit was reached before its turn.")
                continue
        try:
            run = train(config, folder / name, progress=display(), time_limit=limit)
            if folds:
                dataset = run.data().dataset
                found = evidence_by_folds(run.config, dataset, folds, hurry=True, progress=display())
            else:
                found = evidence_on_test_rows(run, with_baselines=not runs)
        except SelfensError as error:
            shown.warn(f"{name} is left out: {error}")
            continue
        first = next(iter(runs.values()), run).evidence or found  # simple methods predict the same in every run
        run.keep_evidence(replace(found, others=first.others, notes=first.notes))
        runs[name] = run
        wrong = f"{int(found.wrong.sum()):,} of {len(found.wrong):,} rows wrong"
        shown.say(f"{name}: {wrong}, trained in {total_seconds(run.history):.0f} s")
    if not runs:
        raise ConfigError("none of the methods could be trained on these data; the warnings above say why.")
    return Ranking(runs)


def _folds(config: Config) -> int:
    """Return how many folds to judge methods by; 0 if there are enough test rows, or as many as labels."""
    dataset = _load(config)
    seeds = config.seed
    choice = choose_labels(dataset, config.labels, label_seed=seeds.of("labels"), split_seed=seeds.of("split"))
    tested, folds = int(dataset.is_test.sum()), default_folds(choice.known_labels(dataset.num_train))
    if tested >= min(FEWEST, len(choice.rows)) or (tested and folds < 2):
        return 0
    if folds < 2:
        raise ConfigError("there are no test rows, and too few labels for folds; label two rows of a class or more.")
    return folds


def _load(config: Config) -> Dataset:
    side = encoders.build(config.encoder).image_side
    return sources.load(config.source, seed=config.seed.of("split"), side=side)
