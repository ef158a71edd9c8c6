from __future__ import annotations

import pickle

from shard_gym.errors import MissingExtraError, missing_extra


def test_a_missing_package_names_what_installs_it_from_a_clone_and_into_an_installation() -> None:
    error = missing_extra("torch", "sb3", "Training")
    assert str(error) == (
        "Training needs the package 'torch', which is not installed. In a clone of ShardGym: pip install -e '.[sb3]'. "
        "Where it is installed: pip install 'shard-gym[sb3]'."
    )
    assert isinstance(error, ImportError)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (MissingExtraError, str(error))
