"""What can go wrong in a way that a caller can act on."""


class ConfigError(ValueError):
    """A request that cannot be carried out; the message is one line that says what would be right."""


class InUse(Exception):
    """Another process is writing this run's folder."""


class RunFailed(Exception):
    """The run cannot go on."""
