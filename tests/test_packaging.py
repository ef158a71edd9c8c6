"""What the project promises as a whole: dependencies, import direction, content of the wheel, and its project files."""

from __future__ import annotations

import ast
import fnmatch
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPO = Path(__file__).resolve().parents[1]
LINKED = ("agents", "cost_models")

# From the lowest layer to the highest. A module belongs to the longest name here that it starts with.
LAYERS: dict[str, int] = {
    name: number
    for number, names in enumerate(
        (
            ("errors", "text", "checks", "system", "io", "tables", "topology", "hardware", "placement", "pools"),
            ("cost_models",),
            ("tasks", "suites", "envs", "evaluation", "explain"),
            ("agents",),
            (
                "leaderboard",
                "cli",
                "experiments",
                "__main__",
                "registration",
                "",
            ),  # "" is shard_gym itself, which registers the environments
        )
    )
    for name in names
}


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


def module_name(path: Path) -> str:
    """The name under which the file is imported: shard_gym.agents for agents/__init__.py."""
    parts = as_packaged(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, module: str, *, is_package: bool, everywhere: bool) -> Iterator[str]:
    """The absolute names that `tree` imports: `everywhere`, or only those that run when the module is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = node.level - is_package
            base = module.split(".")[: -up or None] if node.level else []
            source = ".".join([*base, *filter(None, [node.module])])
            yield from (f"{source}.{alias.name}" for alias in node.names)
        elif everywhere or not _runs_later(node):
            yield from imports(node, module, is_package=is_package, everywhere=everywhere)


def _runs_later(node: ast.AST) -> bool:
    if isinstance(node, ast.If):  # `if TYPE_CHECKING:` never runs
        return ast.unparse(node.test).endswith("TYPE_CHECKING")
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def imports_of(path: Path, *, everywhere: bool) -> list[str]:
    tree = ast.parse((REPO / path).read_text(), str(path))
    return list(imports(tree, module_name(path), is_package=path.name == "__init__.py", everywhere=everywhere))


def layer_of(imported: str) -> int:
    """The layer of "shard_gym.tables.Tables" or the like."""
    part = imported.split(".")[1] if "." in imported else ""
    return LAYERS.get(part, LAYERS[""])


SAMPLE = """
import agents.base
from . import near
from .. import errors
from ..envs.real import env as e
if TYPE_CHECKING:
    from shard_gym import cli
class C:
    import inner
def later():
    import torch
"""


@pytest.mark.parametrize(
    ("everywhere", "expected"),
    [
        (False, {"agents.base", "p.q.near", "p.errors", "p.envs.real.env", "inner"}),
        (True, {"agents.base", "p.q.near", "p.errors", "p.envs.real.env", "inner", "shard_gym.cli", "torch"}),
    ],
)
def test_imports_are_read_from_the_source_with_relative_names_resolved(everywhere: bool, expected: set[str]) -> None:
    tree = ast.parse(SAMPLE)
    assert set(imports(tree, "p.q.r", is_package=False, everywhere=everywhere)) == expected
    assert set(imports(tree, "p.q", is_package=True, everywhere=everywhere)) == expected


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


def test_the_linked_folders_are_imported_only_as_parts_of_shard_gym() -> None:
    offenders = {
        str(path): name
        for path in python_files()
        for name in imports_of(path, everywhere=True)
        if name.partition(".")[0] in LINKED
    }
    assert offenders == {}, "Import shard_gym.agents and shard_gym.cost_models instead."


def test_the_links_are_relative_and_stand() -> None:
    for name in LINKED:
        assert os.readlink(REPO / "shard_gym" / name) == os.path.join("..", name)
        assert (REPO / "shard_gym" / name / "__init__.py").is_file()


def test_lower_layers_never_import_upper_ones() -> None:
    offenders = [
        f"{path} (layer {layer_of(module)}) imports {name} (layer {layer_of(name)})"
        for path in python_files("shard_gym", *LINKED)
        for module in [module_name(path)]
        for name in imports_of(path, everywhere=False)
        if name.partition(".")[0] == "shard_gym" and layer_of(name) > layer_of(module)
    ]
    assert offenders == []


def test_every_part_of_the_package_has_a_layer() -> None:
    parts = {path.with_suffix("").parts[1] for path in packaged_files() if path.suffix == ".py"}
    assert parts - {"__init__"} <= set(LAYERS), "Give the new part its place in LAYERS."


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files in a wheel that is built from a copy of the project."""
    copy, out = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("wheel")
    for name in ("shard_gym", *LINKED):
        shutil.copytree(REPO / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPO / path, copy)
    build = f"import setuptools.build_meta; setuptools.build_meta.build_wheel({str(out)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=copy, check=True, capture_output=True, timeout=120)
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_a_wheel_holds_all_code_and_data_under_shard_gym(wheel_names: set[str]) -> None:
    suffixes = (".py", ".typed", ".json", ".npz", ".safetensors", ".html", ".css", ".js")
    expected = {path.as_posix() for path in packaged_files() if path.suffix in suffixes}
    assert expected - wheel_names == set()


def test_a_wheel_installs_no_other_top_level_name(wheel_names: set[str]) -> None:
    version = project()["project"]["version"]
    assert {name.partition("/")[0] for name in wheel_names} == {"shard_gym", f"shard_gym-{version}.dist-info"}


def test_no_source_file_is_longer_than_400_lines() -> None:
    lengths = {str(path): len((REPO / path).read_text().splitlines()) for path in python_files()}
    assert {path: lines for path, lines in lengths.items() if lines > 400} == {}


def test_no_file_names_a_place_on_one_machine() -> None:
    places = re.compile(r"(?<![\w.])/(?:work|home|root|Users|opt)/\w|\.\./sha" + "red")
    offenders = {
        str(path): match.group()
        for path in project_files()
        for match in [places.search((REPO / path).read_text(errors="replace"))]
        if match
    }
    assert offenders == {}


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


def test_the_real_extra_pins_a_torch_that_constraints_allow() -> None:
    real = " ".join(project()["project"]["optional-dependencies"]["real"])
    pinned = re.search(r"^torch==(\d+\.\d+)\.\d+$", (REPO / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned, "constraints.txt names no version of torch"
    assert f"torch=={pinned.group(1)}.*" in real
