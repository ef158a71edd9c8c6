from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

from shard_gym.agents import AGENTS, LocalSearchAgent, make_agent
from shard_gym.agents.dreamshard.learner import DreamShardLearner
from shard_gym.agents.registry.agents import imported_for, learner_class
from shard_gym.agents.registry.options import (
    about_agent,
    about_learner,
    placing_options,
    trained_options,
    training_options,
)
from shard_gym.agents.training import LEARNERS, make_learner
from shard_gym.common.errors import InvalidOptionError, ShardGymError, UnknownNameError


@pytest.mark.parametrize("name", AGENTS)
def test_make_agent_takes_the_options_that_are_listed_and_no_others(name: str) -> None:
    listed = placing_options(name)
    assert all(each.about and "\n" not in each.about for each in listed)
    for each in listed:
        if name == "local-search":
            make_agent(name, **{each.name: each.default})
    with pytest.raises(ShardGymError):
        make_agent(name, no_such_option=1)
    if not listed:
        with pytest.raises(InvalidOptionError):
            make_agent(name, max_queries=5)
    assert len(about_agent(name)) > 20


def test_the_options_are_those_of_the_signature_with_the_sentences_of_the_docstring() -> None:
    first, second = placing_options("local-search")
    parameters = inspect.signature(LocalSearchAgent).parameters
    assert (first.name, first.default) == ("max_queries", parameters["max_queries"].default)
    assert second == ("max_seconds", None, "wall-clock limit for each task; None for no limit")
    assert f" max_queries: {first.about}" in " ".join((LocalSearchAgent.__doc__ or "").split())
    assert [each.name for each in placing_options("dreamshard")] == ["queries"]
    assert {each.name for each in placing_options("exact")} >= {"max_work", "gap", "workers"}


def suite_of(name: str) -> str:
    return "dlrm-20x4" if "placement" in LEARNERS[name].learns else "drift-medium-120"


@pytest.mark.parametrize("name", LEARNERS)
def test_learners_take_the_options_that_are_listed(name: str) -> None:
    pytest.importorskip("sb3_contrib")
    for preset, listed in training_options(name).items():
        assert all(each.about for each in listed)
        assert about_learner(name, preset)
        given = {each.name: each.default for each in listed if each.name != "replay" or name == "dqn"}
        learner = make_learner(name, suite_of(name), **given)
        assert learner.iterations == given["iterations"]
        if preset:
            fields_of_preset = fields(learner_class(name).presets[preset])
            assert {each.name for each in listed} == {"preset", *(field.name for field in fields_of_preset)}
    with pytest.raises(UnknownNameError) as error:
        make_learner(name, suite_of(name), no_such_option=1)
    known = str(error.value).split("Known: ")[1].rstrip(".").split(", ")
    assert {each.name for listed in training_options(name).values() for each in listed} == set(known) - {"data"}


@pytest.mark.parametrize("name", LEARNERS)
def test_trained_agents_take_the_options_that_are_listed(name: str) -> None:
    pytest.importorskip("sb3_contrib")
    listed = trained_options(name)
    assert all(each.about for each in listed)
    loader = inspect.signature(imported_for(name, LEARNERS[name].learner().loader)).parameters.values()
    own = {each.name: each.default for each in loader if each.kind is each.KEYWORD_ONLY}
    if any(each.kind is each.VAR_KEYWORD for each in loader):
        assert [each.name for each in listed] in (["queries"], ["steps"], ["plans", "built", "by_rule", "moves"])
    else:
        assert {each.name: each.default for each in listed} == own


ZERO_IS_FINE = {"policy_updates", "entropy", "max_splits", "autoshard cost_updates"}


@pytest.mark.parametrize("name", LEARNERS)
def test_every_option_of_a_learner_is_checked(name: str) -> None:
    pytest.importorskip("sb3_contrib")
    for preset, listed in training_options(name).items():
        for each in listed:
            least = -1 if {each.name, f"{name} {each.name}"} & ZERO_IS_FINE else 0
            for wrong in (least, float("nan"), "many"):
                options = {**({"preset": preset} if preset else {}), each.name: wrong}
                says = "no suite named 'many'" if (each.name, wrong) == ("also", "many") else each.name
                with pytest.raises((InvalidOptionError, UnknownNameError), match=says):
                    make_learner(name, suite_of(name), **options)


def test_a_learner_without_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_large(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(DreamShardLearner, "__init__", too_large)
    with pytest.raises(InvalidOptionError, match="'dreamshard' needs more memory than there is with the options"):
        make_learner("dreamshard", suite_of("dreamshard"), measurements=7)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("surco", {"network": []}, r"network must be a single value, not \[\]"),
        ("recurrent-ppo", {"num_envs": 10**30}, "num_envs must be an integer from 1 to 1048576"),
    ],
)
def test_what_no_option_can_be_is_refused(name: str, options: dict[str, object], says: str) -> None:
    pytest.importorskip("sb3_contrib")
    with pytest.raises(InvalidOptionError, match=says):
        make_learner(name, suite_of(name), **options)


def test_the_default_preset_comes_first() -> None:
    for name in ("dreamshard", "autoshard", "surco", "neuroshard"):
        first = next(iter(training_options(name)))
        assert inspect.signature(learner_class(name)).parameters["preset"].default == first
