"""Names of entries and authors: which are taken, and which could be somebody else's, a link or nothing."""

from __future__ import annotations

import pytest

from shard_gym.leaderboard.names import author_name, looks_like_ours, plain_name


@pytest.mark.parametrize("name", ["A", "3", "Größe zuerst, naïve", "(a)", "C++"])
def test_names_of_entries(name: str) -> None:
    assert plain_name(name) == name


@pytest.mark.parametrize("name", ["..", "-", "|", "https://evil.example", "at www.evil.example", "\u0405earch"])
def test_what_is_no_name_of_an_entry(name: str) -> None:
    with pytest.raises(ValueError, match="it must"):
        plain_name(name)


@pytest.mark.parametrize(
    "author", ["Иван Петров (Ivan Petrov)", "山田 太郎 (Yamada Tarō)", "Mª José Ñandú", "O\u02bcBrien", "김철수", "3M"]
)
def test_authors_write_their_names_as_they_do(author: str) -> None:
    assert author_name(author) == author


@pytest.mark.parametrize("author", ["The \u0405hardGym authors", "Pet\u03bfr", "..", "5", "http://evil.example"])
def test_what_is_no_author(author: str) -> None:
    with pytest.raises(ValueError, match=r"it must be a name|mixes letters of (Cyrillic|Greek) and Latin"):
        author_name(author)


@pytest.mark.parametrize(
    "author",
    [
        *("The ShardGym authors", "shard-gym", "SHARD GYM", "Sh\u00e4rdGym", "$hardGym", "5h4rdGym", "\u00a7hard6ym"),
        *("\u0283hardGym", "Shard\u0261ym", "\u0405\u04ba\u0410\u0413\u0500\u050c\u0423\u041c"),
        *("\u13da\u13bb\u13aa\u13a1\u13a0\u13c0\u13a9\u13b7", "\ua731\u029c\u1d00\u0280\u1d05\u0262\u028f\u1d0d"),
        *(
            "The \U0001d5e6\U0001d5f5\U0001d5ee\U0001d5ff\U0001d5f1\U0001d5da\U0001d606\U0001d5fa authors",
            "|Shard|Gym|",
        ),
        *("\u02e2\u02b0\u1d43\u02b3\u1d48\u1d33\u02b8\u1d50", "\ua7a8\u0126\u023a\ua7a6\u0110\ua7a0\u024eM"),
        "\ua4e2\ua4e7\ua4ee\ua4e3\ua4d3\ua4d6\ua4ec\ua4df",
    ],
)
def test_authors_that_look_like_shardgyms(author: str) -> None:
    assert looks_like_ours(author)


@pytest.mark.parametrize(
    "author", ["Gerhard Gymnich", "Richard G. Ym", "山田 太郎 山田 太郎", "Иван Петров", "Gym of Shards", ""]
)
def test_authors_that_do_not(author: str) -> None:
    assert not looks_like_ours(author)
