"""The packages and the folders they are in; everything else about the build is in pyproject.toml.

shard_gym.agents is made from agents/ and shard_gym.cost_models from cost_models/. The symbolic links in shard_gym/
are not used, so an installation is complete in checkouts without them, too (zip downloads, Windows).
"""

from pathlib import Path

from setuptools import find_packages, setup

FOLDERS = {"shard_gym": "shard_gym", "shard_gym.agents": "agents", "shard_gym.cost_models": "cost_models"}

LINKS = ("agents", "cost_models")
"""What find_packages must not follow in shard_gym/."""


def packages_of(package: str, folder: str) -> list[str]:
    """`package` and every package below it, as they are imported."""
    if not (Path(folder) / "__init__.py").is_file():
        raise SystemExit(
            f"{folder}/ is missing or empty in {Path.cwd()}, so {package} cannot be installed. Install from a complete "
            "checkout or from a release."
        )
    below = find_packages(folder, exclude=[pattern for name in LINKS for pattern in (name, f"{name}.*")])
    return [package, *(f"{package}.{name}" for name in below)]


setup(
    packages=[name for package, folder in FOLDERS.items() for name in packages_of(package, folder)],
    package_dir=FOLDERS,
)
