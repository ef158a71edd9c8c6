"""Writes what docs/design.md shows of the code, who imports whom: `python tools/dependency_diagram.py`.

A package is here a module or a folder directly below shard_gym.
`LAYERS` says which package may import which. It is the only place that does: tests/test_packaging.py checks the imports
with the functions of this file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from shard_gym.io.files import write_atomically
from shard_gym.io.markdown import table, with_block

ROOT = Path(__file__).resolve().parents[1]
DESIGN = ROOT / "docs" / "design.md"

LAYERS = (
    ("errors", "text", "checks", "system", "io", "jobs"),
    (
        *(
            "lookup_statistics",
            "row_popularity",
            "table_features",
            "table_arrays",
            "tables",
            "workload",
            "cluster",
            "memory_caps",
            "topology",
            "topology_json",
            "hardware_profile",
        ),
        *("hardware", "placement", "sharding", "pools", "training_memory", "hbm_split", "index_dedup"),
    ),
    ("cost_models",),
    (
        *(
            "tasks",
            "task_sampler",
            "grouping",
            "hot_rows",
            "served_rows",
            "forms",
            "drift",
            "suites",
            "envs",
            "problems",
        ),
        *("evaluation", "explain", "comparison", "trust", "interop"),
    ),
    ("agents",),
    ("leaderboard", "offline", "plots", "__init__"),
    ("cli", "__main__"),
)
"""Packages from the lowest layer to the highest. A package imports packages of its own layer and of lower ones."""

LAYER_NAMES = ("shared helpers", "problem", "cost", "environments", "agents", "comparison", "command line")

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


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _defining_module(name: str) -> str:
    """The module of the package that the imported name is or comes from; empty for other packages."""
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name


def package(module: str) -> str:
    """The module or folder directly below shard_gym: "envs" for shard_gym.envs.placement.env."""
    return module.split(".")[1] if "." in module else "__init__"


def layer(module: str) -> int:
    """The number of the module's layer, the lowest 0."""
    for number, packages in enumerate(LAYERS):
        if package(module) in packages:
            return number
    raise LookupError(f"{module} has no layer. Add {package(module)!r} to LAYERS in tools/dependency_diagram.py.")


def upward_imports(imports: Imports) -> list[str]:
    return [
        f"{module} (layer {layer(module)}) imports {target} (layer {layer(target)})"
        for module, targets in imports.items()
        for target in sorted(targets)
        if layer(target) > layer(module)
    ]


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
        if layer(module) > 0:
            of_package = found.setdefault(package(module), set())
            of_package |= {package(target) for target in targets if layer(target) > 0} - {package(module)}
    return {name: frozenset(targets) for name, targets in found.items()}


def without_implied(imports: Imports) -> dict[str, frozenset[str]]:
    """The same without arrows that follow from others: no a -> c where a -> b and b -> c. There must be no circles."""
    found = {}
    for name, targets in imports.items():
        implied = set().union(*(_reachable(imports, target) for target in targets))
        found[name] = frozenset(targets - implied)
    return found


def diagram() -> str:
    """The packages by layer as a Mermaid diagram, the highest layer first; an arrow means "imports".

    The lowest layer, which every package may import, and arrows that follow from others are left out.
    """
    arrows = without_implied(package_imports())
    shown = [[name for name in packages if name in arrows and not name.startswith("__")] for packages in LAYERS]
    lines = ["```mermaid", "flowchart TD"]
    for number in range(len(LAYERS) - 1, 0, -1):
        nodes = [f'    {name}["{_label(name)}"]' for name in shown[number]]
        lines += [f'  subgraph layer{number}["{LAYER_NAMES[number]}"]', *nodes, "  end"]
    for name in (name for packages in reversed(shown) for name in packages):
        lines += [f"  {name} --> {target}" for target in sorted(arrows[name]) if not target.startswith("__")]
    return "\n".join([*lines, "```"])


def package_table() -> str:
    """Every package with its layer and the first line of its docstring, the highest layer first."""
    rows = []
    for title, packages in zip(reversed(LAYER_NAMES), reversed(LAYERS), strict=True):
        for name in packages:
            if not name.startswith("__"):
                rows.append((title, f"`{_label(name)}`", _summary(modules()[f"shard_gym.{name}"])))
    return table(("layer", "package", "content"), rows, left=3)


def _label(package_name: str) -> str:
    return f"{package_name}/" if modules()[f"shard_gym.{package_name}"].name == "__init__.py" else f"{package_name}.py"


def _summary(path: Path) -> str:
    paragraph = (ast.get_docstring(_tree(path)) or "").partition("\n\n")[0]
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`])", " ".join(paragraph.split()), maxsplit=1)[0]


def page() -> str:
    return with_block(DESIGN, "dependencies", f"{diagram()}\n\n{package_table()}")


if __name__ == "__main__":
    write_atomically(DESIGN, page().encode())
