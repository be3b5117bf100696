"""The papers to cite for each method, as BibTeX."""

from collections.abc import Iterable

from partita.methods.named import Citation


def references(papers: Iterable[Citation | None]) -> str:
    """Return a BibTeX entry for each paper, once."""
    return "\n".join(_entry(paper) for paper in dict.fromkeys(papers) if paper is not None)


def _entry(paper: Citation) -> str:
    lines = [
        f"@{'inproceedings' if paper.venue else 'misc'}{{{paper.key},",
        f"  title = {{{paper.title}}},",
        f"  author = {{{paper.authors}}},",
        *([f"  booktitle = {{{paper.venue}}},"] if paper.venue else []),
        f"  year = {{{paper.year}}},",
        *([f"  eprint = {{{paper.arxiv}}},", "  archiveprefix = {arXiv},"] if paper.arxiv else []),
        "}",
    ]
    return "\n".join(lines) + "\n"
