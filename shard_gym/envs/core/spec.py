"""`OwnSpec`: how an environment was made, as JSON that makes it again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec

from shard_gym.common.errors import InvalidOptionError, short_repr
from shard_gym.tasks import Suite
from shard_gym.tasks.suites.own import suite_record


class OwnSpec(EnvSpec):
    """A spec whose JSON has suites as `save_suite` writes them, paths as text and enumerations by name.

    `gymnasium.make(EnvSpec.from_json(text))` makes the environment again.
    """

    @staticmethod
    def of(spec: EnvSpec) -> OwnSpec:
        """The same spec."""
        own = OwnSpec(**{each.name: getattr(spec, each.name) for each in fields(EnvSpec) if each.init})
        own.namespace, own.name, own.version = spec.namespace, spec.name, spec.version
        return own

    def to_json(self) -> str:
        """The spec as JSON; raises InvalidOptionError for an argument that JSON has no form for."""
        plain = copy(self)
        plain.kwargs = {name: self._plain(name, value) for name, value in self.kwargs.items()}
        return EnvSpec.to_json(plain)

    def _plain(self, name: str, value: Any) -> Any:
        """An argument as JSON has it."""
        if isinstance(value, Suite):
            return suite_record(value)
        if isinstance(value, Enum):
            return value.name
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, Path):
            return str(value)
        if isinstance(value, Mapping):
            return {key: self._plain(f"{name}[{key!r}]", each) for key, each in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [self._plain(name, each) for each in value]
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidOptionError(
                f"JSON has no form for {name}={short_repr(value)}, with which {self.id} was made. Make it with a name "
                "or the path of a file instead, or keep the spec as an object: gymnasium.make(env.spec)."
            ) from error
        return value
