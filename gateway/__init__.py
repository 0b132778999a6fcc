"""triton-gateway: an async REST gateway in front of a fleet of Triton Inference Servers."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("triton-gateway")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"
