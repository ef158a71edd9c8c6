"""Small tables to execute, and what plain torch computes for them: fixtures that return functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shard_gym.cost_models.measured import Session
from shard_gym.cost_models.measured.job import Job, Part, Repeats, Widths
from shard_gym.cost_models.measured.parts import parts_of
from shard_gym.cost_models.measured.shard_streams import streams_of
from shard_gym.cost_models.measured.streams import HistogramStream
from shard_gym.cost_models.measured.worker import LEARNING_RATE
from shard_gym.hardware import hardware_profile
from shard_gym.plans import ShardingPlan, column_wise, data_parallel, row_wise, table_row_wise
from shard_gym.plans.plan import DATA_PARALLEL
from shard_gym.tables import Tables, Workload

REPEATS = Repeats(iterations=1, warmup=0, batches=1, seed=3)
EPS = 1e-8


def _small_tables(count: int, **training: str) -> Tables:
    """Tables with few rows, of several widths; two of them are read by several features."""
    dims, pooling = np.resize([4, 12, 8], count), np.resize([2.0, 1.5, 3.0], count)
    rows, features = np.arange(count) * 7 + 30, np.resize([1, 2], count)
    return Tables.from_zipf(rows, dims, pooling, 1.0, Workload(10, **training), features)


def _reference(tables: Tables, batch_size: int, weights: list[np.ndarray]) -> tuple[Any, list[Any]]:
    """(B, width) pooled outputs, and the weights after one step on 0.5 times the sum of their squares."""
    import torch

    columns, after = [], []
    for table, given in enumerate(weights):
        found = HistogramStream(tables, table, REPEATS.seed).lookups(0, batch_size)
        weight = torch.tensor(given, dtype=torch.float32, requires_grad=True)
        offsets = torch.tensor(np.concatenate([[0], np.cumsum(found.lengths.ravel())[:-1]]))
        bags = torch.nn.functional.embedding_bag(torch.tensor(found.indices), weight, offsets, mode="sum")
        outputs = bags.view(found.lengths.shape[0], batch_size, -1)
        (0.5 * (outputs**2).sum()).backward()
        columns.append(outputs.detach().transpose(0, 1).reshape(batch_size, -1))
        step = weight.grad
        if tables.workload.optimizer == "rowwise_adagrad":
            step = step / ((step**2).mean(dim=1, keepdim=True).sqrt() + EPS)
        elif (
            tables.workload.optimizer == "adam"
        ):  # its first step: the corrected moments are the gradient and its square
            step = step / (step.abs() + EPS)
        after.append((weight.detach() - LEARNING_RATE * step).numpy())
    return torch.cat(columns, dim=1), after


def _random_weights(tables: Tables, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        np.float16(rng.uniform(-1, 1, (rows, dim))).astype(np.float32)
        for rows, dim in zip(tables.num_embeddings.tolist(), tables.embedding_dim.tolist(), strict=True)
    ]


def _check_iteration(
    session: Session, parts: list[Tables | None], batch_size: int, rtol: float, *, exchange: bool
) -> None:
    """Run one iteration with one of `parts` on each device; compare outputs and updated weights with plain torch."""
    import torch

    jobs = [() if part is None else (Part.whole(part),) for part in parts]
    widths = [sum(part.width for part in own) for own in jobs]
    weights = [[] if part is None else _random_weights(part, device) for device, part in enumerate(parts)]
    commands = []
    for own, width, given in zip(jobs, widths, weights, strict=True):
        job = Job(own, len(parts), batch_size, Widths(tuple(widths) if exchange else (width,)), REPEATS, exchange)
        commands.append(("run_iteration", {"job": job, "weights": [given] if given else []}))
    subjects = [f"device {device}" for device in range(len(parts))]
    answers = session.ask(commands, subjects, join=(len(parts), 1) if exchange else None)
    references = [
        (torch.empty(batch_size, 0), []) if part is None else _reference(part, batch_size, given)
        for part, given in zip(parts, weights, strict=True)
    ]
    samples = np.array_split(np.arange(batch_size), len(parts))  # the first devices have one more
    for device, (found_outputs, found_weights) in enumerate(answers):
        outputs, updated = np.concatenate([[], *found_outputs]), [each for part in found_weights for each in part]
        own, after = references[device]
        if exchange:
            expected = np.concatenate([pooled[samples[device]].numpy().ravel() for pooled, _ in references])
        else:
            expected = own.numpy().ravel()
        np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)
        for found, wanted in zip(updated, after, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol)


def _check_parts(session: Session, rtol: float, **training: str) -> None:
    """Run an iteration of a plan of all sharding types, device by device on one worker; compare with plain torch."""
    import torch

    topology, tables = hardware_profile("cpu").topology(4, devices_per_host=2), _small_tables(5, **training)
    tables = replace(tables, embedding_dim=np.array([8, 16, 12, 8, 4])).at_batch_size(8)
    plan = ShardingPlan(
        (
            column_wise(tables, 0, [1, 0]),
            column_wise(tables, 1, [0, 0]),
            row_wise(tables, 2, topology),
            table_row_wise(tables, 3, topology, 0),
            data_parallel(tables, 4, topology),
        )
    )
    for device, parts in enumerate(parts_of(plan, tables, topology)):
        given = [[np.float16(values).astype(np.float32) for values in _random_rows(part, device)] for part in parts]
        job = Job(parts, 4, 8, Widths((0,)), REPEATS, exchange=False)
        ((outputs, after),) = session.ask([("run_iteration", {"job": job, "weights": given})], [f"device {device}"])
        for part, weights, found, updated in zip(parts, given, outputs, after, strict=True):
            columns = []
            for stream, values, new in zip(
                streams_of(part, HistogramStream, REPEATS.seed), weights, updated, strict=True
            ):
                read, weight = stream.lookups(0, 8), torch.tensor(values, requires_grad=True)
                offsets = torch.tensor(np.concatenate([[0], np.cumsum(read.lengths.ravel())[:-1]]))
                bags = torch.nn.functional.embedding_bag(torch.tensor(read.indices), weight, offsets, mode="sum")
                pooled = bags.view(*read.lengths.shape, -1)
                (0.5 * (pooled**2).sum()).backward()
                columns.append(pooled.detach().transpose(0, 1).reshape(read.lengths.shape[1], -1))
                step = weight.grad / (4 if part.kind == DATA_PARALLEL else 1)
                if training["optimizer"] == "rowwise_adagrad":
                    step = step / ((step**2).mean(dim=1, keepdim=True).sqrt() + EPS)
                elif training["optimizer"] == "adam":
                    step = step / (step.abs() + EPS)
                expected = (weight.detach() - LEARNING_RATE * step).numpy()
                np.testing.assert_allclose(new, expected, rtol=rtol, atol=rtol, err_msg=part.kind)
            wanted = torch.cat(columns, dim=1).numpy().ravel()
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5, err_msg=part.kind)


def _random_rows(part: Part, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = zip(part.num_rows, part.tables.embedding_dim.tolist(), strict=True)
    return [rng.uniform(-1, 1, shape) for shape in shapes]


@pytest.fixture(scope="session")
def check_parts() -> Callable[..., None]:
    return _check_parts


@pytest.fixture(scope="session")
def small_tables() -> Callable[..., Tables]:
    return _small_tables


@pytest.fixture(scope="session")
def check_iteration() -> Callable[..., None]:
    return _check_iteration
