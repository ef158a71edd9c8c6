"""`shard-gym calibrate`, with workers whose times are quick to make up."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from shard_gym.cli.console import as_options
from shard_gym.common.errors import DamagedFileError, DeviceMemoryError, InvalidOptionError
from shard_gym.cost_models import make_cost_model
from shard_gym.cost_models.fitting import (
    CalibrationProgress,
    MachineCalibration,
    calibrate,
    calibrating,
    collect,
    load_measurements,
    measuring,
)
from shard_gym.cost_models.fitting.machine_folder import CALIBRATED, NETWORK, SHIPPED, HeldOut, Verdict, write_seconds
from shard_gym.cost_models.measured import MeasuredCostModel, this_machine
from shard_gym.cost_models.measured import model as measured_model
from shard_gym.hardware import hardware_profile
from shard_gym.tables import Pool, RowPopularity, Tables, Workload
from shard_gym.tables.pools import PoolCard, save_pool

pytest.importorskip("torch")
pytest.importorskip("pyarrow")

OPTIONS = ("--hardware", "cpu", "--batch-size", 512, "--iterations", 6)


class Machine(MeasuredCostModel):
    """A machine on which a lookup, a bag and a cell that replicas update take a known time; `jobs` counts its work."""

    jobs: list[int] = []  # noqa: RUF012 - shared on purpose: the command makes the models
    before: Any = staticmethod(lambda count: None)

    def _measure(self, jobs: Any, devices: Any) -> Any:
        self.before(len(self.jobs))
        self.jobs.append(len(jobs))
        rng = np.random.default_rng(len(self.jobs))
        ms = np.zeros((self.repeats.iterations, len(jobs), 4))
        for device, job in enumerate(jobs):
            for part in job.parts:
                share = np.array(part.num_rows) / part.tables.num_embeddings
                samples = job.batch_size if part.samples is None else part.samples[1]
                lookups = float((part.tables.pooling_factor * share).sum()) * samples
                bags = float(part.tables.num_features.sum()) * samples
                cells = float((part.tables.num_embeddings * part.tables.embedding_dim).sum()) * (
                    part.kind == "data_parallel"
                )
                ms[:, device, 0] += 1e-6 * (20 * lookups + 50 * bags)
                ms[:, device, 3] += 1e-6 * (70 * lookups + 30 * bags + 2 * cells)
            sent = 4.0 * job.batch_size * (sum(job.widths.outputs) / len(jobs) + job.widths.partial)
            ms[:, device, 1:3] = 0.1 + sent / 2e6 if job.exchange else 0.0
        return ms * rng.lognormal(0, 0.02, (self.repeats.iterations, len(jobs), 1))


def measures(patch: pytest.MonkeyPatch, before: Any = lambda count: None) -> type[Machine]:
    """Makes the command measure with a `Machine`, on whose clock a measurement of a device takes 4 ms, and fit at once.

    `before` gets the number of measurements so far.
    """

    def clock() -> float:
        return 0.004 * len(made.jobs)

    made = type("Machine", (Machine,), {"before": staticmethod(before), "jobs": []})
    patch.setattr(measuring, "MeasuredCostModel", made)
    patch.setattr(calibrating, "operator_failure", lambda kind: "")
    patch.setattr(calibrating, "FIT_STEPS", 40)
    patch.setattr(calibrating, "time", SimpleNamespace(monotonic=clock))
    patch.setattr(calibrating, "collect", partial(collect, clock=clock))
    return made


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., type[Machine]]:
    return partial(measures, monkeypatch)


class Calibrated(NamedTuple):
    """A folder named "mine", what `calibrate` returned of it, and the states in between."""

    folder: Path
    found: MachineCalibration
    stages: list[CalibrationProgress]


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Calibrated:
    folder, stages = tmp_path_factory.mktemp("calibrated") / "mine", list[CalibrationProgress]()
    options: dict[str, Any] = {"hardware": "cpu", "batch_size": 512, "iterations": 6, "on_progress": stages.append}
    with pytest.MonkeyPatch.context() as patch:
        measures(patch)
        found = calibrate(folder, minutes=0.05, **options)
    return Calibrated(folder, found, stages)


def test_the_folder_is_hardware_and_cost_model_of_the_other_commands(
    run: Any, calibrated: Calibrated, tmp_path: Path
) -> None:
    out, said = calibrated.folder, str(calibrated.found)
    assert "placements of tables that no fit saw, the network is" in " ".join(said.split())
    assert "plans of tables that no fit saw" in " ".join(said.split())
    profile = hardware_profile(str(out))
    assert (profile.name, profile.device.device_type) == ("mine", "cpu")
    assert profile.device.rates is not None
    assert profile.device.rates.forward[:2] == pytest.approx((50, 20), rel=0.2)
    assert profile.device.rates.dense_update == pytest.approx(2, rel=0.2)
    assert "plans of tables that it was not fitted to" in profile.device.sources["rates"]
    errors = json.loads((out / "hardware.json").read_text())["errors"]
    assert 0 < errors["forward.lookups"] < 0.2
    model = make_cost_model(str(out), additive=True, splits=True)
    assert model.name == "neural-pooled"
    assert "| network |" in (out / "report.md").read_text()
    tables, plan = tmp_path / "tables.json", tmp_path / "plan.json"
    workload = Workload(512, "fp32", "rowwise_adagrad")
    law, rows = RowPopularity.zipf(np.ones(8)), [900 * n + 500 for n in range(8)]
    sizes = {"num_embeddings": rows, "embedding_dim": np.full(8, 16), "pooling_factor": np.arange(8) + 1.0}
    mine = Tables.from_popularity(**sizes, popularity=law, workload=workload)
    save_pool(Pool("mine", mine, PoolCard("Mine", source="made up", how_made="here"), law), tables)
    command = next(line for line in said.splitlines() if line.startswith("Next: "))
    assert f"--hardware {out}" in command or len(command) > 70
    place = ("place", "--tables", tables, "--num-devices", 4, "--hardware", out, "--option", "max_queries=50")
    run.ok(*place, "--cost-model", out, "--out", plan)
    record = json.loads(plan.read_text())
    assert record["cost_model"] == make_cost_model(str(out)).fingerprint
    shown = run.ok(*place, "--out", plan)
    assert "calibrated on" in " ".join(shown.out.split())  # what the rates were measured on
    entries = json.loads(run.ok(*place, "--format", "torchrec").out)["plan"][""].values()
    assert {shard["placement"] for entry in entries for shard in entry.get("shards", [])} <= {
        f"rank:{rank}/cpu" for rank in range(4)
    }


def test_the_command_prints_what_the_function_returns(
    run: Any, machine: Callable[..., type[Machine]], calibrated: Calibrated
) -> None:
    """Of a folder whose time is used up: nothing is measured, and the fits are the same again."""
    folder, found, stages = calibrated
    assert list(dict.fromkeys(each.stage for each in stages))[-3:] == ["work", "placements", "fitting a network"]
    assert stages[-1].done == 1.0
    assert found.measured == len(load_measurements(folder / "placements").info) + len(
        load_measurements(folder / "work").info
    ) + (len(load_measurements(folder / "links").info) if (folder / "links" / "index.json").exists() else 0)
    profile = hardware_profile(str(folder))
    assert found.calibration.profile.device.rates == profile.device.rates
    assert found.model.fingerprint == make_cost_model(str(folder)).fingerprint
    again = machine()
    out = run.ok("calibrate", "--out", folder, "--minutes", 0.05, *OPTIONS).out
    assert not again.jobs
    assert make_cost_model(str(folder)).fingerprint == found.model.fingerprint
    first, last = (part.strip() for part in str(found).split(f"Written to {folder}, in "))
    assert first == str(found.verdict)
    assert as_options(first) in out
    assert f"Nothing was measured, because the time was used before; raise --minutes. Written to {folder}" in out
    assert "Next: shard-gym place" in last
    assert last.partition("Next: ")[2] in out


def test_a_run_that_was_stopped_continues_without_measuring_twice(
    run: Any, machine: Callable[..., type[Machine]], tmp_path: Path
) -> None:
    """Even what was not written yet is in the cache; and the time that is used up is not used again."""

    def stop(count: int) -> None:
        if count == 150:
            raise KeyboardInterrupt

    first = machine(stop)
    stopped = run("calibrate", "--out", tmp_path, "--minutes", 0.03, *OPTIONS)
    assert stopped.code == 130
    said = " ".join(stopped.err.split())
    assert f"calibrate --out {tmp_path} --minutes 0.03 --hardware cpu --devices 4 --batch-size 512" in said
    assert "--iterations 6" in said
    kept = load_measurements(tmp_path / "placements")
    assert len(kept.info) > 5
    seconds = json.loads((tmp_path / "seconds.json").read_text())["seconds"]
    assert seconds == pytest.approx(0.004 * 150, abs=0.02)
    second = machine()
    run.ok("calibrate", "--out", tmp_path, "--minutes", 0.03, *OPTIONS)
    continued = load_measurements(tmp_path / "placements")
    assert continued.info.number.tolist()[: len(kept.info.number)] == kept.info.number.tolist()
    assert len(first.jobs) == 150
    assert len(first.jobs) + len(second.jobs) == pytest.approx(0.03 * 60 * 2 / 3 / 0.004, abs=5)
    assert json.loads((tmp_path / "seconds.json").read_text())["seconds"] == pytest.approx(0.03 * 60 * 2 / 3, abs=0.02)


def test_what_cannot_be_fitted_to_is_refused_and_kept(
    run: Any, machine: Callable[..., type[Machine]], tmp_path: Path
) -> None:
    def slow(count: int) -> None:
        if count > 80:
            raise DeviceMemoryError("There is no more.")

    machine(slow)
    few = run("calibrate", "--out", tmp_path / "few", "--minutes", 0.05, *OPTIONS)
    assert few.code == 2
    assert "in a row failed" in " ".join(few.err.split()) or "are too few to fit to" in " ".join(few.err.split())
    run.refused("--minutes must be", "calibrate", "--out", tmp_path, "--minutes", -1)
    run.refused("--devices must be", "calibrate", "--out", tmp_path, "--devices", 1)
    run.refused("Pass another --batch-size or --devices.", "calibrate", "--out", tmp_path, "--devices", 3)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"seed": -1}, "A seed is an integer of at least 0, not -1"),
        ({"hardware": None}, 'hardware must be a Machine, "cpu", "cuda" or "auto", not None'),
        ({"folder": 5}, "folder must be a path, not 5"),
        ({"on_progress": 5}, "on_progress must be a function of a CalibrationProgress, not 5"),
        ({"devices": 3, "hardware": "cpu"}, "Pass another `batch_size` or `devices`"),
    ],
)
def test_arguments_are_checked_before_anything_is_measured(
    machine: Callable[..., type[Machine]], tmp_path: Path, given: dict[str, Any], says: str
) -> None:
    made = machine()
    with pytest.raises(InvalidOptionError, match=says):
        calibrate(**{"folder": tmp_path, "hardware": "cpu", **given})
    assert not made.jobs


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--devices", 2), "was calibrated with devices 4, not 2"),
        (("--iterations", 7), "was calibrated with iterations 6, not 7"),
        (("--batch-size", 1024), "was calibrated with batch size 512, not 1024"),
        (("--optimizer", "sgd"), "was calibrated with optimizer 'rowwise_adagrad', not 'sgd'"),
    ],
)
def test_other_options_go_into_another_folder(
    run: Any, machine: Callable[..., type[Machine]], tmp_path: Path, more: tuple[Any, ...], says: str
) -> None:
    """Even where the time is used up, so that nothing would be measured."""
    options = {"devices": 4, "iterations": 6, "seed": 0, **Workload(512, "fp32", "rowwise_adagrad").to_json()}
    write_seconds(tmp_path, {"machine": this_machine("cpu").fingerprint, **options}, 1e6)
    made = machine()
    run.refused(says, "calibrate", "--out", tmp_path, *OPTIONS, *more)
    assert not made.jobs


DAMAGED = ['{"seconds": "x"}', "[]", '{"seconds": null, "options": {}}', "{", '{"seconds": 1e300, "options": {}}']


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_record_of_the_time_is_refused(
    run: Any, machine: Callable[..., type[Machine]], tmp_path: Path, content: str
) -> None:
    machine()
    (tmp_path / "seconds.json").write_text(content)
    outcome = run("calibrate", "--out", tmp_path, *OPTIONS)
    assert outcome.code == 2
    assert "seconds.json" in " ".join(outcome.err.split())


def test_too_little_time_is_told(run: Any, machine: Callable[..., type[Machine]], tmp_path: Path) -> None:
    machine()
    outcome = run("calibrate", "--out", tmp_path, "--minutes", 0.001, *OPTIONS)
    assert outcome.code == 2
    assert "more --minutes" in " ".join(outcome.err.split())


def errors(network: float, calibrated: float, shipped: float, count: int = 50) -> dict[str, dict[str, HeldOut]]:
    values = dict(zip((NETWORK, CALIBRATED, SHIPPED), (network, calibrated, shipped), strict=True))
    return {name: {"placements": HeldOut(count, value, 0.9)} for name, value in values.items()}


def test_the_verdict_names_what_errs_least_unless_the_machine_was_busy() -> None:
    assert Verdict(errors(0.05, 0.1, 0.3), (0.03, 9)).trusted == NETWORK
    assert "Trust the network most" in str(Verdict(errors(0.05, 0.1, 0.3), (0.03, 9)))
    assert Verdict(errors(0.2, 0.1, 0.3), None).trusted == CALIBRATED
    as_it_ships = Verdict(errors(0.2, 0.1, 0.05), (0.03, 9))
    assert as_it_ships.trusted is None
    assert "no better than the profile as it ships" in str(as_it_ships)
    busy = Verdict(errors(0.05, 0.1, 0.3), (0.66, 3))
    assert busy.trusted is None
    assert "66.0 % off (3 were). That is too much: other programs ran." in str(busy)
    assert "8 are few to judge by" in str(Verdict(errors(0.05, 0.1, 0.3, count=8), None))


def test_a_broken_operator_is_told_before_anything_is_measured(
    run: Any, machine: Callable[..., type[Machine]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = machine()
    monkeypatch.setattr(calibrating, "operator_failure", lambda kind: "FBGEMM hangs.")
    outcome = run("calibrate", "--out", tmp_path, *OPTIONS)
    assert outcome.code == 2
    assert "FBGEMM hangs. Run shard-gym doctor" in " ".join(outcome.err.split())
    assert not made.jobs


def test_a_changed_profile_is_refused_where_it_is_named(calibrated: Calibrated, tmp_path: Path) -> None:
    shutil.copytree(calibrated.folder, tmp_path / "mine")
    path = tmp_path / "mine" / "hardware.json"
    assert hardware_profile(str(path.parent)).name == "mine"
    path.write_text(path.read_text().replace('"num_sms": 1', '"num_sms": 2'))
    with pytest.raises(DamagedFileError, match="Calibrate again"):
        hardware_profile(str(path.parent))
    assert measured_model.PENALTY_MARGIN > 1
