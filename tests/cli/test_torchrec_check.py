"""`report-cost-model --torchrec`, with times that are made up; tests/cost_models/measured/test_torchrec.py times."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shard_gym.cost_models.fitting import PlacementSampler, load_measurements
from shard_gym.interop import torchrec_timing
from shard_gym.interop.torchrec_timing import MAX_BYTES, PlanTimes, plans_like, tau, tau_within_tables


def made_up(sampler: PlacementSampler, count: int) -> Iterator[PlanTimes]:
    """Steps take twice the phases, but those of the last two plans are swapped."""
    order = [*range(count - 2), count - 1, count - 2]
    for place in range(count):
        number = 5 * place + 4
        plan = sampler.sample(number).plan
        assert plan is not None
        yield PlanTimes(number, plan, 1.0 + place, 2.0 * (1 + order[place]))


def test_both_times_of_each_plan_are_printed(run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchrec_timing, "timed_plans", made_up)
    monkeypatch.chdir(data.parent)
    before = sorted(data.parent.rglob("*"))
    out = run.ok("report-cost-model", data, "--torchrec", 10, columns=120).out
    assert "10 random plans on 2 devices, batch 2,048" in out
    rows = [line.split() for line in out.splitlines() if line[:4].strip().isdecimal()][-10:]
    assert [row[0] for row in rows] == [str(5 * place + 4) for place in range(10)]
    assert [row[-3:] for row in rows[:2]] == [["1.000", "2.000", "2.00"], ["2.000", "4.000", "2.00"]]
    assert any("row_wise" in " ".join(row) or "data_parallel" in " ".join(row) for row in rows)
    text = " ".join(out.split())
    assert "tau between measured costs and TorchRec's steps is 0.956 over 10 plans, and 1.000 among plans of" in text
    assert "A step takes 2.00 times as long" in text
    assert "exchanges the indices" in text
    assert sorted(data.parent.rglob("*")) == before  # no page


def test_plans_of_the_same_tables_are_ranked_by_themselves(data: Path) -> None:
    sampler = plans_like(load_measurements(data).index)
    times = list(made_up(sampler, 10))
    assert tau(times) == pytest.approx(43 / 45)
    assert tau_within_tables(times) == pytest.approx(1.0)  # of 8 plans; the other two are too few
    assert tau_within_tables(times[:2]) is None
    names = {sampler.sample(each.number).tables.names for each in times[:8]}
    assert len(names) == 1


def test_plans_are_those_of_the_data_set_within_the_memory(data: Path) -> None:
    index = load_measurements(data).index
    sampler = plans_like(index)
    assert sampler.workload == index.workload
    assert sampler.num_devices == 2
    assert sampler.max_bytes == 2**30
    large = index.__class__(**{**vars(index), "sampling": {**index.sampling, "max_bytes": 2**40}})
    assert plans_like(large).max_bytes == MAX_BYTES
    assert sampler.sample(0).plan is not None
    assert plans_like(index, "cpu").sample(4).topology.device.name == "CPU process"


def test_a_torchrec_that_is_missing_is_named(run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fbgemm_gpu")
    monkeypatch.setitem(sys.modules, "torchrec", None)
    wide = data.parent / "wide"
    run.refused("needs the package 'torchrec'", "report-cost-model", data, "--torchrec", 2)
    assert not wide.exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--torchrec", 1), "--torchrec is how many plans are timed, 2 or more, not 1"),
        (("--torchrec", 2, "--models", "a.safetensors"), "leave --models out"),
        (("--torchrec", 2, "--profile", "h300"), "no hardware profile named 'h300'"),
    ],
)
def test_bad_options_are_refused(run, data: Path, args: tuple[object, ...], words: str) -> None:
    run.refused(words, "report-cost-model", data, *args)


def test_a_data_set_that_was_not_drawn_has_no_random_plans(data: Path) -> None:
    from shard_gym.common.errors import InvalidOptionError

    index = load_measurements(data).index
    for sampling in ({"designed": "work"}, {**index.sampling, "pools": 3}, {**index.sampling, "max_bytes": "x"}):
        with pytest.raises(InvalidOptionError, match="`shard-gym collect` made"):
            plans_like(index.__class__(**{**vars(index), "sampling": sampling}))
