"""Placements are executed, times are cached, and nothing is left behind."""

from __future__ import annotations

import gzip
import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import (
    DamagedFileError,
    DeviceMemoryError,
    InvalidOptionError,
    InvalidTablesError,
    MeasurementError,
    MemoryInUseError,
    UnknownNameError,
)
from shard_gym.cost_models import AnalyticalCostModel
from shard_gym.cost_models.analytical.all_to_all import all_to_all_ms
from shard_gym.cost_models.base import COMMUNICATION, COMPUTE
from shard_gym.cost_models.measured import Machine, MeasuredCostModel, memory, model
from shard_gym.cost_models.measured.job import Job, Part, Repeats, Widths
from shard_gym.evaluation import evaluate
from shard_gym.hardware import hardware_profile
from shard_gym.tables import Tables, load_pool
from shard_gym.tasks import Task, TaskSuite

pytest.importorskip("torch")
pytest.importorskip("fbgemm_gpu", reason="the extra real is not installed")

TOPOLOGY = hardware_profile("cpu").topology(2)
PLACEMENT = np.arange(20) % 2
REPEATS = {"iterations": 3, "warmup": 1, "batches": 2}
QUICK: dict[str, Any] = {"batch_size": 64, **REPEATS, "timeout_s": 60.0, "layout": "parallel"}


def small_tables(count: int = 20) -> Tables:
    """Those of Meta's tables with the fewest rows and few lookups."""
    tables = load_pool("dlrm-2021").tables
    chosen = np.flatnonzero((tables.pooling_factor < 20) & (tables.pooling_factor > 1))
    return tables.select(chosen[np.argsort(tables.num_embeddings[chosen], kind="stable")][:count])


@pytest.fixture(scope="module")
def tables() -> Tables:
    return small_tables()


@pytest.fixture(scope="module")
def shared() -> Iterator[MeasuredCostModel]:
    with MeasuredCostModel("cpu", **QUICK) as model:
        yield model


@pytest.fixture
def measured(forked_workers: None, shared: MeasuredCostModel) -> MeasuredCostModel:
    """Its workers measure; all tests share them."""
    return shared


def test_every_phase_takes_time_and_the_cost_is_their_slowest(measured: MeasuredCostModel, tables: Tables) -> None:
    found = measured.estimate(PLACEMENT, tables, TOPOLOGY)
    assert found.phases_ms.shape == (2, 4)
    assert np.median(found.iterations_ms, axis=0).tolist() == found.phases_ms.tolist()
    assert (found.phases_ms > 0).all()
    assert found.total_ms == pytest.approx(found.phases_ms.max(axis=0).sum())
    assert 0 <= found.spread < 100
    assert found.seconds > 0
    empty = measured.estimate(np.ones(20, np.int64), tables, TOPOLOGY)  # nothing on the first device
    assert empty.phases_ms[0, COMPUTE].tolist() == [0, 0]
    assert (empty.phases_ms[1] > 0).all()
    alone = measured.estimate(np.zeros(20, np.int64), tables, hardware_profile("cpu").topology(1))
    assert alone.phases_ms[0, COMMUNICATION].tolist() == [0, 0]
    assert (alone.phases_ms[0, COMPUTE] > 0).all()


def test_times_are_cached_by_the_tables_on_a_device(quick_workers: None, tables: Tables, tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    with MeasuredCostModel("cpu", **QUICK, cache=path) as model:
        first = model.estimate(PLACEMENT, tables, TOPOLOGY)
    with MeasuredCostModel("cpu", **QUICK, cache=path) as another:
        again = another.estimate(PLACEMENT, tables, TOPOLOGY)
        swapped = another.estimate(1 - PLACEMENT, tables, TOPOLOGY)
        assert another._session is None  # no worker was started
    assert again.seconds == swapped.seconds == 0
    assert again.phases_ms.tolist() == first.phases_ms.tolist()
    assert swapped.phases_ms[::-1, COMPUTE].tolist() == first.phases_ms[:, COMPUTE].tolist()
    with MeasuredCostModel("cpu", **{**QUICK, "batch_size": 32}, cache=path) as other:
        assert other.estimate(PLACEMENT, tables, TOPOLOGY).seconds > 0


def test_a_smaller_batch_measures_the_tables_of_that_batch(measured: MeasuredCostModel, tables: Tables) -> None:
    measured.estimate(PLACEMENT, tables, TOPOLOGY)
    assert measured.estimate(PLACEMENT, tables.at_batch_size(64), TOPOLOGY).seconds == 0
    with pytest.raises(InvalidTablesError, match="does not follow from them"):
        measured.estimate(PLACEMENT, tables.at_batch_size(32), TOPOLOGY)


def test_measuring_again_replaces_what_is_cached(measured: MeasuredCostModel, tables: Tables) -> None:
    first = measured.estimate(PLACEMENT, tables, TOPOLOGY)
    again = measured.measure_again(PLACEMENT, tables, TOPOLOGY)
    assert again.seconds > 0
    assert again.iterations_ms.tolist() != first.iterations_ms.tolist()
    assert measured.estimate(PLACEMENT, tables, TOPOLOGY).iterations_ms.tolist() == again.iterations_ms.tolist()


class Slow(MeasuredCostModel):
    """A machine on which everything takes a quarter of an hour, and a bit more with every measurement."""

    measured = 0

    def _measure(self, jobs: Any, devices: Any) -> Any:
        self.measured += 1
        return np.full((self.repeats.iterations, len(jobs), 4), 1e6 + self.measured)


def test_a_cost_beyond_the_penalty_is_returned_and_warned_of_once(tables: Tables) -> None:
    model = Slow("cpu", **QUICK)
    penalty_ms = model.penalty_ms(tables, TOPOLOGY)
    with pytest.warns(UserWarning, match="failing looks as good") as caught:
        costs = [measure(PLACEMENT, tables, TOPOLOGY).total_ms for measure in (model.estimate, model.measure_again)]
    assert costs == [4e6 + 4, 4e6 + 8]
    (warning,) = caught
    for part in ("4,000,004.000 ms", f"{penalty_ms:,.3f} ms", "batch_size, now 64", "an idle machine"):
        assert part in str(warning.message)
    suite = TaskSuite("slow", [Task(f"slow/{n}", tables, TOPOLOGY) for n in range(2)])
    with pytest.warns(UserWarning, match="failing looks as good") as caught:
        scored = evaluate(lambda task: PLACEMENT, suite, Slow("cpu", **QUICK))
    assert len(caught) == 1
    assert scored.failures == 0


def test_sequential_devices_share_one_worker_and_model_the_exchange(quick_workers: None, tables: Tables) -> None:
    with MeasuredCostModel("cpu", **{**QUICK, "layout": "sequential"}) as sequential:
        found = sequential.estimate(PLACEMENT, tables, TOPOLOGY)
        assert sequential._session is not None
        assert len(sequential._session.pids) == 1
    widths = np.array([tables.select(np.flatnonzero(d == PLACEMENT)).embedding_dim.sum() for d in (0, 1)])
    expected = all_to_all_ms(widths * 4.0 * 64, TOPOLOGY.cluster())
    assert found.phases_ms[:, 1].tolist() == found.phases_ms[:, 2].tolist() == expected.tolist()
    assert (found.phases_ms[:, COMPUTE] > 0).all()


def test_a_cpu_trains_in_fp32_with_rowwise_adagrad_unless_told(tables: Tables) -> None:
    for told in ({}, {"weight_dtype": "fp16", "optimizer": "sgd"}):
        workload = MeasuredCostModel("cpu", **told).as_measured(tables).workload
        expected = {"weight_dtype": "fp32", "optimizer": "rowwise_adagrad", **told}
        assert {name: getattr(workload, name) for name in expected} == expected


def test_a_placement_that_does_not_fit_the_machine_is_refused_first(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: 1000)
    with pytest.raises(DeviceMemoryError, match=r"needs .* of which .* device 1 \(19 tables, .* only 1,000 bytes"):
        MeasuredCostModel("cpu", **QUICK).estimate(np.minimum(np.arange(20), 1), tables, TOPOLOGY)


@pytest.mark.parametrize("usable", [2**50, 2000])
@pytest.mark.parametrize("jobs", [1, 2])
def test_memory_that_others_use_is_told_from_memory_that_is_not_there(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, usable: int, jobs: int
) -> None:
    """And only several processes can become one."""
    monkeypatch.setattr(memory, "available_memory", lambda: 1000)
    monkeypatch.setattr(memory, "usable_memory", lambda: usable)
    asked = [Job((Part.whole(tables),), jobs, 64, Widths((8,)), Repeats(1, 0, 1, 0), exchange=False)] * jobs
    with pytest.raises(DeviceMemoryError) as raised:
        memory.require_memory(asked, ["device 0", "device 1"], new_workers=jobs)
    assert isinstance(raised.value, MemoryInUseError) == (usable == 2**50)
    assert ("end other programs" in str(raised.value)) == (usable == 2**50)
    assert ("layout='sequential'" in str(raised.value)) == (jobs == 2)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"device": "tpu"}, UnknownNameError, "tpu"),
        ({"layout": "ring"}, UnknownNameError, "ring"),
        ({"cache": 3}, InvalidOptionError, "cache must be the path of a file"),
        ({"weight_dtype": "int4"}, UnknownNameError, "int4"),
        ({"optimizer": "lars"}, UnknownNameError, "lars"),
        ({"weight_dtype": "int8"}, InvalidOptionError, "weights in int8 on a CPU"),
        ({"optimizer": "lamb"}, InvalidOptionError, "the optimizer lamb on a CPU"),
        ({"weight_dtype": "bf16"}, InvalidOptionError, "weights in bf16 on a CPU.*weights in fp16 and fp32"),
        (
            {"optimizer": "adam"},
            InvalidOptionError,
            "the optimizer adam on a CPU.*optimizer adagrad, rowwise_adagrad and sgd",
        ),
        ({"device": "cuda", "weight_dtype": "bf16"}, InvalidOptionError, "weights in bf16 on a GPU"),
        ({"iterations": 0}, InvalidOptionError, "iterations"),
        ({"batch_size": True}, InvalidOptionError, "batch_size"),
        ({"warmup": -1}, InvalidOptionError, "warmup"),
        ({"batches": 0}, InvalidOptionError, "batches"),
        ({"threads": 0}, InvalidOptionError, "threads"),
        ({"timeout_s": 0}, InvalidOptionError, "timeout_s"),
        ({"seed": -1}, InvalidOptionError, "seed"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        MeasuredCostModel(**arguments)


@pytest.fixture
def on_epyc(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Machine("cpu", "AMD EPYC", 2, 24 * 2**30, "2.13.0+cpu", "1.8.0", "", "")
    monkeypatch.setattr(model, "this_machine", lambda device: there)


def test_the_fingerprint_of_a_machine_and_its_settings_stays(on_epyc: None) -> None:
    """So a data set can be continued later; a change of what is measured raises the version."""
    fixed: dict[str, Any] = {"layout": "parallel", "weight_dtype": "fp32", "optimizer": "rowwise_adagrad"}
    here = MeasuredCostModel("cpu", **fixed)
    assert here.hardware == "cpu-amd-epyc-2-threads"
    assert here.fingerprint == "measured-v2-parallel-85f4eabd7a78b1981989ee51"
    others = ({"iterations": 11}, {"batch_size": 8}, {"layout": "sequential"}, {"seed": 1}, {"optimizer": "sgd"})
    prints = {MeasuredCostModel("cpu", **{**fixed, **other}).fingerprint for other in others}
    assert len(prints | {here.fingerprint}) == 6


def test_fingerprints_for_tasks_name_the_layout_that_they_get(on_epyc: None, monkeypatch: pytest.MonkeyPatch) -> None:
    auto, told = MeasuredCostModel("cpu"), MeasuredCostModel("cpu", layout="parallel")
    assert auto.fingerprint_for([2, 1]) == told.fingerprint_for([8]) == told.fingerprint
    assert auto.fingerprint_for([4]) == MeasuredCostModel("cpu", layout="sequential").fingerprint
    assert auto.fingerprint_for([4, 2]).startswith("measured-v2-parallel+sequential-")
    assert auto.settings["layout"] == "auto"  # caches have it in their keys, beside the layout
    # Modelled all-to-alls put the version of the analytical model into it.
    before = [MeasuredCostModel("cpu", layout=layout).fingerprint for layout in ("parallel", "sequential", "auto")]
    monkeypatch.setattr(AnalyticalCostModel, "version", AnalyticalCostModel.version + 1)
    after = [MeasuredCostModel("cpu", layout=layout).fingerprint for layout in ("parallel", "sequential", "auto")]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, False]


def test_memory_of_idle_workers_is_freed_before_a_measurement_is_refused(
    quick_workers: None, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MeasuredCostModel("cpu", **QUICK) as model:
        model.estimate(PLACEMENT, tables, TOPOLOGY)
        first = model._session
        assert first is not None
        # As if the first workers held all of the memory.
        monkeypatch.setattr(memory, "available_memory", lambda: 0 if first.pids else 2**40)
        assert model.estimate(1 - PLACEMENT, tables.select(range(19, -1, -1)), TOPOLOGY).seconds > 0
        model.close()
        monkeypatch.setattr(memory, "WORKER_BYTES", 2**45)
        with pytest.raises(DeviceMemoryError, match=r"for starting processes, .* let one process stand for all"):
            model.estimate(PLACEMENT, tables.select(range(10)).select([*range(10)] * 2), TOPOLOGY)


def test_recorded_lookups_take_the_place_of_drawn_ones(forked_workers: None, tmp_path: Path) -> None:
    import torch

    recorded = tmp_path / "lookups.pt"
    lengths = torch.tensor([[3] * 64, [1] * 64])
    indices = torch.arange(256) % 30
    torch.save(
        (indices, torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)]), lengths), recorded
    )
    two = replace(small_tables(2), names=("table_0", "mine/table_1"))
    settings = {**QUICK, "layout": "sequential"}
    with MeasuredCostModel("cpu", **settings, recorded=recorded) as model:
        found = model.estimate(np.arange(2), two, TOPOLOGY)
        assert (found.phases_ms > 0).all()
        assert model.fingerprint != MeasuredCostModel("cpu", **settings).fingerprint
        with pytest.raises(MeasurementError, match="is none of the 2 tables"):
            model.estimate(np.zeros(20, np.int64), small_tables(), TOPOLOGY)


def test_a_packed_file_of_lookups_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "lookups.pt.gz").write_bytes(gzip.compress(b"x"))
    with pytest.raises(InvalidOptionError, match="gunzip"):
        MeasuredCostModel("cpu", recorded=tmp_path / "lookups.pt.gz")
    with pytest.raises(DamagedFileError, match="cannot be read"):
        MeasuredCostModel("cpu", recorded=tmp_path / "nothing.pt")


def test_a_copy_by_pickle_measures_by_itself(quick_workers: None, tables: Tables) -> None:
    with MeasuredCostModel("cpu", **QUICK) as model:
        model.estimate(PLACEMENT, tables, TOPOLOGY)
        with pickle.loads(pickle.dumps(model)) as twin:
            assert twin.estimate(PLACEMENT, tables, TOPOLOGY).seconds > 0
        assert model._session is not None
        assert len(model._session.pids) == 2


def test_many_measurements_leave_nothing_behind(measured: MeasuredCostModel, tables: Tables) -> None:
    rng = np.random.default_rng(0)

    def measure(times: int) -> None:
        for _ in range(times):
            assert measured.estimate(rng.integers(2, size=20), tables, TOPOLOGY).seconds > 0

    def resident_mib() -> float:
        lines = [Path(f"/proc/{pid}/statm").read_text().split() for pid in [os.getpid(), *session.pids]]
        return sum(int(words[1]) for words in lines) * os.sysconf("SC_PAGE_SIZE") / 2**20

    measure(6)
    session = measured._session
    assert session is not None
    before, files = resident_mib(), len(os.listdir("/proc/self/fd"))
    measure(12)
    assert resident_mib() < before + 5
    assert len(os.listdir("/proc/self/fd")) <= files  # others may be closed meanwhile
    left = [Path(session._folder), *(Path(f"/proc/{pid}") for pid in session.pids)]
    assert [path.exists() for path in left] == [True] * 3
    measured.close()  # the next measurement starts other workers
    assert not any(path.exists() for path in left)


def test_the_lowest_clock_and_late_iterations_of_a_gpu_are_told(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One GPU stands for two devices; its worker answers as one on a GPU would."""
    answers = [{"ms": [[1.0, 0.0, 0.0, 2.0]] * 3, "clock_ghz": ghz, "late": late} for ghz, late in ((1.9, 0), (1.7, 2))]

    class Answering:
        size = 1

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def ask(self, commands: Any, subjects: Any, join: int) -> list[Any]:
            return [answers.pop(0)]

        def close(self) -> None:
            pass

    there = Machine("cuda", "NVIDIA H200", 1, 150 * 2**30, "2.13.0", "1.8.0", "13.0", "2.28.3")
    monkeypatch.setattr(model, "this_machine", lambda device: there)
    monkeypatch.setattr(model, "Session", Answering)
    with MeasuredCostModel("cuda", **{**QUICK, "layout": "sequential"}) as measured:
        with pytest.warns(UserWarning, match="could not stay ahead of the GPU"):
            found = measured.estimate(PLACEMENT, tables, TOPOLOGY)
        assert (found.clock_ghz, found.late) == (1.7, 2)
        assert found.details == {"spread": 0.0, "seconds": found.seconds, "clock_ghz": 1.7, "late": 2}
        cached = measured.estimate(PLACEMENT, tables, TOPOLOGY)
    assert cached.phases_ms.tolist() == found.phases_ms.tolist()
    assert cached.details == {"spread": 0.0, "seconds": 0.0, "clock_ghz": 0.0, "late": 0}
