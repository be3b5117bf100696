"""How often the 95 % confidence interval of `partita compare` contains the true mean, by simulation.

Values are normal: an effect of each seed, an effect of each device (of standard deviation 1), and a rest that
differs by seed and device. Run it with `python benchmarks/interval_coverage.py`; it takes about a minute and
prints the table of docs/decisions/confidence-interval.md.
"""

from dataclasses import dataclass

import numpy as np

from partita.studies.statistics import Numbers, estimate_mean

DRAWS = 2000
SEEDS = (1, 2, 3, 5, 10)


@dataclass(frozen=True)
class Setting:
    """The devices of a simulated comparison, and the sizes of its effects."""

    devices: int
    seed_effect: float
    """Standard deviation of the effects of seeds."""
    rest: float
    """Standard deviation of what differs by seed and device."""
    weights: str = "equal"
    missing: float = 0.0
    """Share of values that are missing."""

    def weights_of(self, seeds: int, draw: np.random.Generator) -> Numbers:
        """Return the weights by seed and device, 0 where a value is missing."""
        weights = np.ones(self.devices)
        if self.weights == "skewed":
            weights = np.ceil(20 * draw.lognormal(0.0, 1.0, self.devices))
        return weights * (draw.random((seeds, self.devices)) >= self.missing)

    def row(self) -> str:
        """Return the setting as the first cells of a row in Markdown."""
        missing = f"{100 * self.missing:.0f} %" if self.missing else "none"
        return f"{self.devices} | {self.seed_effect} | {self.rest} | {self.weights} | {missing}"


SETTINGS = [
    *(Setting(83, effect, rest) for rest in (0.3, 1.0) for effect in (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)),
    *(Setting(83, effect, 3.0) for effect in (0.0, 0.5)),
    *(Setting(8, effect, 0.5) for effect in (0.0, 0.2, 1.0)),
    *(Setting(83, effect, 0.5, weights="skewed") for effect in (0.0, 0.2, 1.0)),
    *(Setting(83, effect, 0.5, missing=0.1) for effect in (0.0, 0.2, 1.0)),
]


def coverage(setting: Setting, seeds: int) -> float:
    """Return the percentage of intervals that contain the true mean, 0."""
    draw = np.random.default_rng([seeds, SETTINGS.index(setting)])
    contained = 0
    for _ in range(DRAWS):
        effects = draw.normal(0, setting.seed_effect, (seeds, 1)) + draw.normal(0, 1, setting.devices)
        values = effects + draw.normal(0, setting.rest, (seeds, setting.devices))
        result = estimate_mean(values, setting.weights_of(seeds, draw))
        assert result.low is not None
        assert result.high is not None
        contained += result.low <= 0 <= result.high
    return 100 * contained / DRAWS


def main() -> None:
    """Print the table."""
    columns = ["devices", "seed effect", "rest", "weights", "missing", *map(str, SEEDS)]
    print(f"| {' | '.join(columns)} |")
    print(f"| {' | '.join('--:' for _ in columns)} |")
    for setting in SETTINGS:
        cells = [f"{coverage(setting, seeds):.1f}" for seeds in SEEDS]
        print(f"| {setting.row()} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
