"""Reading configs, and the messages about those that cannot be read."""

import inspect
import re
import tomllib
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from partita.config.loading import MODELS, TASKS
from partita.config.reading import read_config, to_values
from partita.config.reference import FILE, default_text, field_docs, generate, reference
from partita.config.schema import Config, PersonalizeConfig
from partita.data.options import TableOptions
from partita.errors import ConfigError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mine.toml"


def test_missing_keys_have_their_defaults(path: Path) -> None:
    path.write_text("seed = 3\n[personalize]\nrounds = 7\n")

    config = read_config(path)

    assert (config.seed, config.name, config.personalize.rounds) == (3, "mine", 7)
    assert config.personalize.devices_per_round == 10
    assert config.personalize.personal_lr is None


def test_overrides_come_last(path: Path) -> None:
    path.write_text("seed = 3\n")

    config = read_config(
        path,
        ["seed=4", "personalize.shared_lr=1", "partition.personal=input", "partition.frozen=['a.*','b']"],
    )

    assert (config.seed, config.personalize.shared_lr, config.partition.personal) == (4, 1.0, "input")
    assert config.partition.frozen == ["a.*", "b"]


def test_further_keys_of_task_and_model_are_arguments_of_their_functions(path: Path) -> None:
    path.write_text('[model]\nname = "convnet"\nwidth = 4\n')

    assert read_config(path).model.options == {"width": 4}


@pytest.mark.parametrize(
    ("text", "overrides", "words"),
    [
        (
            "[personalize]\nsharde_lr = 1",
            [],
            "Unknown key `personalize.sharde_lr`. Did you mean `personalize.shared_lr`?",
        ),
        ("sede = 1", [], "Unknown key `sede`. Did you mean `seed`?"),
        (
            "",
            ["personal_lr=1"],
            "Unknown key `personal_lr`. Did you mean `personalize.personal_lr` or `finetune.personal_lr`?",
        ),
        ("made_with = {torch = 3}", [], "`made_with` must be"),
        ("", ["finetune.zzz=1"], "Unknown key `finetune.zzz`. Known keys: epochs, "),
        ("seed = 'one'", [], "`seed` must be a whole number, got 'one'."),
        ("seed = true", [], "`seed` must be a whole number, got True."),
        ("seed = 1.5", [], "`seed` must be a whole number, got 1.5."),
        ("[pretrain]\nshared_lr = 'fast'", [], "`pretrain.shared_lr` must be a number, got 'fast'."),
        ("[pretrain]\nweights = 'all'", [], "`pretrain.weights` must be 'examples' or 'equal', got 'all'."),
        (
            "[partition]\npersonal = 3",
            [],
            "`partition.personal` must be a string or a list of strings, got 3.",
        ),
        ("[partition]\nuntie = 1", [], "`partition.untie` must be true or false, got 1."),
        ("pretrain = 3", [], "`pretrain` must be a section, got 3."),
        ("seed = ", [], "is not valid TOML: Invalid value (at end of document)."),
        ("", ["seed"], "An override must be `section.key=value`, got 'seed'."),
        ("seed = 1", ["seed.x=2"], "`seed` must be a section, got 1."),
    ],
)
def test_an_error_about_a_config_is_one_line(path: Path, text: str, overrides: list[str], words: str) -> None:
    path.write_text(text)

    with pytest.raises(ConfigError) as caught:
        read_config(path, overrides)

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_error_about_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Cannot read the config .*none.toml.*No such file"):
        read_config(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_config(tmp_path)


def test_the_reference_is_a_config_with_every_default(path: Path) -> None:
    path.write_text(reference())

    assert read_config(path) == Config(name="mine")
    assert "personal_lr" in reference()


def test_the_printed_reference_is_generated_from_the_classes() -> None:
    assert FILE.read_text() == generate(), "Write it again with `python -m partita.config.reference`."


@pytest.mark.parametrize(("section", "known"), [("task", TASKS), ("model", MODELS)])
def test_the_reference_has_the_keys_of_every_task_and_model_with_defaults(
    section: str, known: dict[str, str]
) -> None:
    text = reference().partition(f"[{section}]")[2].partition("\n\n")[0]
    listed = re.split(r"^# (?=\w+ = )", text, flags=re.MULTILINE)

    for name, path in known.items():
        module, _, attribute = path.partition(":")
        (own,) = [part for part in listed if re.match(rf'\w+ = "{name}": ', part)]
        for parameter in inspect.signature(getattr(import_module(module), attribute)).parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD and parameter.name != "unseen":
                given = re.search(rf"^#   {parameter.name} \((.*?)\): \S", own, re.MULTILINE)
                assert given, f"{name}.{parameter.name}"
                assert given[1] == default_text(parameter.default)


def test_the_reference_has_the_keys_of_tables_and_synthetic_forms() -> None:
    text = reference()

    for key in (*(entry.name for entry in fields(TableOptions)), "dimension", "noise", "validation"):
        assert re.search(rf"^#   {key} \(.*?\): \S", text, re.MULTILINE), key


def test_values_read_back_to_the_same_config(path: Path) -> None:
    import tomli_w

    config = Config(name="a", personalize=PersonalizeConfig(personal_lr=0.5))

    path.write_text(tomli_w.dumps(to_values(config)))

    assert read_config(path) == config


def test_every_key_is_documented() -> None:
    def check(values: dict, kind: type) -> None:
        docs = field_docs(kind)
        for key, value in values.items():
            if isinstance(value, dict) and value:
                check(value, type(getattr(Config(), key)))
            else:
                assert docs[key].endswith((".", ".)")), key

    check(tomllib.loads(reference()), Config)


def test_an_override_may_quote_a_part_of_its_key(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[model]\nstart_names = { x = 'y' }\n")

    config = read_config(tmp_path / "a.toml", ['model.start_names."^backbone[.]"=""', "seed=4"])

    assert config.model.start_names == {"x": "y", "^backbone[.]": ""}
    assert config.seed == 4
