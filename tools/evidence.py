"""What was measured on the hardware of each profile, and how far the analytical cost model is from it.

cost_model_card.py writes the results: the data of `shard_gym.planning.trust` (cost_models/evidence/), and a table in
docs/results/cost-model-errors.md.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from fit_analytical import SEEDS, Array, Mask, Problem, current_parameters, error_of, held_out

from shard_gym.common.io.files import INDEX, sha256_of
from shard_gym.common.io.markdown import table
from shard_gym.common.text import counted
from shard_gym.cost_models.analytical import AnalyticalCostModel, AnalyticalShardingModel
from shard_gym.cost_models.base.model import BACKWARD, BACKWARD_COMM, FORWARD, FORWARD_COMM
from shard_gym.cost_models.fitting import load_measurements
from shard_gym.cost_models.fitting.calibration import calibrated_profile
from shard_gym.cost_models.fitting.data.dataset import joined_data
from shard_gym.cost_models.fitting.metrics import LEAST_MS, errors_of, estimates_of
from shard_gym.cost_models.fitting.report import has_modelled_exchange
from shard_gym.hardware import PROFILES, hardware_profile
from shard_gym.planning.trust import EVIDENCE, PHASES, Evidence

SCHEMA = "shard-gym-evidence/1"
BLOCK = "evidence"  # of docs/results/cost-model-errors.md

GPUS: Mapping[str, tuple[str, ...]] = {
    "rtx2080ti-pcie": ("RTX 2080 Ti",),
    "v100-nvlink": ("V100", "V100-SXM2-16GB"),
    "a100-dgx": ("A100 80 GB", "A100"),
    "h100-dgx": ("H100 80GB HBM3",),
    "h200-dgx": ("H200",),
    "gh200-quad": ("GH200",),
    "h20-hgx": ("H20", "H20-3e"),
    "b200-dgx": ("B200",),
    "gb200-nvl72": ("GB200",),
}
"""The GPUs of each profile, as published_measurements.json names them; one that is assumed is none of them."""

CPU = "cpu"
DOCS = Path(__file__).parent.parent / "docs"
MEASUREMENTS = "data/measurements"  # in DOCS
CPU_FOLDER = DOCS / MEASUREMENTS / "cpu-amd-epyc-2-threads"
"""The profile `cpu` is calibrated on the training placements of this folder; the test placements are held out."""

MACHINES: Mapping[str, tuple[str, str, str]] = {
    "H100, FP32, rowwise Adagrad": (f"{MEASUREMENTS}/nvidia-h100-80gb-hbm3/fp32", "", "h100-dgx"),
    "H100, FP16, SGD": (f"{MEASUREMENTS}/nvidia-h100-80gb-hbm3/fp16", "", "h100-dgx"),
    "H100, FP32, rowwise Adagrad, with plans": (
        *("results/machines/nvidia-h100/placements", "results/machines/nvidia-h100/work"),
        "h100-dgx",
    ),
    "H200, FP32, rowwise Adagrad, with plans": (
        *("results/machines/nvidia-h200/placements", "results/machines/nvidia-h200/work"),
        "h200-dgx",
    ),
    "CPU, two processes, FP32, rowwise Adagrad": (f"{MEASUREMENTS}/cpu-amd-epyc-2-threads", "", CPU),
}
"""Random placements that were measured: their folder in docs/, that of designed loads, the profile of the machine."""

MACHINES_BLOCK = "machines"  # of docs/results/cost-model-errors.md

OTHER_FORMULA = "an older kernel that does not sort"
Found = dict[str, dict[str, Evidence | None]]  # by profile and phase


def evidence(problem: Problem) -> Found:
    """The evidence on every profile; held out is the split of the first seed."""
    fitted = np.log(problem.predict(current_parameters()) / problem.measured)
    outside = held_out(problem, SEEDS[0])[1]
    found: Found = {
        name: {phase: _on(problem, _rows(problem, name, phase), fitted, outside) for phase in PHASES} for name in GPUS
    }
    found[CPU] = _on_cpu()
    return {name: found[name] for name in PROFILES}


def _phase(quantity: str, kind: str) -> str:
    if quantity == "all-to-all":
        return "across hosts" if kind == "network" else "inside hosts"
    return "forward" if quantity == "forward" else "backward"


def _rows(problem: Problem, name: str, phase: str) -> Mask:
    """(R,) bool, the rows of this phase that were measured on a GPU of the profile."""
    return np.array(
        [
            row.settings["gpu"] in GPUS[name]
            and row.kind != "copy"
            and _phase(row.settings["quantity"], row.kind) == phase
            for row in problem.rows
        ]
    )


def _has_own_formula(problem: Problem) -> Mask:
    return np.array([row.settings.get("updates") == "atomic" for row in problem.rows])


def _on(problem: Problem, rows: Mask, fitted: Array, outside: Array) -> Evidence | None:
    chosen = rows & problem.fitted & ~_has_own_formula(problem)
    if not chosen.any():
        return None
    sources = set(problem.origins[chosen].tolist())
    return _evidence(outside[chosen], fitted[chosen], len(sources), _notes(problem, chosen))


def _notes(problem: Problem, chosen: Mask) -> list[str]:
    """What limits these rows."""
    notes = []
    if (problem.kinds[chosen] == "small operators").all():
        notes.append("small operators only")
    settings = [row.settings for row, own in zip(problem.rows, chosen.tolist(), strict=True) if own]
    if problem.compute[chosen].all():
        dims = {each["tables"]["embedding_dim"] for each in settings}
        if len(dims) == 1:
            notes.append(f"{dims.pop()} columns only")
        if all(each["tables"]["pooling_factor"] == 1 for each in settings):
            notes.append("unpooled only")
    inferred = sum(any(text.startswith("the GPU:") for text in each["inferred"]) for each in settings)
    if inferred:
        notes.append(f"the GPU{f' of {inferred}' * (inferred < len(settings))} is inferred")
    same_class = problem.fitted & np.isin(problem.classes, problem.classes[chosen])
    if len(set(problem.origins[same_class].tolist())) == 1:
        notes.append("the fit saw the other half of the same series")
    return notes


def _evidence(outside: Array, fitted: Array, sources: int, notes: list[str]) -> Evidence:
    away, own = error_of(outside), error_of(fitted)
    numbers = (away.mean - 1, away.worst, own.mean - 1)
    return Evidence(len(outside), sources, *(round(number, 3) for number in numbers), "; ".join(notes))


def _on_cpu() -> dict[str, Evidence | None]:
    """The times of devices in the test placements, and as fitted ones those in the training placements."""
    measurements, profile, model = load_measurements(CPU_FOLDER), hardware_profile(CPU), AnalyticalCostModel()
    errors = []
    for data in (measurements.test, measurements.first.part("train")):
        estimated = estimates_of(model, data.on(profile)).phases_ms
        errors.append((data.phases_ms, np.log(np.maximum(estimated, LEAST_MS) / np.maximum(data.phases_ms, 1e-300))))
    found: dict[str, Evidence | None] = dict.fromkeys(PHASES)
    columns = {"forward": [FORWARD], "backward": [BACKWARD], "inside hosts": [FORWARD_COMM, BACKWARD_COMM]}
    note = f"times of devices in {counted(len(measurements.test), 'placement')} on one machine"
    for phase, own in columns.items():
        test, train = (errors_ms[..., own][times[..., own] > 0] for times, errors_ms in errors)
        found[phase] = _evidence(test, train, 1, [note])
    return found


def render_machines() -> str:
    """A table with a row for each of `MACHINES`: errors on test tables, of the model as it ships and calibrated."""
    header = ["machine", "test placements", "as it ships", "forward", "backward", "calibrated", "forward", "backward"]
    model, rows = AnalyticalShardingModel(), []
    for machine, (folder, designed, name) in MACHINES.items():
        measurements, profile = load_measurements(DOCS / folder), hardware_profile(name)
        train, test = measurements.first.part("train"), measurements.test
        if designed:
            train = joined_data([load_measurements(DOCS / designed).costs.data, train])
        calibrated = calibrated_profile(train, profile, links=not has_modelled_exchange(test)).profile
        cells = [machine, f"{len(test):,}"]
        for assumed in (profile, calibrated):
            found = errors_of(test, estimates_of(model, test.on(assumed)))
            known = profile.device.rates is None or assumed is calibrated
            errors = (found.cost, found.phases["forward"], found.phases["backward"])
            cells += [f"{each.mape:.1%}" if known else "" for each in errors]
        rows.append(cells)
    return table(header, rows)


def data_files(found: Found) -> dict[Path, str]:
    """The files of the package, by path."""
    name = AnalyticalCostModel().fingerprint
    record = {
        "schema": SCHEMA,
        "cost_model": name,
        "hardware": {
            hardware: {phase: each and each.__dict__ for phase, each in phases.items()}
            for hardware, phases in found.items()
        },
    }
    text = json.dumps(record, indent=1, allow_nan=False) + "\n"
    index = json.dumps({name: sha256_of(text.encode())}, indent=1) + "\n"
    return {EVIDENCE / f"{name}.json": text, EVIDENCE / INDEX: index}


def render(problem: Problem, found: Found) -> str:
    """A table with a row for each profile."""
    links = (f"links {phase}" for phase in PHASES[2:])
    header = ["`--hardware`", *PHASES[:2], *links, "measured and not counted"]
    rows = [
        [f"`{name}`", *(_cell(phases[phase]) for phase in PHASES), _left_out(problem, name) if name in GPUS else "none"]
        for name, phases in found.items()
    ]
    return table(header, rows, left=len(header))


def _cell(found: Evidence | None) -> str:
    if found is None:
        return "not measured"
    note = f"; {found.note}" * bool(found.note)
    sources = counted(found.sources, "source")
    return (
        f"{found.held_out_error:.0%}, {found.worst_factor:.2f} held out; {found.fitted_error:.0%} fitted; "
        f"{found.measurements:,} of {sources}{note}"
    )


def _left_out(problem: Problem, name: str) -> str:
    other, counts = _has_own_formula(problem), Counter[str]()
    for row, own in zip(problem.rows, other.tolist(), strict=True):
        if row.settings["gpu"] not in GPUS[name]:
            continue
        reason = OTHER_FORMULA if own else "copies" if row.kind == "copy" else row.not_fitted
        if reason:
            phase = "" if row.kind == "copy" else f" {_phase(row.settings['quantity'], row.kind)}"
            counts[f"{reason.partition(':')[0]},{phase}" if phase else reason] += 1
    return "; ".join(f"{name}: {count}" for name, count in counts.items()) or "none"
