"""What can go wrong in a way that a caller can act on."""


class ConfigError(ValueError):
    """A request that cannot be carried out; the message is one line that says what would be right."""


class InUse(Exception):
    """Another process is writing this run's folder."""


class RunFailed(Exception):
    """The run cannot go on."""


class CannotDo(Exception):
    """A device cannot do what was asked; the message says why.

    Raised in a loss, or while a device's data is loaded, it is a failure of that device, not of the run.
    """
