"""A learner without a network, registered as "walk": quick, and all its state is one array; and a pretended device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from shard_gym.agents import Agent, AgentEntry
from shard_gym.agents.training import LEARNERS, Learner, LearnerEntry, Report, learner
from shard_gym.common.io.arrays import Arrays, require_arrays
from shard_gym.tasks import Task, TaskSuite, load_suite


class Walker(Agent):
    """Places every table on the device its number says."""

    def __init__(self, name: str, position: float, seed: int, shift: int = 0) -> None:
        self.name, self.position, self.seed, self.shift = name, position, seed, shift

    def place(self, task: Task) -> Any:
        return np.full(task.num_tables, (int(self.position) + self.shift) % task.num_devices)


class Walk(Learner):
    """Walks at random, and evaluates one true cost in each step."""

    def __init__(
        self, suite: TaskSuite, cost_model: Any, seed: int, *, name: str = "walk", iterations: int = 4
    ) -> None:
        super().__init__(suite, cost_model, seed)
        self.name = name
        self.iterations = iterations
        self.position = np.zeros(())

    def iterate(self) -> Report:
        self.position = self.position + self.rng().normal() + 0.1 * self.position
        task = self.suite[0]
        placement = self.rng(1).integers(task.num_devices, size=task.num_tables)
        cost = self.cost_model.estimate(placement, task.tables, task.topology).total_ms
        return Report(cost, {"position": float(self.position)})

    def state(self) -> Arrays:
        return {"position": self.position}

    def load_state(self, arrays: Arrays) -> None:
        require_arrays("The state", arrays, self.state())
        self.position = arrays["position"]

    def weights(self) -> Arrays:
        return {"position": self.position}

    def about(self) -> dict[str, Any]:
        return {"legs": 2}

    def agent(self) -> Walker:
        return Walker(self.name, float(self.position), self.seed)


def load_walk(arrays: Arrays, about: dict[str, Any], cost_model: Any, seed: int, *, shift: int = 0) -> Walker:
    assert about["legs"] == 2
    require_arrays("The walk", arrays, {"position": np.zeros(())})
    return Walker(about["agent"], float(arrays["position"]), seed, shift)


@pytest.fixture(autouse=True)
def _walk(monkeypatch: pytest.MonkeyPatch) -> None:
    walk = LearnerEntry("walk_for_tests:Walk", "walk_for_tests:load_walk")
    monkeypatch.setitem(LEARNERS, "walk", AgentEntry(learners=(walk,)))
    monkeypatch.setitem(sys.modules, "walk_for_tests", sys.modules[__name__])


@pytest.fixture
def walk() -> type[Walk]:
    return Walk


@pytest.fixture
def suite() -> TaskSuite:
    return load_suite("dlrm-20x4", "train")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "x"


aten = torch.ops.aten
MIXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
"""Operators that also take tensors of the CPU, as indices."""


@pytest.fixture
def pretended_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A device like a GPU that is not there, by name: tensors of it and of the CPU in one operator are an error.

    Its tensors are on torch's "meta", but have contents, which the CPU computes.
    """
    monkeypatch.setattr(learner, "DEVICES", ("cpu", "meta"))
    optimizer = sys.modules[torch.optim.Optimizer.__module__]
    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: ["cpu", "meta"])
    with _ThroughCpu(), _Pretended():
        yield "meta"
    torch.__future__.set_swap_module_params_on_conversion(False)


class OnDevice(torch.Tensor):
    """A tensor that says that it is on "meta"; `held` is its content."""

    held: torch.Tensor
    is_meta = False  # tensors that are have no content

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> OnDevice:
        made: OnDevice = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), dtype=held.dtype, device="meta"
        )
        made.held = held
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnDevice({self.held})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


class _Pretended(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


class _ThroughCpu(TorchFunctionMode):
    """Arrays become tensors of the CPU first: what torch makes of them on "meta", also of indices, has no content."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__ and isinstance(args[1], tuple):
            indices = tuple(torch.tensor(each) if isinstance(each, list) else each for each in args[1])
            args = (args[0], indices)
        if func in (torch.tensor, torch.as_tensor) and (kwargs or {}).get("device") is not None:
            requires_grad = kwargs.pop("requires_grad", False)
            made = func(*args, **{**kwargs, "device": "cpu"}).to(kwargs["device"])
            return made.requires_grad_(requires_grad)
        return func(*args, **(kwargs or {}))


def mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The value with every tensor in its lists, tuples and dicts changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)([mapped(each, change) for each in value])
    if isinstance(value, dict):
        return {key: mapped(each, change) for key, each in value.items()}
    return value


def computed(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operator returns, on the device if its tensors are there."""
    here: list[torch.Tensor] = []
    written: dict[int, OnDevice] = {}  # by what works in place

    def content(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, OnDevice):
            written[id(tensor.held)] = tensor
            return tensor.held
        here.append(tensor)
        return tensor

    plain, named = mapped(args, content), mapped(kwargs, content)
    there = bool(written)
    assert not any(each.is_meta for each in here), f"{func} has a tensor without content."
    if func is aten.copy_.default:
        there = isinstance(args[0], OnDevice)
    elif there and func not in MIXING and any(each.dim() for each in here):
        raise RuntimeError(f"{func} has tensors of both devices.")
    if named.get("device") is not None:
        there = torch.device(named["device"]).type == "meta"
        named = {**named, "device": torch.device("cpu")}
    found = func(*plain, **named)
    return mapped(found, lambda each: written[id(each)] if id(each) in written else OnDevice(each)) if there else found
