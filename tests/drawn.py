"""What users and their files may contain, drawn by Hypothesis: ids, configs and tables."""

import datetime
import os
from dataclasses import fields, is_dataclass
from decimal import Decimal
from typing import Any, get_type_hints

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from partita.config.schema import Config
from partita.data.options import TableOptions

BOUNDED = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
"""For `make test`: the same cases every time, whatever the machine."""
MANY = int(os.environ.get("HOSTILE_EXAMPLES", "0"))
"""The number of cases of each test; 0: few, and always the same."""


def bounded(share: float = 1.0) -> settings:
    """Return the settings of a test: few fixed cases, or many new ones where the environment asks for them."""
    if MANY:
        return settings(BOUNDED, max_examples=int(MANY * share), derandomize=False)
    return settings(BOUNDED, max_examples=int(BOUNDED.max_examples * share))


CURIOUS_IDS = [
    *("../../x", "..", ".", "/etc/passwd", "a/b", "a\\b", "~", "-rf", "con", "nul.", "a" * 10_000, "é" * 300),
    *("Ada", "ada", "ADA", "straße", "STRASSE", "é", "e\u0301", "日本語", "عربى", "\u202eabc", "\ufeffx"),
    *(
        "x\0y",
        "\x01",
        "\x07",
        "\x08",
        "\x1b[31m",
        "\x7f",
        "\ufffe",
        "\uffff",
        "tab\t",
        "line\nbreak",
        " ",
        "\u00a0",
    ),
    *(
        "=1+1",
        "<script>alert(1)</script>",
        "$(rm -rf)",
        "`",
        "{{ x }}",
        "%s",
        "a.safetensors",
        "x.next",
        "\U0001f600",
    ),
]
"""Device ids that something between a table and a page could stumble over."""

ids = st.one_of(
    st.sampled_from(CURIOUS_IDS),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40),
)
"""Device ids: any text that is not empty."""

_NAMES = (
    "fedalt",
    "output",
    "full",
    "none",
    "all",
    "rest",
    "validation",
    "linear",
    "adamw",
    "synthetic",
    "x:y",
    "os:getcwd",
)
scalars = st.one_of(
    st.booleans(),
    st.integers(-3, 40),
    st.sampled_from([2**31, 2**32, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**80), 10**400]),
    st.floats(),
    st.sampled_from([0.0, 0.1, 0.5, 1.0, 1e39, 1e300, -1.0]),
    st.sampled_from([*_NAMES, "", "*", "u", "v", "[", "\0", "../x", "é" * 500]),
    st.text(max_size=8),
    st.dates(min_value=datetime.date(1900, 1, 1)),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
"""Values as TOML has them."""


def _keys() -> dict[str, list[str]]:
    """Return the keys of a config by section, those without a section under an empty name."""
    hints = get_type_hints(Config)
    sections = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    own = [entry.name for entry in fields(Config) if entry.name not in (*sections, "out", "name")]
    found = {name: [entry.name for entry in fields(hint)] for name, hint in sections.items()}
    task = [
        "form",
        "devices",
        "examples",
        "shared",
        "personal",
        "noise",
        "spread",
        "seed",
        "metrics",
        "validation",
        "data",
    ]
    found["task"] += task
    found["model"] += ["width", "depth"]
    return {"": own, **found}


KEYS = _keys()


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Return a small config that can be built, with some keys changed to anything."""
    config: dict[str, Any] = {
        "workers": 1,
        "task": {"kind": "synthetic", "devices": 3, "examples": 6},
        "pretrain": {"rounds": 1, "devices_per_round": 2},
        "personalize": {"rounds": 1, "devices_per_round": 2},
        "finetune": {"epochs": 1},
    }
    for _ in range(draw(st.integers(1, 3))):
        section = draw(st.sampled_from(list(KEYS)))
        key = draw(st.one_of(st.sampled_from(KEYS[section]), st.text(min_size=1, max_size=6)))
        value = draw(values)
        home = config.setdefault(section, {}) if section else config
        if isinstance(home, dict):
            home[key] = value
    if draw(st.booleans()) and draw(st.booleans()):
        config[draw(st.sampled_from(list(KEYS)[1:]))] = draw(values)
    return config


_cells = {
    pa.string(): st.one_of(ids, st.sampled_from(["train", "test", "validation", "", "nan"])),
    pa.large_string(): ids,
    pa.binary(): st.binary(max_size=12),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.int8(): st.integers(-3, 3),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.timestamp("ns", "UTC"): st.integers(-(2**63), 2**63 - 1),
    pa.duration("us"): st.integers(-(2**62), 2**62),
    pa.decimal128(20, 3): st.decimals(-(10**15), 10**15, places=3, allow_nan=False).map(Decimal),
    pa.null(): st.none(),
    pa.list_(pa.int64()): st.lists(st.integers(-5, 5), max_size=3),
    pa.struct([("bytes", pa.binary()), ("path", pa.string())]): st.fixed_dictionaries(
        {"bytes": st.one_of(st.none(), st.binary(max_size=30)), "path": st.none()}
    ),
    pa.struct([("x", pa.int64())]): st.fixed_dictionaries({"x": st.integers(0, 9)}),
    pa.dictionary(pa.int32(), pa.string()): st.sampled_from(["a", "b", "train", "test"]),
}
COLUMNS = ("device", "split", "id", "group", "time", "text", "image", "audio", "label", "x")


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Return a table with random columns of random types, some of them as a task expects them."""
    rows = draw(st.integers(0, 12))
    columns: dict[str, pa.Array] = {}
    for name in draw(st.lists(st.sampled_from(COLUMNS), unique=True, max_size=7)):
        if draw(st.integers(0, 2)):
            columns[name] = pa.array(draw(_usual(name, rows)))
            continue
        kind = draw(st.sampled_from(list(_cells)))
        cell = draw(st.sampled_from([_cells[kind], st.one_of(st.none(), _cells[kind])]))
        columns[name] = pa.array(draw(st.lists(cell, min_size=rows, max_size=rows)), kind)
    return pa.table(columns)


def _usual(name: str, rows: int) -> st.SearchStrategy[list[Any]]:
    """Return a column as a task expects it."""
    if name == "device":
        return st.lists(ids, min_size=2, max_size=2).map(lambda two: [two[row // 6] for row in range(rows)])
    usual = {
        "split": st.sampled_from(["train", "test", "validation"]),
        "label": st.integers(0, 3),
        "x": st.floats(-10, 10),
        "time": st.integers(0, 99),
        "id": st.integers(0, 99),
        "group": st.sampled_from(["g", "h"]),
        "image": st.just({"bytes": b"", "path": None}),
        "audio": st.just({"bytes": b"", "path": None}),
    }
    return st.lists(usual.get(name, st.text(max_size=9)), min_size=rows, max_size=rows)


@st.composite
def table_options(draw: st.DrawFn) -> dict[str, Any]:
    """Return some keys of `[task]` that say how a table is read."""
    names = [entry.name for entry in fields(TableOptions) if entry.name != "sort"]
    given: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(names), unique=True, max_size=3)):
        kind = get_type_hints(TableOptions)[name]
        usual = {
            str: st.sampled_from([*COLUMNS, "hash", "time"]),
            bool: st.booleans(),
            int: st.integers(0, 4),
        }
        given[name] = draw(st.one_of(usual.get(kind, st.floats(0, 1)), scalars))
    return given
