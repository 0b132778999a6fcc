"""The files a gateway was started from: read again at each reload, and looked after.

`read_config` is the one verdict on a configuration: at start, at a reload and in `check`.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from config.files import Fingerprint, fingerprint, fingerprint_of, named_files
from config.key_files import key_problems
from config.loader import load, missing_secrets
from config.models import Config
from config.tree import ConfigError, Problem
from gateway.wiring.clock import Environ
from gateway.wiring.listeners import listener_tls


class ConfigSource:
    """One file or folder. `environ` holds secrets."""

    def __init__(self, path: Path, environ: Environ) -> None:
        self.path = path
        self._environ = environ
        self._named: tuple[Path, ...] = ()
        self._read = self._seen = self._print()

    def look(self) -> Config:
        """Return what the files say now. Raises ConfigError."""
        return read_config(self.path, self._environ)

    def read(self) -> Config:
        """Return the same, and count it as taken up, whether it is any good or not."""
        # Looked at before they are read: what is written meanwhile is a change.
        written = fingerprint(self.path)
        try:
            config = load(self.path)
            self._named = tuple(named_files(config))
        finally:
            self._read = self._seen = written + fingerprint_of(self._named)
        return _judged(config, self._environ)

    def has_changed(self) -> bool:
        """Whether the files are others than were read last, and the same as at the last look.

        The files a good configuration names count as well. Somebody who is still writing is given
        time to finish.
        """
        before, self._seen = self._seen, self._print()
        return self._seen == before != self._read

    def _print(self) -> Fingerprint:
        return fingerprint(self.path) + fingerprint_of(self._named)


def read_config(path: Path, environ: Environ) -> Config:
    """Return a configuration whose secrets, certificates and keys are there. Raises ConfigError."""
    return _judged(load(path), environ)


def _judged(config: Config, environ: Environ) -> Config:
    if problems := [
        *missing_secrets(config, environ),
        *key_problems(config),
        *_unusable_certificates(config),
        *_missing_extras(config),
    ]:
        raise ConfigError(problems)
    return config


def _missing_extras(config: Config) -> Iterator[Problem]:
    for position, source in enumerate(config.discovery):
        if source.kubernetes is not None and find_spec("kubernetes_asyncio") is None:
            nodes, rest = config.origin.root.find(("discovery", position, "kubernetes"))
            yield nodes[-1].problem(
                "the package for Kubernetes is not installed - run"
                " pip install 'triton-gateway[kubernetes]'",
                rest,
            )


def _unusable_certificates(config: Config) -> Iterator[Problem]:
    for section, tls in (("api", config.api.tls), ("ops", config.ops.tls)):
        try:
            listener_tls(tls)
        except OSError as error:
            nodes, rest = config.origin.root.find((section, "tls"))
            reason = getattr(error, "reason", None) or error.strerror or error
            yield nodes[-1].problem(
                f"the certificate, its key or the authorities cannot be used: {reason}"
                " - they must be PEM files that belong together",
                rest,
            )
