"""Names of entries and authors: which are taken, and which could be somebody else's, a link or nothing."""

from __future__ import annotations

import pytest

from shard_gym.leaderboard.names import author_name, plain_name


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
