"""`shard-gym report-cost-model`: compare cost models with measurements, on a page with pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from shard_gym.cli.console import say
from shard_gym.cli.options import OptionalInt, OptionalStr
from shard_gym.cli.torchrec_check import check_with_torchrec
from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.io.arrays import SUFFIX
from shard_gym.cost_models.fitting import load_workloads, report_cost_models

Files = Annotated[tuple[Path, ...], tyro.conf.arg(metavar=f"FILE{SUFFIX} ...", help_behavior_hint="(optional)")]


def report_cost_model(
    data: Annotated[Path, tyro.conf.Positional],
    models: Files = (),
    out: Path = Path("report"),
    profile: OptionalStr = None,
    no_pictures: bool = False,
    torchrec: OptionalInt = None,
) -> None:
    """Compare cost models with measurements of `shard-gym collect`; write a page.

    Args:
        data: folder of a data set, or of several, one for each batch size.
        models: files of neural cost models, see `shard-gym fit-cost-model`; each is compared at its own batch size.
        out: folder for the page and its pictures.
        profile: the hardware that the analytical model assumes; that of the data set if not given.
        no_pictures: write the page only; pictures need matplotlib.
        torchrec: instead, time so many random plans of the data set here, as ShardGym measures them and as TorchRec
            trains them, and print how far they agree; needs TorchRec.
    """
    if torchrec is not None:
        if models:
            raise InvalidOptionError("--torchrec times plans and compares no cost models; leave --models out.")
        check_with_torchrec([each.index for each in load_workloads(data).values()], torchrec, profile)
        return
    written = report_cost_models(data, models, out, profile=profile, pictures=not no_pictures)
    say(f"Written: {', '.join(map(str, written))}.", "dim")
