"""What is said to be executed on a CPU is what FBGEMM's operator executes there."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from shard_gym.common.errors import InvalidOptionError
from shard_gym.cost_models.measured import Machine, MeasuredCostModel, model
from shard_gym.cost_models.measured.model import EXECUTED
from shard_gym.tables import Tables, Workload
from shard_gym.tables.workload import OPTIMIZER_STATES, WEIGHT_BYTES


def test_the_operator_on_a_cpu_executes_what_is_listed_and_nothing_else() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("fbgemm_gpu", reason="the extra real is not installed")
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        EmbeddingLocation,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    dtypes = {
        **{"bf16": SparseType.BF16, "fp16": SparseType.FP16, "fp32": SparseType.FP32},
        **{"fp8": SparseType.NFP8, "int8": SparseType.INT8},
    }
    optimizers = {
        "adagrad": EmbOptimType.EXACT_ADAGRAD,
        "adam": EmbOptimType.ADAM,
        "lamb": EmbOptimType.LAMB,
        "partial_rowwise_adam": EmbOptimType.PARTIAL_ROWWISE_ADAM,
        "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        "sgd": EmbOptimType.EXACT_SGD,
    }
    assert (set(dtypes), set(optimizers)) == (set(WEIGHT_BYTES), set(OPTIMIZER_STATES))

    def is_executed(dtype: str, optimizer: str) -> bool:
        try:
            tables: Any = SplitTableBatchedEmbeddingBagsCodegen(
                [(10, 8, EmbeddingLocation.HOST, ComputeDevice.CPU)],
                weights_precision=dtypes[dtype],
                output_dtype=SparseType.FP32,
                optimizer=optimizers[optimizer],
            )
            tables(torch.tensor([1, 2, 3]), torch.tensor([0, 1, 3])).sum().backward()
        except (AssertionError, NotImplementedError):
            return False
        state = OPTIMIZER_STATES[optimizer]
        kept = sum(each.numel() for of_table in tables.split_optimizer_states() for each in of_table)
        assert kept == 10 * (state.per_row + 8 * state.per_weight)
        return True

    executed = {pair for pair in product(dtypes, optimizers) if is_executed(*pair)}
    assert executed == set(product(*EXECUTED["cpu"]))


def test_tables_that_a_gpu_does_not_execute_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Machine("cuda", "NVIDIA H200", 1, 2**37, "2.11.0", "1.8.0", "", "")
    monkeypatch.setattr(model, "this_machine", lambda device: here)
    tables = Tables.from_zipf([100], 8, 2.0, 1.0, Workload(64, "bf16", "adam"))
    measured = MeasuredCostModel("cuda")
    with pytest.raises(InvalidOptionError, match="weights in bf16 on a GPU"):
        measured.as_measured(tables)
    with pytest.raises(
        InvalidOptionError, match="ShardGym does not train with the optimizer lamb on a GPU; a measurem"
    ):
        measured.as_measured(tables.with_training(weight_dtype="fp16", optimizer="lamb"))
    assert measured.as_measured(tables.with_training(weight_dtype="fp16")).workload.optimizer == "adam"
    as_fp16 = MeasuredCostModel("cuda", weight_dtype="fp16").as_measured(tables)
    assert as_fp16.workload == Workload(64, "fp16", "adam")
    assert np.array_equal(as_fp16.memory_bytes, tables.memory_bytes)
