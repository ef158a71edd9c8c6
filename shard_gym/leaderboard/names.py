"""Names of entries and authors: which characters they may have, and when two of them look alike.

Letters are those of ASCII, Latin-1 and Latin Extended-A, with any accents. Of these, the pairs that look alike are few;
`_LOOKS_LIKE` has them from the table of Unicode Technical Standard 39 (confusables.txt, version 17.0.0).
"""

from __future__ import annotations

import re
import unicodedata

LAST_LETTER = 0x17F
"""The end of Latin Extended-A."""

INVISIBLE = frozenset(
    map(
        chr,
        [
            *(0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810)),
            *(0x2800, 0x3164, *range(0xFE00, 0xFE10), 0xFFA0, *range(0xE0100, 0xE01F0)),
        ],
    )
)
"""Characters that Python calls printable and fonts draw as nothing, most of them `Default_Ignorable_Code_Point`."""

_LOOKS_LIKE = {
    # In ASCII, without regard to case: I, l, i, 1 and | are one letter then, O, o and 0 another.
    **dict.fromkeys("i1|", "l"),
    **{"0": "o", "m": "rn"},
    # Beyond ASCII, what has no decomposition; strokes through letters are dropped like accents.
    **{"\u0131": "l", "\u0142": "l", "\u0140": "l", "\u0133": "lj", "\u0111": "d", "\u00f0": "d", "\u0127": "h"},
    **{"\u017f": "f", "\u0138": "k", "\u014b": "n", "\u0149": "n", "\u00f8": "o", "\u00fe": "p", "\u0167": "t"},
    **{"\u00e6": "ae", "\u0153": "oe", "\u00df": "ss"},
}
_TABLE = str.maketrans(_LOOKS_LIKE)

_OURS = "shardgyrn"
_OURS_ELSEWHERE = {
    ord(other): letter
    for word in (
        "\u0455\u04bb\u0430\u0433\u0501\u050d\u0443\u043c",  # Cyrillic
        "\u13da\u13bb\u13aa\u13a1\u13a0\u13c0\u13a9\u13b7",  # Cherokee
        "\ua4e2\ua4e7\ua4ee\ua4e3\ua4d3\ua4d6\ua4ec\ua4df",  # Lisu
        "\ua731\u029c\u1d00\u0280\u1d05\u0262\u028f\u1d0d",  # small capitals
        "$h@rdgym",
        "\u00a7h4rd6ym",
        "5h4rd9ym",
    )
    for other, letter in zip(word, "shardgym", strict=True)
    if other not in "shardgym"
}
"""The letters of ShardGym in other scripts, and the signs that are written for them."""

_ADDRESS = re.compile(r"://|\bwww\.", re.IGNORECASE)
"""What pages make a link of."""

_TOGETHER = frozenset({"LATIN", "CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "FEMININE", "MASCULINE"})
"""Scripts of one word, by the first word of Unicode's names; the last two are those of "ª" and "º". None of the others
looks like Latin (level "highly restrictive" of the standard)."""

_WORD = re.compile(r"[^\W\d_]+")


def plain_name(text: str) -> str:
    """`text`, if it is made of ASCII and Latin letters, with a letter or digit, and no address. Letters of other
    scripts look like these.

    Raises:
        ValueError: it is not.
    """
    if not any(map(str.isalnum, text)) or _ADDRESS.search(text):
        raise ValueError("it must have a letter or a digit, and must not be an address")
    for character in text:
        base = unicodedata.normalize("NFD", character)[0]
        if not (character.isascii() or (character.isalpha() and ord(base) <= LAST_LETTER)):
            raise ValueError(
                "it must be made of ASCII and Latin letters with or without accents, so that no two look alike"
            )
    return text


def author_name(text: str) -> str:
    """`text`, if each of its words is of one script, or of those written together: with one letter of another script it
    looks like somebody else's.

    Raises:
        ValueError: it is not, has no letter, or is an address.
    """
    words = _WORD.findall(text)
    if not words or _ADDRESS.search(text):
        raise ValueError("it must be a name with a letter in it, and must not be an address")
    for word in words:
        scripts = {unicodedata.name(each, "unknown").split()[0] for each in word if unicodedata.category(each) != "Lm"}
        if len(scripts) > 1 and not scripts <= _TOGETHER:
            raise ValueError(
                f"a word of it mixes letters of {' and '.join(map(str.title, sorted(scripts)))}, which look alike"
            )
    return text


def skeleton(name: str) -> str:
    """Equal for names that look alike: without case, accents, blanks and punctuation, with one letter for all that look
    the same (after section 4 of the standard, which keeps case and accents apart).
    """
    letters = name.casefold().translate(_TABLE)
    decomposed = unicodedata.normalize("NFKD", letters).casefold().translate(_TABLE)
    return "".join(character for character in decomposed if character.isalnum()) or name


def looks_like_ours(author: str) -> bool:
    """Whether a name has "ShardGym" in it, or what looks like it; of characters beyond ASCII up to five may be any."""
    letters = skeleton(author.casefold().replace("|", "").translate(_OURS_ELSEWHERE))
    for start in range(len(letters) - len(_OURS) + 1):
        pairs = list(zip(_OURS, letters[start:], strict=False))
        possible = all(ours == other or not other.isascii() for ours, other in pairs)
        if possible and sum(ours == other for ours, other in pairs) > 3:
            return True
    return False
