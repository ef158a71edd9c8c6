"""`shard-gym import-pool`: one of Meta's lookup files in, a pool file out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from shard_gym.cli.console import new_progress, output, sentence
from shard_gym.cli.options import OptionalPath
from shard_gym.common.errors import InvalidOptionError
from shard_gym.common.io.files import require_writable
from shard_gym.common.text import counted
from shard_gym.tables.pools import import_meta, save_pool


def import_pool(
    file: Annotated[Path, tyro.conf.Positional], name: str, out: Path, tmp_dir: OptionalPath = None
) -> None:
    """Make a pool from one of Meta's lookup files; needs torch.

    The files are those of github.com/facebookresearch/dlrm_datasets.

    Args:
        file: the lookup file, for example fbgemm_t856_bs65536.pt, or its .pt.gz.
        name: name of the new pool.
        out: file to write the pool to; its name ends in .json.
        tmp_dir: folder to unpack a .gz file in, with room for several times its size; beside it if not given.
    """
    if out.suffix != ".json":
        raise InvalidOptionError(f"A pool file's name ends in .json, so that load_pool knows it; got {out}.")
    require_writable(out)
    with new_progress() as progress:
        bar = progress.add_task(f"reading {file.name}", total=None)

        def report(done: int, total: int) -> None:
            if progress.tasks[bar].total not in (None, total):
                progress.reset(bar)  # another number of things to do is another stage
            progress.update(bar, completed=done, total=total)

        pool = import_meta(file, name, tmp_dir=tmp_dir, progress=report)
    save_pool(pool, out)
    output().print(sentence(f"{counted(len(pool), 'table')} written to {out}, SHA-256 {pool.sha256}."))
