"""What TorchRec does not train of a plan as it is: replicas, and sequence tables in column shards of several widths.

`DistributedModelParallel` (TorchRec 1.8) trains tables in the backward with what `apply_optimizer_in_backward` gave
them, but for those that are data_parallel: their gradients are left to an optimizer after the backward, as those of
dense layers are, and `in_backward_optimizer_filter` returns both. Replicas that no such optimizer has are not trained.
"""

from __future__ import annotations

import numpy as np

from shard_gym.common.text import counted, listed
from shard_gym.plans import ShardingPlan
from shard_gym.plans.plan import COLUMN_WISE, DATA_PARALLEL
from shard_gym.tables import Tables

DENSE_OPTIMIZER = (
    "left = dict(in_backward_optimizer_filter(model.named_parameters()))",
    "optimizer = CombinedOptimizer([model.fused_optimizer, "
    "KeyedOptimizerWrapper(left, lambda each: torch.optim.SGD(each, lr=lr))])",
)
"""Two lines that train all of a wrapped `model` with the functions of torchrec.optim; `optimizer.step()` follows each
backward. In place of SGD stands what trains the dense layers."""

_AS_IN_BACKWARD: dict[str, str] = {
    "sgd": "SGD with the tables' learning rate updates them as the backward would.",
    "rowwise_adagrad": (
        "To update them as the backward would, give them alone to torchrec.optim.RowWiseAdagrad, with the tables' "
        "learning rate and eps=1e-8, as optimizer_of of examples/train_with_plan.py does; it takes no biases. "
        "torch.optim.Adagrad has a state for each element."
    ),
    "adam": (
        "torch.optim.Adam also moves their rows that a batch does not read; the backward would leave these as they are."
    ),
    "adagrad": (
        "torch.optim.Adagrad has the states of the backward's, one for each weight; that it updates them as the "
        "backward would, with the same learning rate and eps, is not tested."
    ),
    **dict.fromkeys(
        ("lamb", "partial_rowwise_adam"), "torch has no dense optimizer that updates them as the backward would."
    ),
}
"""Which optimizer of a replica is the one in the backward, by `Workload.optimizer`."""


def replicated_tables(plan: ShardingPlan, tables: Tables) -> list[str]:
    """The names of the tables of which every device has a replica (data_parallel), in the order of `tables`."""
    return [
        name
        for name, sharding in zip(tables.names, plan.tables, strict=True)
        if sharding.sharding_type == DATA_PARALLEL
    ]


def replicas_note(plan: ShardingPlan, tables: Tables) -> str:
    """Which tables of a plan are replicas, and how TorchRec trains them; empty if none is, or if they are served."""
    names = replicated_tables(plan, tables)
    if not names or not tables.workload.training:
        return ""
    count = f"{len(names):,} of {counted(len(tables), 'table')}"
    return "\n".join(
        (
            f"{count}, {listed(names)}, {'is' if len(names) == 1 else 'are'} data_parallel: a replica on every device. "
            "TorchRec does not train them in the backward; they stay as they are unless a dense optimizer has them:",
            *(f"    {line}" for line in DENSE_OPTIMIZER),
            f"{_as_in_backward(plan, tables)}{_of_sequences(plan, tables)}",
        )
    )


def _as_in_backward(plan: ShardingPlan, tables: Tables) -> str:
    """Which optimizer of the replicas is the one in the backward; of several groups, by the names of their tables."""
    of_optimizer: dict[str, list[str]] = {}
    for name, sharding, group in zip(tables.names, plan.tables, tables.group.tolist(), strict=True):
        if sharding.sharding_type == DATA_PARALLEL:
            of_optimizer.setdefault(tables.workloads[group].optimizer, []).append(name)
    if len(tables.workloads) == 1:
        return _AS_IN_BACKWARD[tables.workload.optimizer]
    return " ".join(f"{listed(names)}: {_AS_IN_BACKWARD[optimizer]}" for optimizer, names in of_optimizer.items())


def tables_of_mixed_widths(plan: ShardingPlan, tables: Tables) -> list[str]:
    """The names of sequence tables with column shards beside those of other widths on a device, in order.

    All column shards of a device are one fused operator, and FBGEMM 1.8 refuses one of sequences with several widths.
    """
    arrays = plan.shard_arrays()
    by_columns = np.array([each.shard_type == COLUMN_WISE for each in plan.tables]) & ~tables.pooled
    table, device, *_, columns = arrays[by_columns[arrays[:, 0]]].T
    mixed = [each for each in np.unique(device) if len(np.unique(columns[device == each])) > 1]
    return [tables.names[each] for each in np.unique(table[np.isin(device, mixed)])]


def widths_note(plan: ShardingPlan, tables: Tables) -> str:
    """That FBGEMM does not train some column shards of sequence tables, a sentence; empty if it does."""
    names = tables_of_mixed_widths(plan, tables)
    if not names:
        return ""
    return (
        "FBGEMM trains column shards of sequence tables on a device only where all are equally wide, and those of "
        f"{listed(names)} are not. Plan again with `agent_options={{'sharding_types': 'table_wise,row_wise'}}`."
    )


def replicas_are_wrong(tables: Tables, device_type: str) -> bool:
    """Whether TorchRec 1.8 reads replicas of the tables wrongly: sequence tables on CPUs."""
    return device_type == "cpu" and not tables.pooled.all()


def _of_sequences(plan: ShardingPlan, tables: Tables) -> str:
    """That replicas of sequence tables are wrong on CPUs, a sentence; empty if there are none."""
    pairs = zip(plan.tables, tables.pooled.tolist(), strict=True)
    some = any(sharding.sharding_type == DATA_PARALLEL and not pooled for sharding, pooled in pairs)
    return " On a CPU, TorchRec 1.8 adds up the rows of sequences that are replicas, which is wrong." * some
