"""What `shard-gym report-cost-model --torchrec` prints: measured costs of plans beside TorchRec's training steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from shard_gym.cli.console import heading, new_progress, new_table, output, print_table, say
from shard_gym.cli.measuring import warn_of_load
from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.text import counted, format_ms
from shard_gym.cost_models.fitting.data.folder import MeasurementIndex
from shard_gym.interop import torchrec_timing
from shard_gym.interop.torchrec_timing import PlanTimes, plans_like, tau, tau_within_tables
from shard_gym.plans import SHARDING_TYPES, ShardingPlan

FEWEST_PLANS = 2  # fewer have no order

WHAT_A_STEP_HAS = (
    "A step of TorchRec also exchanges the indices of the lookups (input dist) and copies tensors, and its phases may "
    "overlap; a measured cost has neither, and each of its phases begins on all devices at once."
)


def check_with_torchrec(indices: Iterable[MeasurementIndex], count: int, profile: str | None = None) -> None:
    """Time `count` random plans of each data set, given by its index, with ShardGym and with TorchRec; print both.

    The devices are those of `profile` if one is given.

    Raises:
        InvalidOptionError: there are fewer than `FEWEST_PLANS`, or a data set has no random plans; see `plans_like`.
        UnknownNameError: there is no such profile.
        MissingExtraError, MeasurementError: see `timed_plans`.
    """
    if count < FEWEST_PLANS:
        raise InvalidOptionError(f"--torchrec is how many plans are timed, {FEWEST_PLANS} or more, not {count}.")
    samplers = [plans_like(index, profile) for index in indices]
    warn_of_load()
    for sampler in samplers:
        workload, times = sampler.workload, list[PlanTimes]()
        with new_progress() as bars:
            bar = bars.add_task("plans", total=count)
            for each in torchrec_timing.timed_plans(sampler, count):
                times.append(each)
                bars.advance(bar)
        of = f"batch {workload.batch_size:,}, {workload.weight_dtype}, {workload.optimizer}"
        heading(output(), f"{counted(count, 'random plan')} on {counted(sampler.num_devices, 'device')}, {of}")
        _print_times(times)
        say(f"\n{_summary(times)} {WHAT_A_STEP_HAS}")


def _print_times(times: Sequence[PlanTimes]) -> None:
    table = new_table()
    table.add_column("plan", justify="right")
    table.add_column("tables by sharding type", min_width=20)
    for header in ("phases ms", "TorchRec ms", "ratio"):
        table.add_column(header, justify="right")
    for each in times:
        ms = format_ms(each.phases_ms), format_ms(each.step_ms)
        table.add_row(str(each.number), _types(each.plan), *ms, f"{each.ratio:.2f}")
    print_table(output(), table)


def _types(plan: ShardingPlan) -> str:
    counts = Counter(sharding.sharding_type for sharding in plan.tables)
    return ", ".join(f"{counts[name]} {name}" for name in SHARDING_TYPES if counts[name])


def _summary(times: Sequence[PlanTimes]) -> str:
    ratios, within = [each.ratio for each in times], tau_within_tables(times)
    of_tables = "" if within is None else f", and {within:.3f} among plans of the same tables (mean)"
    return (
        f"Kendall's tau between measured costs and TorchRec's steps is {tau(times):.3f} over "
        f"{counted(len(times), 'plan')}{of_tables}. A step takes {np.mean(ratios):.2f} times as long as the phases of "
        f"its plan (mean; from {min(ratios):.2f} to {max(ratios):.2f})."
    )
