"""Pictures of tasks with host memory: which part of each shard lies in HBM."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest

from shard_gym.agents import make_agent
from shard_gym.envs.placement.rendering.view import MAX_SPLITS
from shard_gym.planning import explain
from shard_gym.planning.explanation import view_of
from shard_gym.plans import ShardingPlan, plan_of_placement, row_wise
from shard_gym.tasks import load_suite

pytest.importorskip("matplotlib")

from shard_gym.envs.placement.rendering.figure import IN_HOST, draw, render_rgb


def pixels_like(view: Any, color: str) -> int:
    wanted = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)], np.uint8)
    return int((render_rgb(view) == wanted).all(axis=2).sum())


@pytest.mark.parametrize("split_plan", [False, True])
def test_a_picture_shows_which_part_of_each_shard_is_in_hbm(split_plan: bool) -> None:
    task = load_suite("tier-4")[0]
    assert task.topology.host is not None
    placement = np.asarray(make_agent("size-greedy").place(task))
    plan = plan_of_placement(placement, task.tables)
    largest = int(task.tables.memory_bytes.argmax())
    if split_plan:
        shardings = list(plan.tables)
        shardings[largest] = row_wise(task.tables, largest, task.topology)
        plan = ShardingPlan(tuple(shardings))
    explanation = explain(replace(task, splittable=split_plan), plan if split_plan else placement)
    view = view_of(explanation)
    in_host = np.bincount(explanation.devices, explanation.host_bytes, task.num_devices)
    assert view.host_memory_used.tolist() == in_host.tolist()
    tables = [table for table, _ in view.splits()]
    assert tables == sorted(tables, key=lambda table: -sum(view.host_bytes(table)))
    assert len(tables) == MAX_SPLITS
    figure = draw(view)
    boxes = [(label.get_text(), label.get_window_extent()) for axes in figure.axes for label in axes.texts]
    assert all(box.x1 <= figure.bbox.width for _, box in boxes)
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        apart = a.x1 <= b.x0 or b.x1 <= a.x0 or a.y1 <= b.y0 or b.y1 <= a.y0
        assert apart, f"{one!r} touches {other!r}"
    words = " ".join(words for words, _ in boxes)
    assert "HBM | host memory" in words
    assert f"{task.tables.names[tables[0]]} (" in words
    assert pixels_like(view, IN_HOST) > 0
    roomy = replace(task.topology, host=replace(task.topology.host, hbm_bytes=2**40))
    assert pixels_like(replace(view, task=replace(task, topology=roomy)), IN_HOST) == 0
    assert sum(view.host_bytes(largest)) == int(explanation.host_bytes[explanation.shards[:, 0] == largest].sum())


def test_frames_with_host_memory_have_one_size() -> None:
    env = gymnasium.make("shard_gym:EmbeddingPlacement-v0", suite="tier-4", render_mode="rgb_array")
    env.reset(seed=0, options={"task": 0})
    sizes = {np.asarray(env.render()).shape}
    over, step = False, 0
    while not over:
        mask = env.unwrapped.action_masks()  # type: ignore[attr-defined]
        *_, over, _, _ = env.step(int(np.flatnonzero(mask)[-1]))
        step += 1
        if step in (1, 4) or over:
            sizes.add(np.asarray(env.render()).shape)
    assert len(sizes) == 1
