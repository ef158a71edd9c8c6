"""What the project promises as a whole: dependencies, import direction, content of the wheel, and its project files."""

from __future__ import annotations

import ast
import fnmatch
import importlib
import importlib.util
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import zipfile
from functools import cache
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPO = Path(__file__).resolve().parents[1]
LINKED = ("agents", "cost_models")


@cache
def project() -> dict[str, Any]:
    return tomllib.loads((REPO / "pyproject.toml").read_text())


@cache
def project_files() -> tuple[Path, ...]:
    """Every file of the project, relative to its root: all but links, hidden folders and what .gitignore names."""
    ignored = [line.strip("/") for line in (REPO / ".gitignore").read_text().split() if line.endswith("/")]
    found = []
    for folder, folders, files in os.walk(REPO):
        at = Path(folder)
        folders[:] = [
            name
            for name in folders
            if (not name.startswith(".") or name in (".ci", ".github"))
            and not (at / name).is_symlink()
            and not any(fnmatch.fnmatch(name, pattern) for pattern in ignored)
        ]
        found += [(at / name).relative_to(REPO) for name in files if name != ".git" and not (at / name).is_symlink()]
    return tuple(sorted(found))


def python_files(*folders: str) -> list[Path]:
    return [path for path in project_files() if path.suffix == ".py" and (not folders or path.parts[0] in folders)]


@cache
def packaged_files() -> tuple[Path, ...]:
    """The files of the package as a wheel names them: agents/x.py as shard_gym/agents/x.py."""
    return tuple(as_packaged(path) for path in project_files() if path.parts[0] in ("shard_gym", *LINKED))


def as_packaged(path: Path) -> Path:
    return Path("shard_gym", path) if path.parts[0] in LINKED else path


def test_the_core_imports_with_numpy_and_gymnasium_alone() -> None:
    """Every other installed distribution is made impossible to import, then the core is imported."""
    core = {"numpy", "gymnasium", "cloudpickle", "farama-notifications", "typing-extensions", "shard-gym"}
    blocked = {"torch", "stable_baselines3", "sb3_contrib", "fbgemm_gpu", "matplotlib", "scipy", "rich", "tyro"} | {
        name
        for name, distributions in packages_distributions().items()
        if not core & {distribution.lower().replace("_", "-") for distribution in distributions}
    }
    script = f"""
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def find_unless_blocked(name, path=None, target=None):
    return None if name.partition(".")[0] in {blocked!r} else find(name, path, target)
PathFinder.find_spec = find_unless_blocked
import shard_gym
import shard_gym.agents, shard_gym.cost_models
assert shard_gym.EmbeddingPlacementEnv.metadata["render_modes"] == ["ansi"]
"""
    result = subprocess.run([sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_the_linked_folders_are_imported_only_as_parts_of_shard_gym(code: ModuleType) -> None:
    perhaps = re.compile(rf"\bfrom\s+({'|'.join(LINKED)})\b|\bimport\b.*(?<![\w.])({'|'.join(LINKED)})\b")
    assert perhaps.search("import agents.base")
    assert not perhaps.search("from shard_gym.agents import base")
    offenders = {
        str(path): name
        for path in python_files()
        for text in [(REPO / path).read_text()]
        if perhaps.search(text)  # parsing all files takes seconds
        for name in code.imported_names(
            ast.parse(text, str(path)), code.module_name(path), is_package=False, everywhere=True
        )
        if name.partition(".")[0] in LINKED
    }
    assert offenders == {}, "Import shard_gym.agents and shard_gym.cost_models instead."


def test_the_links_are_relative_and_stand() -> None:
    for name in LINKED:
        assert os.readlink(REPO / "shard_gym" / name) == os.path.join("..", name)
        assert (REPO / "shard_gym" / name / "__init__.py").is_file()


def test_rooms_and_their_parts_import_lower_ones_alone(code: ModuleType) -> None:
    assert code.upward_imports(code.module_imports(everywhere=False)) == []


def test_other_rooms_import_from_the_face_what_it_has(code: ModuleType) -> None:
    assert code.past_faces() == []


def test_a_face_names_few_things(code: ModuleType) -> None:
    """So few that a reader takes them in; `cost_models`, `plans` and the package keep what users import from there."""
    assert {module for module in code.modules() if len(code.face(module)) > 15} == {
        "shard_gym",
        "shard_gym.cost_models",
        "shard_gym.plans",
    }


def test_every_module_stands_in_a_room(code: ModuleType) -> None:
    rooms = {name for names in code.ROOMS for name in names}
    folders = {module.split(".")[1] for module in code.modules() if module.count(".") > 1}
    assert folders <= rooms
    alone = [name for name, path in code.modules().items() if name.count(".") == 1 and path.name != "__init__.py"]
    assert alone == ["shard_gym.__main__"]


def test_no_modules_import_each_other(code: ModuleType) -> None:
    assert code.circles(code.module_imports(everywhere=True)) == []


def test_circles_and_implied_arrows_are_found(code: ModuleType) -> None:
    imports = {"a": {"b", "c"}, "b": {"c"}, "c": {"d"}, "d": set()}
    assert code.circles(imports) == []
    assert code.without_implied(imports) == {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set()}
    assert code.circles({**imports, "d": {"b"}, "e": {"a"}}) == [["b", "c", "d"]]


def test_the_page_of_the_design_shows_the_packages_as_they_are(code: ModuleType) -> None:
    assert code.DESIGN.read_text(encoding="utf-8") == code.page(), "Run: python tools/dependency_diagram.py"


def defined_names(tree: ast.Module) -> set[str]:
    """The classes, functions, methods (as Class.method) and constants that a module defines."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_the_places_that_the_page_of_the_design_names_exist() -> None:
    places = re.findall(r"`([\w/]+\.py):([\w.]+)`", (REPO / "docs" / "design.md").read_text(encoding="utf-8"))
    assert len(places) > 30
    missing = [
        f"{path}:{name}"
        for path, name in places
        if not (REPO / path).exists() or name not in defined_names(ast.parse((REPO / path).read_text()))
    ]
    assert missing == []


@pytest.fixture(scope="module", params=["links", "links as files", "no links"])
def wheel_names(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files in a wheel built from a copy of the project, as git, a zip download or Windows leaves the links.

    All but those of Python are empty, because their names are enough.
    """
    copy, out = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("shard_gym", *LINKED):
        shutil.copytree(REPO / name, copy / name, symlinks=True, ignore=ignored, copy_function=_copy_of_python)
    for path in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(REPO / path, copy)
    if request.param != "links":
        for name in LINKED:
            (copy / "shard_gym" / name).unlink()
            if request.param == "links as files":
                (copy / "shard_gym" / name).write_text(f"../{name}")
    result = _build_wheel(copy, out)
    assert result.returncode == 0, result.stderr
    assert "would be ignored" not in result.stderr + result.stdout
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def _copy_of_python(source: str, target: str) -> str:
    if source.endswith(".py"):
        return shutil.copy(source, target)
    Path(target).touch()
    return target


def _build_wheel(project_folder: Path, out: Path) -> subprocess.CompletedProcess[str]:
    build = f"import setuptools.build_meta; setuptools.build_meta.build_wheel({str(out)!r})"
    return subprocess.run(
        [sys.executable, "-c", build], cwd=project_folder, capture_output=True, text=True, timeout=120
    )


def test_a_wheel_holds_all_code_and_data_under_shard_gym_and_nothing_else(wheel_names: set[str]) -> None:
    suffixes = (".py", ".typed", ".json", ".npz", ".safetensors", ".html", ".css", ".js")
    expected = {path.as_posix() for path in packaged_files() if path.suffix in suffixes}
    metadata = f"shard_gym-{project()['project']['version']}.dist-info/"
    assert {name for name in wheel_names if not name.startswith(metadata)} == expected


def test_a_part_of_the_project_is_not_built(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", *LINKED)
    shutil.copytree(REPO / "shard_gym", tmp_path / "shard_gym", ignore=ignored, copy_function=_copy_of_python)
    for path in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(REPO / path, tmp_path)
    result = _build_wheel(tmp_path, tmp_path)
    assert result.returncode != 0
    assert "agents/ is missing or empty" in result.stderr


def test_no_file_names_a_place_on_one_machine() -> None:
    folders = ("work", "home", "root", "Users", "opt")
    places = re.compile(rf"(?<![\w.])/(?:{'|'.join(folders)})/\w|\.\./sha" + "red")
    parts = [f"/{folder}/".encode() for folder in folders] + [b"../sha" + b"red"]  # which are found much faster
    offenders = {
        str(path): match.group()
        for path in project_files()
        for content in [(REPO / path).read_bytes()]
        if any(part in content for part in parts)
        for match in [places.search(content.decode(errors="replace"))]
        if match
    }
    assert offenders == {}


def test_the_files_that_the_documentation_names_exist() -> None:
    named = re.compile(
        r"`((?:shard_gym|agents|cost_models|benchmarks|docs|examples|leaderboards|tests|tools)/[\w/.-]*)`"
    )
    pages = [path for path in project_files() if path.suffix == ".md" and path.name != "CHANGELOG.md"]
    missing = [
        f"{page}: {name}"
        for page in pages
        for name in named.findall((REPO / page).read_text())
        if not (REPO / name).exists()
    ]
    assert missing == []


def named_in_python(page: str) -> set[str]:
    """The dotted names of the package on a page, and what its programs import from there."""
    names = set(re.findall(r"(?<![\w/.-])(shard_gym(?:\.[A-Za-z_]\w*)+)(?![\w/*])", page))
    for module, imported in re.findall(r"^ *from (shard_gym[\w.]*) import ([\w, ]+)$", page, re.MULTILINE):
        names |= {f"{module}.{each.split()[0]}" for each in imported.split(",")}
    return names


def resolved(name: str) -> Any:
    """What has this dotted name; where a module of it asks for an extra, the error says so."""
    try:
        return pkgutil.resolve_name(name)
    except AttributeError as error:
        module = importlib.util.find_spec(name.rpartition(".")[0])
        if module is not None and module.submodule_search_locations:
            importlib.import_module(name)
        raise error


def test_what_the_documentation_names_of_the_package_can_be_imported() -> None:
    """All but modules whose extra is not installed."""
    pages = [path for path in project_files() if path.suffix == ".md" and path.name != "CHANGELOG.md"]
    named = {name: page for page in pages for name in named_in_python((REPO / page).read_text(encoding="utf-8"))}
    assert len(named) > 80
    missing = []
    for name, page in named.items():
        try:
            resolved(name)
        except ImportError as error:
            extra = type(error).__name__ == "MissingExtraError"
            if not extra and (error.name is None or error.name.startswith("shard_gym")):
                missing.append(f"{page}: {name}")
        except AttributeError:
            missing.append(f"{page}: {name}")
    added = ("shard_gym.agents.search.emptiest", "shard_gym.replanning.agents.daily")  # the agents that are to be added
    assert sorted(missing) == [f"CONTRIBUTING.md: {name}" for name in added]


def test_the_citation_and_the_changelog_name_the_version() -> None:
    version = project()["project"]["version"]
    assert f'\n__version__ = "{version}"\n' in (REPO / "shard_gym" / "__init__.py").read_text()
    assert f"\nversion: {version}\n" in (REPO / "CITATION.cff").read_text()
    assert f"\n## [{version}]" in (REPO / "CHANGELOG.md").read_text()


def test_every_dependency_is_explained() -> None:
    metadata = project()["project"]
    requirements = [*metadata["dependencies"], *chain.from_iterable(metadata["optional-dependencies"].values())]
    names = {match.group() for requirement in requirements if (match := re.match(r"[\w-]+", requirement))}
    explained = set(re.findall(r"^\| `([\w-]+)`", (REPO / "docs" / "dependencies.md").read_text(), re.MULTILINE))
    assert names - {metadata["name"]} == explained


def required_by(extra: str) -> set[str]:
    """The names of what an extra requires, and what the extras in it do."""
    found = set[str]()
    for requirement in project()["project"]["optional-dependencies"][extra]:
        name, _, inner = requirement.partition("[")
        if name == "shard-gym":
            found = found.union(*(required_by(each) for each in inner.partition("]")[0].split(",")))
        elif match := re.match(r"[\w-]+", requirement):
            found.add(match.group())
    return found


BRINGS = {"minari": {"h5py"}, "stable-baselines3": {"pandas"}}
"""What a requirement requires of its own that we import."""


def distributions_of(extra: str) -> set[str]:
    names = required_by(extra)
    brought = names.union(*(packages for name, packages in BRINGS.items() if name in names))
    return {name.replace("-", "_").replace("pillow", "PIL").removesuffix("_cpu") for name in brought}


def test_a_hint_names_an_extra_that_brings_the_package() -> None:
    hints = set[tuple[str, str]]()
    for path in python_files("shard_gym", *LINKED):
        hints |= set(re.findall(r"missing_extra\(\s*\"([\w-]+)\", \"(\w+)\"", (REPO / path).read_text()))
    assert len(hints) > 8
    assert [hint for hint in sorted(hints) if hint[0].replace("-", "_") not in distributions_of(hint[1])] == []


def test_make_installs_what_tests_skip_without() -> None:
    installed = distributions_of("dev") | distributions_of("real")
    installed |= set(re.findall(r"--no-deps '(\w+)==", (REPO / "Makefile").read_text()))
    installed |= {"rl4co"}  # `make check-libraries-rl4co` runs the tests that skip without it
    asked = set[str]()
    for path in python_files("tests"):
        asked |= set(re.findall(r"importorskip\(\"(\w+)", (REPO / path).read_text()))
    assert asked - installed == set()
    assert "minari" in asked


def test_the_real_extra_pins_a_torch_that_constraints_allow() -> None:
    real = " ".join(project()["project"]["optional-dependencies"]["real"])
    pinned = re.search(r"^torch==(\d+\.\d+)\.\d+$", (REPO / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned, "constraints.txt names no version of torch"
    assert f"torch=={pinned.group(1)}.*" in real
