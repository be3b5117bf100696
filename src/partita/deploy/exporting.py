"""A device's own model, written on the device when its run is over."""

from pathlib import Path

from partita.data.writing import check_new
from partita.deploy.home import RunHome
from partita.deploy.joining import Joined
from partita.durable import new_file
from partita.errors import ConfigError, RunFailed
from partita.exports.files import model_bytes
from partita.exports.recipes import NotNamed, recipe_of
from partita.params import copy_into
from partita.tasks.build import build_model


def export_own(joined: Joined, home: RunHome, out: Path) -> None:
    """Write the device's model: u as it came last, with the device's own v.

    Raises:
        ConfigError: the file exists, or the model has no name by which it can be built again.
        RunFailed: the device was in no round after pretraining, so it has no model of its own.
    """
    check_new(out)
    groups = home.model()
    if "shared" not in groups:
        raise RunFailed("The device was not evaluated after pretraining: it has no final model to export.")
    own = joined.built.personalization.on(joined.device)
    try:
        recipe = recipe_of(joined.built.task.model, own)
    except NotNamed as error:
        raise ConfigError(f"{error} Give `model.name` an import path.") from None
    model = build_model(joined.built.task, own, seed=joined.seed)
    parts, kept = own.partition.of(model), home.store.load(joined.device) or {}
    copy_into(parts.shared, {name: groups["shared"][name] for name in parts.shared})
    copy_into(parts.personal, own.partition.personal_in(kept) or groups.get("personal", {}))
    pretrained = groups.get("pretrained", {})
    copy_into({name: parts.frozen[name] for name in pretrained}, pretrained)
    about = {"device": joined.device, "run": home.run, "results": dict(home.results)}
    with new_file(out) as scratch:
        scratch.write_bytes(model_bytes(model, recipe, about))
