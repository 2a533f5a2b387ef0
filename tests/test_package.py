"""The package as a whole: its names, the direction of its imports, and that a wheel of it works elsewhere."""

import ast
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
from support import environment

import selfens

ROOT = Path(selfens.__file__).parent
REPOSITORY = ROOT.parent

LEVELS = [
    {"errors", "settings"},
    {"files", "core"},
    {"methods"},
    {"config"},
    {"networks", "data", "presets"},
    {"runs", "named"},
    {"training"},
    {"tools"},
    {"report"},
    {"estimator"},
    {"demo", "bench", "experiments", "console"},
    {"cli", "__main__"},
]
LEVEL = {name: number for number, names in enumerate(LEVELS) for name in names}
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
PRINTING = {"training", "demo", "console"}


def layer(path: Path) -> str:
    """The part of the package a file belongs to: its folder, or its own name."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def home(name: str) -> str:
    """The part in which a name exported by the package is defined."""
    if (ROOT / f"{name}.py").exists() or (ROOT / name).is_dir():
        return name
    return re.split("[.:]", selfens._HOMES[name])[1]


def imported_parts(path: Path) -> set[str]:
    """The parts of the package that a file imports, wherever in the file."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            parts |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("selfens.")}
            assert not any(alias.name == "selfens" for alias in node.names), f"{path}: import selfens as a whole"
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            if node.module == "selfens":
                names = {alias.name for alias in node.names} - {"__version__"}
                parts |= {home(name) for name in names}
            elif node.module and node.module.startswith("selfens."):
                parts.add(node.module.split(".")[1])
    return parts


# Names


def test_every_exported_name_exists():
    assert all(getattr(selfens, name) is not None for name in selfens.__all__)
    assert len(set(selfens.__all__)) == len(selfens.__all__)


def test_the_names_promised_are_exported():
    promised = {"train", "resume", "load_run", "Run", "Config", "Dataset", "Method", "EnsembleTargets", "SelfensError"}
    assert promised | {"losses", "schedules", "networks", "methods", "data", "presets"} <= set(selfens.__all__)


def test_dir_lists_the_exported_names():
    assert dir(selfens) == sorted([*selfens.__all__, "__version__"])


def test_a_star_import_brings_them_all():
    names: dict = {}
    exec("from selfens import *", names)
    assert set(selfens.__all__) <= set(names)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = selfens.trian


def test_train_is_the_function_even_after_its_module_was_imported():
    import selfens.runs.run
    import selfens.tools.predict
    import selfens.training.loop

    assert selfens.train is selfens.training.loop.train
    assert selfens.resume is selfens.training.loop.resume
    assert selfens.load_run is selfens.runs.run.load_run
    assert callable(selfens.train)


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "py.typed").is_file()


def test_the_version_is_that_of_the_installed_package():
    from importlib.metadata import version

    assert selfens.__version__ == version("selfens")


# Layers


def test_every_module_has_a_level():
    assert {layer(path) for path in MODULES} == set(LEVEL)


def test_a_lower_layer_never_imports_a_higher_one():
    higher = {
        str(path.relative_to(ROOT)): {part for part in imported_parts(path) if LEVEL[part] > LEVEL[layer(path)]}
        for path in MODULES
    }
    assert {path: parts for path, parts in higher.items() if parts} == {}


def test_a_higher_import_would_be_noticed(tmp_path):
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from selfens import load_run, presets\n    import selfens.cli\n")
    assert imported_parts(file) == {"runs", "presets", "cli"}


def prints(path: Path) -> bool:
    names = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return any(isinstance(name, ast.Name) and name.id == "print" for name in names)


def test_only_what_shows_things_to_people_prints():
    assert {layer(path) for path in MODULES if prints(path)} <= PRINTING


@pytest.mark.parametrize("module", ["config", "presets", "errors", "methods", "console", "cli"])
def test_what_is_needed_before_training_imports_no_torch(tmp_path, module):
    check = f"import selfens.{module}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=tmp_path, env=environment()).returncode == 0


# The wheel


def run(*words, cwd, **more):
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=environment(**more), capture_output=True, text=True, timeout=540
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


DECLARED = {"sklearn": "scikit-learn", "PIL": "pillow", "yaml": "pyyaml"}


def third_party(path: Path) -> set[str]:
    """The packages of others that a file imports when it is imported, by the names they are installed by."""
    tops = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            tops |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            tops.add(node.module.split(".")[0])
    return {DECLARED.get(top, top) for top in tops - {"selfens"} if top not in sys.stdlib_module_names}


def test_every_package_that_is_imported_is_declared():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[><=\[]", name)[0] for name in project["dependencies"]}
    used = set().union(*(third_party(path) for path in MODULES)) - {"triton"}  # comes with torch on a GPU
    assert used <= declared


@pytest.mark.timeout(300)
def test_a_wheel_builds_installs_and_runs_elsewhere(tmp_path):
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist", cwd=REPOSITORY)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    bin, empty = tmp_path / "venv" / "bin", tmp_path / "empty"
    empty.mkdir()
    run(bin / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", wheel, cwd=empty)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))  # installing torch again would take minutes
    environment_of_its_own = {"PYTHONPATH": ""}
    train = ("train", "digits", "--epochs", "1", "--set", "network.width=4", "--quiet")
    assert run(bin / "selfens", *train, cwd=empty, **environment_of_its_own).startswith("test error ")
    assert os.listdir(empty) == ["runs"]
    page = ("report", "runs/digits-temporal-seed0", "-o", tmp_path / "page.html")  # from a template in the wheel
    run(bin / "selfens", *page, cwd=empty, **environment_of_its_own)
    assert (tmp_path / "page.html").stat().st_size > 20_000
    words = (bin / "python", "-c", "import selfens; print(selfens.__file__)")
    inside = run(*words, cwd=empty, **environment_of_its_own)
    assert str(tmp_path / "venv") in inside
    assert (Path(inside.strip()).parent / "py.typed").is_file()
