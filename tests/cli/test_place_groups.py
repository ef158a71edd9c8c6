"""`shard-gym place --sync-every`: groups of devices that hold all tables each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shard_gym.common.errors import DamagedFileError
from shard_gym.cost_models import AnalyticalShardingModel
from shard_gym.hardware import hardware_profile
from shard_gym.hardware.profile_files import usable_bytes
from shard_gym.plans import ShardingPlan, plan_from_json, plan_of_placement, read_plan, write_plan
from shard_gym.plans.plan import Groups
from shard_gym.tables import load_pool
from shard_gym.tasks import PROBLEMS, Task
from shard_gym.tasks.groups import task_of_group

PLACE = ("place", "--tables", "merlin-small", "--hardware", "h100-dgx", "--num-devices", 16)
QUICK = ("--option", "max_queries=500")


def test_a_plan_has_the_groups_that_cost_least(run: Any, tmp_path: Path) -> None:
    shown = run.ok(*PLACE, "--sync-every", 300, *QUICK, "--out", tmp_path / "plan.json")
    content = json.loads((tmp_path / "plan.json").read_text())
    groups = Groups(*content["groups"])
    assert groups.count > 1
    tables, profile = load_pool("merlin-small").tables, hardware_profile("h100-dgx")
    topology = profile.topology(16, memory_cap_bytes=usable_bytes(profile.device.memory_bytes, 0.15))
    task = Task("mine", tables, topology, splittable=True, sync_every=300)
    own = task_of_group(task, groups)
    plan = plan_from_json(content["plan"], own.tables, own.topology)
    answer = ShardingPlan(plan.tables, groups)
    assert content["cost_ms"] == PROBLEMS["sharding"].cost_ms(answer, task, AnalyticalShardingModel())
    text = " ".join(shown.out.split())
    assert f"{groups.count} {groups.layout} groups of {own.num_devices} device" in text
    assert "Averaging them every 300 iterations costs" in text
    alone = json.loads(run.ok(*PLACE, "--agent", "plan-search", *QUICK).out)
    assert "groups" not in alone
    assert content["cost_ms"] < alone["cost_ms"]


def test_a_plan_for_groups_is_shown_and_compared(run: Any, tmp_path: Path) -> None:
    file, every = tmp_path / "plan.json", ("--sync-every", 300)
    content = json.loads(run.ok(*PLACE, *every, *QUICK).out)
    file.write_text(json.dumps(content))
    show = ("show", *PLACE[1:], "--plan", file)
    shown = " ".join(run.ok(*show, *every).out.split())
    assert "Averaging them every 300 iterations costs" in shown
    assert f"cost {content['cost_ms']:.4g} ms" in shown
    again = json.loads(run.ok(*PLACE, *every, *QUICK, "--compare", file).out)["compared"]
    assert again["cost_ms"] == content["cost_ms"]
    other = run.ok(*PLACE, "--agent", "plan-search", *every, *QUICK, "--option", "max_shards=1", "--compare", file)
    assert "costs as much as this plan, within 0.5%" in " ".join(other.err.split())
    for command in (show, (*PLACE, "--compare", file)):
        refused = run(*command)
        assert refused.code == 2
        assert "Say with --sync-every after how many iterations" in " ".join(refused.err.split())
    odd = run.ok("show", *PLACE[1:-1], 17, "--plan", file, *every)
    assert "is a plan for 16 devices, not for 17. What follows is of these." in " ".join(odd.err.split())
    one = run.ok(*PLACE, "--agent", "lookup-greedy", "--out", tmp_path / "one.json")
    assert one.code == 0
    between = run.ok(*PLACE, *every, *QUICK, "--compare", tmp_path / "one.json")
    groups = Groups(*content["groups"])
    assert f"first plan is for 1 group of devices and the other for {groups.count} groups" in between.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--sync-every", -1), "--sync-every must be an integer from 0"),
        (("--sync-every", 10, "--agent", "lane-greedy"), "which 'lane-greedy' does not plan"),
    ],
)
def test_groups_that_cannot_be_are_refused(run: Any, options: tuple[object, ...], says: str) -> None:
    failed = run(*PLACE, *options)
    assert failed.code == 2
    assert says in " ".join(failed.err.split())


def test_a_file_of_a_plan_keeps_its_groups_under_its_checksum(tmp_path: Path) -> None:
    tables = load_pool("merlin-small").tables
    task = Task("mine", tables, hardware_profile("h100-dgx").topology(16), splittable=True, sync_every=100)
    own = task_of_group(task, Groups(4, "contiguous"))
    plan = ShardingPlan(plan_of_placement([0] * len(tables), tables).tables, Groups(4, "contiguous"))
    write_plan(tmp_path / "plan.json", plan, own.tables, own.topology)
    assert read_plan(tmp_path / "plan.json", own.tables, own.topology) == plan
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(text.replace("contiguous", "strided"))
    with pytest.raises(DamagedFileError, match="does not have the SHA-256"):
        read_plan(tmp_path / "plan.json", own.tables, own.topology)
