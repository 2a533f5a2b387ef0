"""The package as a whole: its names, the direction of its imports, and that a wheel of it works elsewhere."""

import ast
import importlib
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from support import environment

import selfens
from selfens.errors import EXTRAS

ROOT = Path(selfens.__file__).parent
REPOSITORY = ROOT.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")

LEVELS = [
    {"errors"},
    {"settings", "files"},
    {"core"},
    {"data", "methods"},
    {"encoders"},
    {"config"},
    {"networks", "presets"},
    {"auto", "runs"},
    {"training"},
    {"tools", "bench"},
    {"report", "estimator"},
    {"console", "demo", "experiments", "labeling"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: number for number, names in enumerate(LEVELS) for name in names}


def imports(path: Path) -> list[tuple[str, list[str]]]:
    """Each module that a file imports, wherever in the file, and the names it takes from it."""
    found: list[tuple[str, list[str]]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found.append((node.module or "", [alias.name for alias in node.names]))
    return found


# Names


def test_the_exported_names_are_those_that_type_checkers_see():
    stated = {name: module for module, names in imports(ROOT / "__init__.py") for name in names if "selfens" in module}
    assert set(stated) == set(selfens.__all__)
    for name, module in stated.items():
        assert getattr(selfens, name) is getattr(importlib.import_module(module), name)


def test_a_star_import_and_dir_bring_them_all():
    names: dict = {}
    exec("from selfens import *", names)
    assert set(selfens.__all__) <= set(names)
    assert dir(selfens) == sorted([*selfens.__all__, "__version__"])


def test_no_module_hides_an_exported_function_or_class():
    """An import of selfens.train, if it were a module, would replace the function of that name."""
    modules = {path.relative_to(ROOT).with_suffix("").parts[0] for path in MODULES}
    assert all(isinstance(getattr(selfens, name), ModuleType) for name in modules & set(selfens.__all__))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = selfens.trian


def test_the_version_is_that_of_the_installed_package():
    assert selfens.__version__ == metadata.version("selfens")


# Layers


def layer(path: Path) -> str:
    """The layer a file belongs to: its folder, or its own name."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def home(name: str) -> str:
    """The layer in which a name that the package exports is defined."""
    if name in LEVEL:
        return name
    value = getattr(selfens, name)
    return (value.__name__ if isinstance(value, ModuleType) else value.__module__).split(".")[1]


def imported_layers(path: Path) -> set[str]:
    layers = set()
    for module, names in imports(path):
        package, _, rest = module.partition(".")
        if package == "selfens":
            assert rest or names, f"{path}: import selfens as a whole"
            layers |= {rest.split(".")[0]} if rest else {home(name) for name in names if name != "__version__"}
    return layers


def test_every_module_has_a_level():
    assert {layer(path) for path in MODULES} == set(LEVEL)


def test_a_lower_layer_never_imports_a_higher_one():
    def others(path: Path) -> set[str]:
        return {name for name in imported_layers(path) - {layer(path)} if LEVEL[name] >= LEVEL[layer(path)]}

    assert {str(path.relative_to(ROOT)): found for path in MODULES if (found := others(path))} == {}


def test_a_higher_import_would_be_noticed(tmp_path):
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from selfens import load_run, presets, audit\n    import selfens.cli\n")
    assert imported_layers(file) == {"runs", "presets", "tools", "cli"}


@pytest.mark.parametrize(
    "code",
    ["import selfens", "import selfens.cli", "from selfens.cli import main; main(['--help'])"],
    ids=["selfens", "selfens.cli", "--help"],
)
def test_what_answers_at_once_imports_no_torch(tmp_path, code):
    words = [sys.executable, "-c", f"import sys; sys.modules['torch'] = None; {code}"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# Other packages

INSTALLED_AS = {"sklearn": "scikit-learn", "PIL": "pillow"}


def others_packages(path: Path) -> set[str]:
    """The packages of others that a file imports when it is imported, by the names they are installed by."""
    tops = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            tops |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            tops.add(node.module.split(".")[0])
    return {INSTALLED_AS.get(top, top) for top in tops - {"selfens", *sys.stdlib_module_names}}


def test_every_package_that_is_imported_is_declared():
    declared = {re.split(r"[><=\[]", name)[0] for name in PROJECT["dependencies"]}
    assert set().union(*map(others_packages, MODULES)) <= declared | {"triton"}  # comes with torch on a GPU


def test_the_extras_that_messages_name_are_those_of_the_package():
    declared = PROJECT["optional-dependencies"]
    for extra, packages in EXTRAS.items():
        assert tuple(name.split(">=")[0] for name in declared[extra]) == packages
    assert f"selfens[{','.join(extra for extra in EXTRAS if extra != 'timm')}]" in declared["dev"]


# The wheel


def run(*words, cwd, **more):
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=environment(**more), capture_output=True, text=True, timeout=540
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
    train = ("train", "digits", "--epochs", "1", "--set", "network.width=4", "--quiet")
    assert run(bin / "selfens", *train, cwd=empty, PYTHONPATH="").startswith("test error ")
    assert os.listdir(empty) == ["runs"]
    page = ("report", "runs/digits-temporal-seed0", "-o", tmp_path / "page.html")  # from a template in the wheel
    run(bin / "selfens", *page, cwd=empty, PYTHONPATH="")
    assert (tmp_path / "page.html").stat().st_size > 20_000
    where = ("-c", "import selfens; print(selfens.__file__)")
    inside = Path(run(bin / "python", *where, cwd=empty, PYTHONPATH="").strip())
    assert inside.is_relative_to(tmp_path / "venv")
    assert (inside.parent / "py.typed").is_file()
