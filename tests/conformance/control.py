"""Cases about the routes that change servers, compared with a Triton in the same state.

Every case leaves the server as it was, but for `echo_FP32`, which is loaded and unloaded.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from tests.conformance.case import Case
from tests.conformance.differences import (
    BAD_LOG_FORMAT,
    FILES_NEED_CONFIG,
    LEVEL_TOO_LARGE,
    MALFORMED_IS_400,
    NO_REGIONS,
    OWN_WORDS,
    SAYS_WHICH_SERVERS,
    SAYS_WHO_FAILED,
    SETTINGS_OF_UNKNOWN_MODELS,
    STRICT_FIELDS,
    STRICT_JSON,
)
from tests.conformance.raw_http import request
from tests.real.repository import MODELS, PRELUDE

ON_Y = "Triton-Gateway-Servers: y"
LOADED = "echo_INT32"
OTHER = "echo_FP32"

INT32 = {"name": LOADED, "backend": "python", "max_batch_size": 0}
INT32_CONFIG = json.dumps(
    {
        **INT32,
        "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [-1]}],
        "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [-1]}],
        "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
    }
)
SOURCE = PRELUDE + f"    def answer(self, request):\n        {MODELS[LOADED].body}\n"
FILES = {
    "config": INT32_CONFIG.replace(LOADED, "from_files"),
    "file:1/model.py": base64.b64encode(SOURCE.encode()).decode(),
}


def path(model: str, action: str, repository: str = "") -> str:
    between = f"/{repository}" if repository else ""
    return f"/v2/repository{between}/models/{model}/{action}"


def load(model: str, body: bytes = b"") -> bytes:
    return request("POST", path(model, "load"), body, [ON_Y])


def unload(model: str, body: bytes = b"") -> bytes:
    return request("POST", path(model, "unload"), body, [ON_Y])


def parameters(**given: Any) -> bytes:
    return json.dumps({"parameters": given}).encode()


def loads() -> Iterator[Case]:
    for name, body in (
        ("plain", b""),
        ("empty-object", b"{}"),
        ("no-parameters", b'{"parameters":{}}'),
        ("unknown-key", b'{"x":1}'),
    ):
        yield Case(f"load {name}", load(LOADED, body), SAYS_WHICH_SERVERS)
    for name, body, differs, field in (
        ("array", b"[]", STRICT_FIELDS, "not an object"),
        ("null", b"null", STRICT_FIELDS, "not an object"),
        ("parameters-array", b'{"parameters":[]}', MALFORMED_IS_400, "'parameters'"),
        ("parameters-null", b'{"parameters":null}', MALFORMED_IS_400, "'parameters'"),
        ("unknown-parameter", parameters(x="1"), MALFORMED_IS_400, "'parameters.x'"),
        ("config-number", parameters(config=5), MALFORMED_IS_400, "'parameters.config'"),
        ("no-json", b"nope", MALFORMED_IS_400, "failed to parse"),
        ("cut-off", b'{"parameters":', MALFORMED_IS_400, "failed to parse"),
        (
            "file-number",
            parameters(**{"file:1/model.py": 5}),
            MALFORMED_IS_400,
            "'parameters.file:1/model.py'",
        ),
        (
            "file-no-base64",
            parameters(config=INT32_CONFIG, **{"file:1/model.py": "***"}),
            OWN_WORDS,
            "'parameters.file:1/model.py'",
        ),
        (
            "file-alone",
            parameters(**{"file:1/model.py": "YWJj"}),
            FILES_NEED_CONFIG,
            "'parameters'",
        ),
    ):
        yield Case(f"load {name}", load(LOADED, body), differs, field)
    no_config = load(LOADED, parameters(config="nope"))
    yield Case("load config-no-json", no_config, SAYS_WHO_FAILED)
    yield Case("load unknown", load("nope"), SAYS_WHO_FAILED)
    yield Case("load model named index", load("index"), SAYS_WHO_FAILED)


def sequence() -> Iterator[Case]:
    """Yield steps in an order: what is loaded is ready, what is unloaded is not."""
    body = json.dumps(
        {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [1.5]}]}
    ).encode()
    ready = request("GET", f"/v2/models/{OTHER}/ready")
    infer = request("POST", f"/v2/models/{OTHER}/infer", body)
    yield Case("1 not loaded yet", ready)
    yield Case("2 unload what is not loaded", unload(OTHER), SAYS_WHICH_SERVERS)
    yield Case("3 load", load(OTHER), SAYS_WHICH_SERVERS)
    yield Case("4 ready at once", ready)
    yield Case("5 inferred at once", infer)
    yield Case("6 its metadata", request("GET", f"/v2/models/{OTHER}"))
    yield Case("7 its configuration", request("GET", f"/v2/models/{OTHER}/config"))
    with_config = INT32_CONFIG.replace(LOADED, OTHER).replace("INT32", "FP32")
    other_config = json.loads(with_config) | {"max_batch_size": 4}
    override = parameters(config=json.dumps(other_config))
    yield Case("8 reload with a config", load(OTHER, override), SAYS_WHICH_SERVERS)
    yield Case("9 its new configuration", request("GET", f"/v2/models/{OTHER}/config"))
    yield Case("10 its new metadata", request("GET", f"/v2/models/{OTHER}"))
    dependents = parameters(unload_dependents=True)
    yield Case("11 unload", unload(OTHER, dependents), SAYS_WHICH_SERVERS)
    yield Case("12 not ready at once", ready)
    yield Case("13 load files", load("from_files", parameters(**FILES)), SAYS_WHICH_SERVERS)
    yield Case("14 ready from files", request("GET", "/v2/models/from_files/ready"))
    yield Case("15 config of files", request("GET", "/v2/models/from_files/config"))
    yield Case("16 unload files", unload("from_files"), SAYS_WHICH_SERVERS)


def unloads() -> Iterator[Case]:
    yield Case("unload unknown", unload("nope"), SAYS_WHICH_SERVERS)
    yield Case("unload unknown parameter", unload("nope", parameters(x=1)), SAYS_WHICH_SERVERS)
    for name, body, differs, field in (
        ("array", b"[]", STRICT_FIELDS, "not an object"),
        ("no-json", b"nope", STRICT_JSON, "failed to parse"),
        ("parameters-number", b'{"parameters":5}', STRICT_FIELDS, "'parameters'"),
        (
            "dependents-number",
            parameters(unload_dependents=1),
            STRICT_FIELDS,
            "'parameters.unload_dependents'",
        ),
    ):
        yield Case(f"unload {name}", unload("nope", body), differs, field)


def paths() -> Iterator[Case]:
    for action in ("load", "unload"):
        yield Case(f"GET {action}", request("GET", path(LOADED, action)))
        yield Case(f"{action} in r", request("POST", path(LOADED, action, "r")))
        yield Case(f"{action} in models", request("POST", path(LOADED, action, "models")))
        yield Case(f"GET {action} in r", request("GET", path(LOADED, action, "r")))
        yield Case(f"{action} slash", request("POST", f"{path(LOADED, action)}/"))
        yield Case(f"{action} no model", request("POST", path("", action)))
    for target in (
        "/v2/repository/models",
        "/v2/repository/models/x",
        "/v2/repository/models/x/nope",
        "/v2/repository/r/s/models/x/load",
        "/v2/repository//models/x/load",
        "/v2/repository//index",
    ):
        yield Case(f"unknown {target}", request("POST", target))


def shared_memory() -> Iterator[Case]:
    for kind in ("system", "cuda"):
        root = f"/v2/{kind}sharedmemory"
        for action, method in (("status", "GET"), ("register", "POST"), ("unregister", "POST")):
            for at in ("", "/region/r"):
                target = f"{root}{at}/{action}"
                wrong = "POST" if method == "GET" else "GET"
                yield Case(f"{method} {target}", request(method, target), NO_REGIONS)
                yield Case(f"{wrong} {target}", request(wrong, target))
        for target in (root, f"{root}/", f"{root}/nope", f"{root}/region/r"):
            yield Case(f"unknown {target}", request("GET", target))
        for target in (f"{root}/region//status", f"{root}/region/r/s/status"):
            yield Case(f"unknown {target}", request("GET", target))


def settings() -> Iterator[Case]:
    trace, log = "/v2/trace/setting", "/v2/logging"
    of_model = f"/v2/models/{LOADED}/trace/setting"
    for target in (trace, of_model, log):
        yield Case(f"GET {target}", request("GET", target))
        yield Case(f"PUT {target}", request("PUT", target))
        yield Case(f"POST {target} of nothing", request("POST", target, b"{}"))
        yield Case(f"POST {target} unknown", request("POST", target, b'{"x":1}'))
        for name, body, differs in (
            ("empty", b"", MALFORMED_IS_400),
            ("no-json", b"nope", MALFORMED_IS_400),
            ("array", b"[]", STRICT_FIELDS),
        ):
            words = "not an object" if name == "array" else "failed to parse"
            yield Case(f"POST {target} {name}", request("POST", target, body), differs, words)
    for method in ("GET", "PUT", "POST"):
        versioned = f"/v2/models/{LOADED}/versions/1/trace/setting"
        yield Case(f"{method} {versioned}", request(method, versioned, b""))
        unknown = request(method, "/v2/models/nope/trace/setting", b"{}")
        differs = None if method == "PUT" else SETTINGS_OF_UNKNOWN_MODELS
        yield Case(f"{method} trace of unknown", unknown, differs)
    for name, body in (
        ("rate", b'{"trace_rate":"5"}'),
        ("count", b'{"trace_count":"7"}'),
        ("frequency", b'{"log_frequency":"3"}'),
        ("level-off", b'{"trace_level":["OFF"]}'),
        ("level-null", b'{"trace_level":null}'),
        ("mode", b'{"trace_mode":"opentelemetry"}'),
        ("back", b'{"trace_rate":null,"trace_count":null,"log_frequency":null}'),
        ("file", b'{"trace_file":"x"}'),
        ("file-null", b'{"trace_file":null}'),
    ):
        yield Case(f"trace {name}", request("POST", trace, body))
        yield Case(f"trace of model {name}", request("POST", of_model, body))
    yield Case("trace afterwards", request("GET", trace))
    yield from bad_trace(trace)
    yield from logging(log)


def bad_trace(target: str) -> Iterator[Case]:
    refused: tuple[tuple[str, bytes], ...] = (
        ("rate-text", b'{"trace_rate":"x"}'),
        ("count-too-large", b'{"trace_count":"99999999999999999999"}'),
        ("level-without-file", b'{"trace_level":["TIMESTAMPS"]}'),
    )
    for name, body in refused:
        yield Case(f"trace {name}", request("POST", target, body), SAYS_WHO_FAILED)
    for name, body, field in (
        ("rate-number", b'{"trace_rate":5}', "'trace_rate'"),
        ("rate-array", b'{"trace_rate":["5"]}', "'trace_rate'"),
        ("level-text", b'{"trace_level":"OFF"}', "'trace_level'"),
        ("level-number", b'{"trace_level":[1]}', "'trace_level[0]'"),
    ):
        yield Case(f"trace {name}", request("POST", target, body), MALFORMED_IS_400, field)


def logging(target: str) -> Iterator[Case]:
    for name, body in (
        ("info", b'{"log_info":false}'),
        ("null", b'{"log_info":null,"log_file":null,"log_format":null}'),
        ("level", b'{"log_verbose_level":1}'),
        ("format", b'{"log_format":"ISO8601"}'),
        ("several", b'{"log_info":true,"log_verbose_level":0,"log_format":"default"}'),
        ("file", b'{"log_file":"x"}'),
    ):
        yield Case(f"log {name}", request("POST", target, body))
    too_large = request("POST", target, b'{"log_verbose_level":4294967296}')
    yield Case("log level-too-large", too_large, LEVEL_TOO_LARGE, "'log_verbose_level'")
    unknown = request("POST", target, b'{"log_format":"x"}')
    yield Case("log format-unknown", unknown, BAD_LOG_FORMAT, "'log_format'")
    for name, body, field in (
        ("info-number", b'{"log_info":1}', "'log_info'"),
        ("level-text", b'{"log_verbose_level":"1"}', "'log_verbose_level'"),
        ("level-negative", b'{"log_verbose_level":-1}', "'log_verbose_level'"),
        ("level-float", b'{"log_verbose_level":1.0}', "'log_verbose_level'"),
        ("format-number", b'{"log_format":5}', "'log_format'"),
    ):
        yield Case(f"log {name}", request("POST", target, body), MALFORMED_IS_400, field)
    yield Case("log afterwards", request("GET", target))


CASES = [*loads(), *sequence(), *unloads(), *paths(), *shared_memory(), *settings()]
