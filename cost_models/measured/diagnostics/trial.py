"""The process that tries FBGEMM's fused operator: `python -m shard_gym.cost_models.measured.diagnostics.trial cpu 120`.

It reports line by line how far it came; see `probe` for who reads that.
"""

from __future__ import annotations

import json
import math
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from shard_gym.cost_models.measured.machine import this_machine, torch_build
from shard_gym.errors import ShardGymError

MARK = "shard-gym probe: "
"""Begins the lines by which the process reports; torch and FBGEMM print what they like between them."""

TOLERANCE = 1e-5
"""Relative; the numbers are FP32 and of size 1 to 10."""


def main(device: str, timeout_s: float) -> int:
    """Report line by line how far torch and FBGEMM come on this kind of device; the exit code is 0 if it was told."""
    _leave_nothing(timeout_s)
    try:
        for facts in _facts(device):
            _report(facts)
    except ModuleNotFoundError as error:
        _report({"absent": error.name or str(error)})
    except ShardGymError as error:
        _report({"refused": str(error)})
    except Exception as error:
        _report({"error": _with_causes(error)})
    return 0


def _report(facts: dict[str, Any]) -> None:
    print(f"\n{MARK}{json.dumps(facts)}", flush=True)


def _leave_nothing(timeout_s: float) -> None:
    """No core file, and no process: the system ends this one if the process that waits for it was killed."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(math.ceil(timeout_s) + 1)


def _facts(device: str) -> Iterator[dict[str, Any]]:
    import torch

    torch.set_num_threads(1)
    yield {"torch": asdict(torch_build())}
    yield {"machine": this_machine(device).to_json()}
    import fbgemm_gpu

    yield {"fbgemm": getattr(fbgemm_gpu, "__version__", ""), "variant": getattr(fbgemm_gpu, "__variant__", "")}
    yield {"wrong": _wrong_numbers(device)}


def _with_causes(error: BaseException) -> str:
    """The error and those it was raised from, which name the missing symbol."""
    texts = []
    cause: BaseException | None = error
    while cause is not None:
        texts.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__
    return "; because of ".join(texts)


def _wrong_numbers(device: str) -> str:
    """Two bags, forward and backward, beside plain arithmetic: which number differs, or "".

    Backward is row-wise Adagrad: a row's state grows by the mean of its squared gradients, and the row moves by
    learning rate x gradient / sqrt(state) (pytorch/FBGEMM, `OptimType.EXACT_ROWWISE_ADAGRAD`).
    """
    import torch
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    rows, dim, rate = 10, 4, 0.5
    cpu = device == "cpu"
    where = (EmbeddingLocation.HOST, ComputeDevice.CPU) if cpu else (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
    bags = [[1, 3, 3], [9]]
    gradients = [[1.0, 2.0, 3.0, 4.0], [-1.0, 0.0, 1.0, 2.0]]
    weights = [[row + column / 10 for column in range(dim)] for row in range(rows)]

    operator = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, *where)],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=rate,
        eps=0.0,
        weights_precision=SparseType.FP32,
        output_dtype=SparseType.FP32,
        device=torch.device(device),
    )
    (table,) = operator.split_embedding_weights()
    table.detach().copy_(torch.tensor(weights))
    indices = torch.tensor([row for bag in bags for row in bag], device=device)
    pooled = operator(indices, torch.tensor([0, 3, 4], device=device))
    expected = [[sum(weights[row][column] for row in bag) for column in range(dim)] for bag in bags]
    wrong = _difference("forward", pooled.tolist(), expected)
    pooled.backward(torch.tensor(gradients, device=device))
    for bag, gradient in zip(bags, gradients, strict=True):
        for row in set(bag):
            slopes = [bag.count(row) * each for each in gradient]
            scale = rate / (sum(slope * slope for slope in slopes) / dim) ** 0.5
            weights[row] = [weight - scale * slope for weight, slope in zip(weights[row], slopes, strict=True)]
    return wrong or _difference("backward", table.tolist(), weights)


def _difference(what: str, computed: list[list[float]], expected: list[list[float]]) -> str:
    """The first number that differs, in words; "" if none does."""
    for row, (got, right) in enumerate(zip(computed, expected, strict=True)):
        for column, (value, wanted) in enumerate(zip(got, right, strict=True)):
            if not abs(value - wanted) <= TOLERANCE * max(1.0, abs(wanted)):
                return f"{what}, row {row}, column {column} is {value:g} instead of {wanted:g}"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
