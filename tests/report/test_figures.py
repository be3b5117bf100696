"""The colors of charts, distinguishable with every kind of color vision, and the script that draws them."""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from partita.report.figures import PALETTES, libraries

Colors = NDArray[np.float64]
# Simulation of missing cones, on linear RGB: Machado, Oliveira and Fernandes (2009), severity 1.
VISIONS = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
# Linear RGB to OKLab: Ottosson (2020).
TO_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def linear(colors: list[str]) -> Colors:
    parts = np.array([[int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)] for color in colors])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def luminance(colors: list[str]) -> Colors:
    return linear(colors) @ np.array([0.2126, 0.7152, 0.0722])


def background(scheme: str) -> str:
    style = (resources.files("partita.report") / "page.css").read_text()
    light, dark = re.findall(r"--background: (#\w{6});", style)
    return {"light": light, "dark": dark}[scheme]


@pytest.mark.parametrize("scheme", PALETTES)
def test_every_color_has_contrast_to_the_background(scheme: str) -> None:
    on = luminance([background(scheme)])[0]
    own = luminance(PALETTES[scheme])

    # WCAG requires 3 to 1 for graphics.
    assert ((np.maximum(own, on) + 0.05) / (np.minimum(own, on) + 0.05)).min() >= 3.0


@pytest.mark.parametrize("scheme", PALETTES)
@pytest.mark.parametrize("vision", VISIONS)
def test_no_two_colors_look_alike(scheme: str, vision: str) -> None:
    seen = np.clip(linear(PALETTES[scheme]) @ VISIONS[vision].T, 0, 1)
    lab = np.cbrt(seen @ TO_CONES.T) @ TO_LAB.T

    least = min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(lab, 2))
    # The just noticeable difference is about 0.02.
    assert least >= 0.08


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """An empty cache, and the number of times that scripts are bundled."""
    counts = Counter[str]()

    def bundle(text: str, **_: str) -> str:
        counts["bundled"] += 1
        return f"{text}\nwindow.done = 1;\n"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("vl_convert.javascript_bundle", bundle)
    libraries.cache_clear()
    yield counts
    libraries.cache_clear()


def again() -> str:
    libraries.cache_clear()
    return libraries()


def test_the_script_is_bundled_once(bundled: Counter[str]) -> None:
    first = libraries()

    assert again() == first
    assert bundled["bundled"] == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-10],
        lambda content: b"",
        lambda content: content[:80] + bytes([content[80] ^ 1]) + content[81:],
        lambda content: content + b"more",
        lambda content: content.partition(b"\n")[2],
        lambda content: content.replace(b"window", b"\xff\xfe"),
    ],
)
def test_a_damaged_script_is_bundled_again(
    bundled: Counter[str], tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    first = libraries()
    (cached,) = tmp_path.rglob("charts-*.js")
    whole = cached.read_bytes()
    cached.write_bytes(damage(whole))

    assert again() == first
    assert bundled["bundled"] == 2
    assert cached.read_bytes() == whole
