"""What the measured environments share: the arguments of measurements, and workers that end with the environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from typing_extensions import override

from shard_gym.common.errors import wrong_kind
from shard_gym.cost_models.measured import MeasuredCostModel
from shard_gym.envs.core.config import EnvConfig, task_source
from shard_gym.envs.core.episodes import EpisodesConfig
from shard_gym.envs.placement.env import EmbeddingPlacementEnv
from shard_gym.envs.placement.vector import EmbeddingPlacementVectorEnv
from shard_gym.envs.real.tasks import as_measured
from shard_gym.tasks import TaskSource

MEASURING = ("device", "layout", "batch_size", "iterations", "warmup", "timeout_s", "cache")
"""Arguments of the `MeasuredCostModel` that is made if none is given."""


@dataclass(frozen=True, eq=False)
class MeasuringConfig(EpisodesConfig):
    """The arguments of environments that measure what is complete; to be inherited before another configuration."""

    device: str = field(default="cpu", kw_only=True)
    layout: str = field(default="auto", kw_only=True)
    batch_size: int | None = field(default=None, kw_only=True)
    iterations: int = field(default=10, kw_only=True)
    warmup: int = field(default=3, kw_only=True)
    timeout_s: float = field(default=120.0, kw_only=True)
    cache: str | Path | None = field(default=None, kw_only=True)
    measured: MeasuredCostModel | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.measured is not None and not isinstance(self.measured, MeasuredCostModel):
            wanted = "a MeasuredCostModel, or None to have one made of the other arguments"
            raise wrong_kind("measured", self.measured, wanted)

    @override
    @cached_property
    def final_cost(self) -> MeasuredCostModel:
        return self.measured or MeasuredCostModel(**{name: getattr(self, name) for name in MEASURING})

    @override
    def source_of(self, suite: Any) -> TaskSource:
        return as_measured(task_source(suite, self.split), self.final_cost)


class MeasuringEnv(EmbeddingPlacementEnv):
    """An environment that measures.

    Attributes:
        measured: what measures.
    """

    measured: MeasuredCostModel

    @override
    def _set_up(self, config: EnvConfig) -> None:
        assert isinstance(config, MeasuringConfig)
        self.measured = config.final_cost
        super()._set_up(config)

    @override
    def close(self) -> None:
        """End the workers; the next measurement starts new ones."""
        self.measured.close()
        super().close()


class MeasuringVectorEnv(EmbeddingPlacementVectorEnv):
    """N environments that share their workers: what is complete is measured one by one."""

    @property
    def measured(self) -> MeasuredCostModel:
        """What measures."""
        model = self._episodes.final_cost
        assert isinstance(model, MeasuredCostModel)
        return model

    def close_extras(self, **kwargs: Any) -> None:
        """End the workers; the next measurement starts new ones."""
        if hasattr(self, "_episodes"):  # not where the arguments were wrong
            self.measured.close()
