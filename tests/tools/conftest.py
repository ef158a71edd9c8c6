"""The scripts in tools/, and those in other folders, as modules."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="package")
def tool() -> Callable[[str], ModuleType]:
    sys.path[:0] = [str(ROOT / folder) for folder in ("benchmarks", "examples", "tools")]  # as for scripts that run

    def load(name: str, folder: str = "tools") -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"{folder}_{name}", ROOT / folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module

    return load
