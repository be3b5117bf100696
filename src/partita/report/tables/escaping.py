r"""Texts in tables, escaped for each format: names of methods, metrics and devices can hold any character.

LaTeX compiles with pdfTeX, XeTeX and LuaTeX and needs no package for it. pdfTeX knows few characters besides
ASCII: letters with accents are written as commands, and a character of another script is replaced by its code
where the engine is not one that reads Unicode.
"""

import re
import unicodedata
from itertools import groupby

from partita.shown import shown

_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""The first characters of a cell that make a spreadsheet run it; tabs and line breaks are escaped anyway."""
_MARKDOWN = str.maketrans(
    {**{character: f"\\{character}" for character in "\\|[]*"}, "&": "&amp;", "<": "&lt;", ">": "&gt;"}
)
_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "\u00d7": r"$\times$",
    "·": r"$\cdot$",
    "λ": r"$\lambda$",
    "\u2060": "{}",
    "\u2013": "--",
    "—": "---",
    "…": r"\ldots{}",
    "\u2018": "`",
    "\u2019": "'",
    "“": "``",
    "”": "''",
    "ß": r"\ss{}",
    "ø": r"\o{}",
    "Ø": r"\O{}",
    "ł": r"\l{}",
    "Ł": r"\L{}",
    "æ": r"\ae{}",
    "Æ": r"\AE{}",
    "œ": r"\oe{}",
    "Œ": r"\OE{}",
    "\u0131": r"\i{}",
}
_ACCENTS = {
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0304": "=",
    "\u0306": "u ",
    "\u0307": ".",
    "\u0308": '"',
    "\u030a": "r ",
    "\u030b": "H ",
    "\u030c": "v ",
    "\u0323": "d ",
    "\u0327": "c ",
    "\u0331": "b ",
}
"""The command of each combining accent that every font encoding of LaTeX has."""
_KEY = re.compile(r"[\w.:/+-]+", re.ASCII)


def csv_text(text: str) -> str:
    """Return a text for a cell of a CSV file; one that would be run as a formula begins with an apostrophe.

    >>> csv_text("=1+1"), csv_text("-0.5"), csv_text("FedAvg")
    ("'=1+1", '-0.5', 'FedAvg')
    """
    text = shown(text)
    return f"'{text}" if text.startswith(_FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    """Return whether a text is a number in ASCII.

    >>> _is_number("-1e-3"), _is_number("-1+2"), _is_number("+1_0")
    (True, False, False)
    """
    return re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII) is not None


def markdown_text(text: str) -> str:
    r"""Return a text for a Markdown file: neither HTML nor a link, and one cell of a table.

    >>> print(markdown_text("<b>|[x](y)"))
    &lt;b&gt;\|\[x\](y)
    """
    return shown(text).translate(_MARKDOWN)


def latex_text(text: str) -> str:
    r"""Return a text for a LaTeX file.

    >>> print(latex_text("95 % of Zürich"))
    95 \% of Z\"{u}rich
    >>> print(latex_text("写字"))
    \ifdefined\Umathcode 写字\else [U+5199][U+5B57]\fi{}
    """
    parts: list[str] = []
    composed = unicodedata.normalize("NFC", shown(text))
    for is_known, group in groupby(composed, key=lambda character: _latex(character) is not None):
        some = "".join(group)
        if is_known:
            # Two hyphens would be one dash.
            parts += [
                _latex(character) or ""
                for character in some.replace("--", "-\u2060-").replace("--", "-\u2060-")
            ]
        else:
            codes = "".join(f"[U+{ord(character):04X}]" for character in some)
            parts.append(rf"\ifdefined\Umathcode {some}\else {codes}\fi{{}}")
    return "".join(parts)


def _latex(character: str) -> str | None:
    """Return a character in LaTeX; None for one that pdfTeX may not have."""
    if (own := _LATEX.get(character)) is not None:
        return own
    if character.isascii():
        return character
    base, *accents = unicodedata.normalize("NFD", character)
    if len(accents) == 1 and accents[0] in _ACCENTS and base.isascii() and base.isalpha():
        dotless = {"i": r"\i", "j": r"\j"} if accents[0] not in "\u0323\u0327\u0331" else {}
        return rf"\{_ACCENTS[accents[0]].rstrip()}{{{dotless.get(base, base)}}}"
    return None


def citation_key(key: str) -> str:
    r"""Return the key of a paper if LaTeX can cite it, nothing otherwise.

    >>> citation_key("pillutla2022"), citation_key(r"\input{x}")
    ('pillutla2022', '')
    """
    return key if _KEY.fullmatch(key) else ""
