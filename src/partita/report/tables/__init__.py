"""Tables: one definition each, written for the terminal, the page, CSV, Markdown and LaTeX."""
