"""Writes what docs/design.md shows of the code, which room imports which: `python tools/dependency_diagram.py`.

A room is a folder directly below shard_gym. `ROOMS` says which room may import which, and `INNER` the same of the parts
of a room. They are the only places that do: tests/test_packaging.py checks the imports with the functions of this file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from shard_gym.common.io.files import write_atomically
from shard_gym.common.io.markdown import table, with_block

ROOT = Path(__file__).resolve().parents[1]
DESIGN = ROOT / "docs" / "design.md"

Levels = tuple[tuple[str, ...], ...]
OTHERS = "*"  # stands for all parts that are in no other level: a new solver needs no line here

ROOMS: Levels = (
    ("common",),
    ("tables",),
    ("hardware",),
    ("plans",),
    ("cost_models",),
    ("tasks",),
    ("envs", "interop"),
    ("evaluation",),
    ("agents",),
    ("planning", "replanning"),
    ("__init__",),
    ("leaderboard",),
    ("cli",),
    ("__main__",),
)
"""Rooms from the lowest level to the highest. A room imports rooms of lower levels, and no other of its own level."""

INNER: Mapping[str, Levels] = {
    "cost_models": (("base",), ("analytical",), ("bounds", "neural"), ("__init__",), ("measured",), ("fitting",)),
    "tasks": (("task",), ("sampler", "forms", "groups"), ("problems",), ("suites",)),
    "agents": (
        ("base",),
        ("search", "published"),
        ("registry",),  # names solvers by path: what is made from it, or loaded, is imported on first use
        ("training",),
        (OTHERS,),
        ("neuroshard",),
        ("__init__",),
        ("named",),
    ),
    "replanning": (("drift",), ("env",), ("drawing",), ("problem", "drifting"), ("build", "agents")),
}
"""The same of the parts of a room, each a folder or a module in it; `__init__` is its face, where parts import that."""

LINKED = ("agents", "cost_models")  # folders at the top that are imported as parts of shard_gym
Imports = Mapping[str, frozenset[str]]  # module or package -> those it imports


@cache
def modules() -> dict[str, Path]:
    """Every module of the package, by the name under which it is imported."""
    found = {}
    for folder in ("shard_gym", *LINKED):
        for path in sorted((ROOT / folder).rglob("*.py")):
            relative = path.relative_to(ROOT)
            if not (relative.parts[0] == "shard_gym" and relative.parts[1] in LINKED):  # reached through a link
                found[module_name(relative)] = path
    return found


def module_name(path: Path) -> str:
    """The name under which a file, relative to the root, is imported: shard_gym.agents for agents/__init__.py."""
    parts = (("shard_gym",) if path.parts[0] in LINKED else ()) + path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(tree: ast.AST, module: str, *, is_package: bool, everywhere: bool) -> Iterator[str]:
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
            yield from imported_names(node, module, is_package=is_package, everywhere=everywhere)


def _runs_later(node: ast.AST) -> bool:
    if isinstance(node, ast.If):  # `if TYPE_CHECKING:` never runs
        return ast.unparse(node.test).endswith("TYPE_CHECKING")
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


@cache
def module_imports(*, everywhere: bool) -> dict[str, frozenset[str]]:
    """For every module the modules of the package that it imports: `everywhere`, or only when it is imported itself."""
    found = {}
    for module, path in modules().items():
        names = imported_names(_tree(path), module, is_package=path.name == "__init__.py", everywhere=everywhere)
        found[module] = frozenset(map(_defining_module, names)) - {"", module}
    return found


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _defining_module(name: str) -> str:
    """The module of the package that the imported name is or comes from; empty for other packages."""
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name


def package(module: str) -> str:
    """The room of a module: "envs" for shard_gym.envs.placement.env."""
    return module.split(".")[1] if "." in module else "__init__"


def _part(module: str) -> str:
    """The part of its room that a module is in: "placement" for shard_gym.envs.placement.env."""
    return [*module.split("."), "__init__"][2]


def level(name: str, levels: Levels) -> int:
    """The number of the level of a room or a part, the lowest 0."""
    for wanted in (name, OTHERS):
        for number, names in enumerate(levels):
            if wanted in names:
                return number
    raise LookupError(f"{name!r} has no level. Add it to ROOMS or INNER in tools/dependency_diagram.py.")


def upward_imports(imports: Imports) -> list[str]:
    """The imports that do not go down: of a room by one that is not above it, and the same of the parts of a room."""
    found = []
    for module, targets in imports.items():
        for target in sorted(targets):
            own, other, levels = package(module), package(target), ROOMS
            if own == other:
                own, other, levels = _part(module), _part(target), INNER.get(own, ())
                if own == "__init__":  # the face of a room names what its parts have
                    continue
            if own != other and levels and level(other, levels) >= level(own, levels):
                found.append(f"{module} imports {target}")
    return found


@cache
def face(module: str) -> frozenset[str]:
    """The names in the list `__all__` of a package; empty for a module, and for one that computes its list."""
    path = modules()[module]
    if path.name != "__init__.py":
        return frozenset()
    for node in _tree(path).body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "__all__"
            and isinstance(node.value, ast.List)
        ):
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def past_faces() -> list[str]:
    """Names that a module of another room imports from behind a face that has them."""
    found = []
    for module, path in modules().items():
        for node in _tree(path).body:
            if not isinstance(node, ast.ImportFrom) or node.module not in modules() or package(module) == "__init__":
                continue
            above = [node.module.rsplit(".", back)[0] for back in range(1, node.module.count("."))]
            outside = [each for each in above if not f"{module}.".startswith(f"{each}.")]
            names = {alias.name for alias in node.names} - face(node.module)
            found += [
                f"{module} imports {node.module}.{name}" for each in outside for name in sorted(names & face(each))
            ]
    return found


def circles(imports: Imports) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others; empty if there are none."""
    reached = {module: _reachable(imports, module) for module in imports}
    groups = [sorted(other for other in reached[module] if module in reached[other]) for module in imports]
    return [list(group) for group in sorted(set(map(tuple, groups)) - {()})]


def _reachable(imports: Imports, start: str) -> set[str]:
    reached: set[str] = set()
    pending = list(imports.get(start, ()))
    while pending:
        module = pending.pop()
        if module not in reached:
            reached.add(module)
            pending += imports.get(module, ())
    return reached


def package_imports() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for module, targets in module_imports(everywhere=False).items():
        if package(module) not in ROOMS[0]:
            of_package = found.setdefault(package(module), set())
            of_package |= {package(target) for target in targets} - {package(module), *ROOMS[0]}
    return {name: frozenset(targets) for name, targets in found.items()}


def without_implied(imports: Imports) -> dict[str, frozenset[str]]:
    """The same without arrows that follow from others: no a -> c where a -> b and b -> c. There must be no circles."""
    found = {}
    for name, targets in imports.items():
        implied = set().union(*(_reachable(imports, target) for target in targets))
        found[name] = frozenset(targets - implied)
    return found


def diagram() -> str:
    """The rooms as a Mermaid diagram, the highest level first; an arrow means "imports".

    The lowest room, which every other may import, and arrows that follow from others are left out.
    """
    arrows = without_implied(package_imports())
    names = [name for names in reversed(ROOMS) for name in names if name in arrows and not name.startswith("__")]
    nodes = [f'  {name}["{name}/"]' for name in names]
    lines = [
        f"  {name} --> {target}" for name in names for target in sorted(arrows[name]) if not target.startswith("__")
    ]
    return "\n".join(["```mermaid", "flowchart TD", *nodes, *lines, "```"])


def package_table() -> str:
    """Every room with the first line of its docstring, the highest level first."""
    rows = [
        (f"`{_folder(name)}/`", _summary(modules()[f"shard_gym.{name}"]))
        for names in reversed(ROOMS)
        for name in names
        if not name.startswith("__")
    ]
    return table(("room", "content"), rows, left=2)


def _folder(name: str) -> str:
    return name if name in LINKED else f"shard_gym/{name}"


def _summary(path: Path) -> str:
    paragraph = (ast.get_docstring(_tree(path)) or "").partition("\n\n")[0]
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`])", " ".join(paragraph.split()), maxsplit=1)[0]


def page() -> str:
    return with_block(DESIGN, "dependencies", f"{diagram()}\n\n{package_table()}")


if __name__ == "__main__":
    write_atomically(DESIGN, page().encode())
