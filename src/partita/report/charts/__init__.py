"""The charts, each defined once: the page draws it, and the same definition gives PNG, SVG and PDF files.

A chart names its datasets and does not contain them, so that a page holds each dataset once. Colors come
from the page's palette, which is safe for color-blind readers and differs between light and dark mode.
"""
