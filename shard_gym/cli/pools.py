"""`shard-gym pools`: the table pools and their cards."""

from __future__ import annotations

from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shard_gym.cli.console import NONE, new_table, output, print_table, sentence
from shard_gym.common.text import format_range
from shard_gym.tables import Pool, load_pool
from shard_gym.tables.pools import pool_names, pool_source


def pools(
    pool: Annotated[
        str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]", help_behavior_hint="(optional)")
    ] = None,
) -> None:
    """List the table pools, or print the whole card of one.

    Args:
        pool: the pool whose card to print: name of one that ships with ShardGym, or path of a pool file (.json).
    """
    if pool is None:
        _list(output())
    else:
        _card(output(), load_pool(pool_source(pool)))


def _list(console: Console) -> None:
    table = new_table()
    table.add_column("pool\nSHA-256", no_wrap=True)
    for header in ("tables", "batch\nsize", "dims"):
        table.add_column(header, no_wrap=True, justify="right")
    table.add_column("what it is", min_width=20)
    for pool in map(load_pool, pool_names()):
        table.add_row(
            Text.assemble((pool.name, "bold"), "\n", (pool.sha256[:12], "dim")),
            str(len(pool)),
            str(pool.tables.workload.batch_size),
            _dims(pool),
            sentence(pool.card.title),
        )
    print_table(console, table)
    console.print(sentence("\nThe whole card of one: shard-gym pools NAME", "dim"))


def _card(console: Console, pool: Pool) -> None:
    card, tables, workload = pool.card, pool.tables, pool.tables.workload
    console.print(sentence(pool.name, "bold cyan"))
    console.print(sentence(card.title, "bold"))
    facts = {
        "tables": f"{len(pool):,}, {tables.num_embeddings.sum():,} rows in all",
        "embedding dims": _dims(pool) if pool.dims_known else "none in the data; chosen by each suite",
        "workload": f"batch size {workload.batch_size}, {workload.named}",
        "row popularity": _popularity(pool),
        "SHA-256": pool.sha256,
    }
    _section(console, "At a glance", *(f"{key}: {value}" for key, value in facts.items()))
    _section(console, "Source", card.source)
    _section(console, "How it was made", card.how_made)
    _section(console, "Published facts", *card.published_facts)
    _section(console, "Assumptions", *card.assumptions)
    _section(console, "How close it is", *card.how_close)


def _popularity(pool: Pool) -> str:
    if pool.popularity is not None:
        return "p(k) ~ (k + q)^-s, for each table"
    if pool.tables.popularity is not None:
        return "in steps: rows of a table that get equal shares of its lookups"
    return "not known, histograms only"


def _section(console: Console, heading: str, *paragraphs: str) -> None:
    if paragraphs:
        console.print(Text(f"\n{heading}", "bold"))
    for paragraph in paragraphs:
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_row(" •" if len(paragraphs) > 1 else " ", sentence(paragraph))
        console.print(line)


def _dims(pool: Pool) -> str:
    dims = pool.tables.embedding_dim
    return format_range(int(dims.min()), int(dims.max())) if pool.dims_known else NONE
