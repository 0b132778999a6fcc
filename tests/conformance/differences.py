"""Every way in which the gateway is meant to differ from Triton, each with its reason.

A difference is bound to what both sides answer. Where one of them no longer does, the case that
refers to it fails, and so does a difference that no case refers to.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from tests.conformance.comparison import JSON, Reading

NO_SUCH_MODEL = "Request for unknown model: "


@dataclass(frozen=True)
class Difference:
    """Why answers differ, and what exactly the two answers (Triton's first) then are.

    `names_field` means that the gateway's error says what is wrong with which field, or header.
    """

    name: str
    reason: str
    holds: Callable[[Reading, Reading], bool]
    names_field: bool = False


def statuses(triton: int, gateway: int) -> Callable[[Reading, Reading], bool]:
    """Both statuses are as given."""
    return lambda one, other: (one.status, other.status) == (triton, gateway)


def same_but_words(status: int) -> Callable[[Reading, Reading], bool]:
    """Only the error texts differ."""
    return lambda one, other: one.status == other.status == status and bool(other.text)


def _adds_where(triton: Reading, gateway: Reading) -> bool:
    return gateway.text.startswith(triton.text.rstrip(".")) and triton.status == gateway.status


def _lacks_prefix(triton: Reading, gateway: Reading) -> bool:
    _, _, core = triton.text.rpartition("[request id: <id_unknown>] ")
    told = core.partition(". Please make sure")[0]
    return triton.status == gateway.status == 400 and gateway.text == told != triton.text


def _wraps(triton: Reading, gateway: Reading) -> bool:
    return statuses(200, 400)(triton, gateway) and "is out of range for" in gateway.text


def _half_precision(triton: Reading, gateway: Reading) -> bool:
    refused = "16 data via JSON is not supported" in triton.text
    return statuses(400, 200)(triton, gateway) and refused


def _last_place(triton: Reading, gateway: Reading) -> bool:
    """All doubles are equal or neighbours, and some are neighbours."""
    pairs = list(zip(_bits(triton), _bits(gateway), strict=True))
    return max(abs(one - other) for one, other in pairs) == 1


def _bits(reading: Reading) -> list[int]:
    doubles = reading.document["outputs"][0].get("data")
    raw = reading.tail if doubles is None else struct.pack(f"<{len(doubles)}d", *doubles)
    return list(struct.unpack(f"<{len(raw) // 8}q", raw))


def _decoded_name(triton: Reading, gateway: Reading) -> bool:
    unknown = triton.text.startswith(NO_SUCH_MODEL) and "%" in triton.text
    return unknown and gateway.status == 404 and gateway.text.startswith(NO_SUCH_MODEL)


def _no_such_name(triton: Reading, gateway: Reading) -> bool:
    return triton.status in (400, 404) and (gateway.status, gateway.text) == (404, "Not Found")


MALFORMED_IS_400 = Difference(
    "malformed requests are the caller's fault",
    "Triton answers 500 to JSON it cannot parse and to fields of the wrong type. A 500 makes "
    "clients retry and operators look for a broken server; the request is what is broken.",
    statuses(500, 400),
    names_field=True,
)
SAYS_WHERE = Difference(
    "errors say where",
    "The gateway adds the path of the field, the header or the choices to Triton's text.",
    _adds_where,
    names_field=True,
)
NO_ID_PREFIX = Difference(
    "no request id in front of errors found early",
    "Triton's core finds sizes that do not fit and puts the request's id before the text. The "
    "gateway finds them before anything is sent; its answers carry the request id as a header.",
    _lacks_prefix,
)
OWN_WORDS = Difference(
    "the cause instead of its consequence",
    "Triton reads on and stumbles later: it blames the tensors for a wrong length header, and the "
    "missing inputs for an empty list.",
    same_but_words(400),
    names_field=True,
)
STRICT_FIELDS = Difference(
    "known fields have one type",
    "Triton ignores `parameters` of an input or output, and index requests, that are no "
    "objects. Whoever wrote them meant something that would silently not happen.",
    statuses(200, 400),
    names_field=True,
)
STRICT_JSON = Difference(
    "JSON and nothing but JSON",
    "RapidJSON skips a byte order mark, stops at a NUL and lets bytes through that are not UTF-8. "
    "The answer to such a request could not be read by a strict parser either.",
    statuses(200, 400),
    names_field=True,
)
UNCUT_TEXT = Difference(
    "texts are not cut",
    "Triton cuts an id at its first NUL, so the answer would carry another id than the request.",
    statuses(200, 400),
    names_field=True,
)
NARROW_INTEGERS = Difference(
    "integers do not wrap",
    "Triton keeps the low bytes of an integer that is too large for its datatype, so 200 becomes "
    "-56 without a word. `strict_integers: false` brings that back.",
    _wraps,
    names_field=True,
)
HALF_PRECISION = Difference(
    "FP16 and BF16 in JSON",
    "Triton only takes and gives them as bytes; converting them costs the gateway next to nothing.",
    _half_precision,
)
EXACT_DOUBLES = Difference(
    "doubles are read exactly",
    "RapidJSON's fast path is off by one in the last place for numbers with many digits.",
    _last_place,
)
LAST_KEY = Difference(
    "of equal keys the last one counts",
    "As in every other JSON parser a client may have; Triton takes the first one.",
    statuses(200, 200),
)
LAST_AND_WHOLE = Difference(
    "the first of equal keys does not count",
    "Where the first one is malformed, Triton refuses what the gateway accepts.",
    statuses(500, 200),
)
TEXT_OUTPUT = Difference(
    "bytes that are no text cannot be JSON",
    "Triton writes them unchanged, which makes the whole answer undecodable.",
    statuses(200, 400),
    names_field=True,
)
LONG_SEQUENCE_ID = Difference(
    "a sequence id that is too long is malformed",
    "Triton answers 501, as if it were a feature that somebody might install.",
    statuses(501, 400),
    names_field=True,
)
NO_SHARED_MEMORY = Difference(
    "no shared memory",
    "A gateway has no memory in common with its clients, so no region can ever be found.",
    statuses(404, 501),
    names_field=True,
)
HEADER_IS_A_NUMBER = Difference(
    "the length header is a number",
    "Triton reads as many digits as there are and forgets the rest, or takes the first of several "
    "headers. Where lengths are guessed, two readers of one request disagree about it.",
    statuses(200, 400),
    names_field=True,
)
NO_ACCIDENTAL_RAW = Difference(
    "raw requests have to ask for it",
    "Without a body and a header Triton arrives at a length of 0, which is the mark of a raw "
    "request, and runs the model on nothing.",
    statuses(200, 400),
    names_field=True,
)
DAMAGED_COMPRESSION = Difference(
    "damaged compressed bodies are refused",
    "Triton runs the model on whatever it could unpack.",
    statuses(200, 400),
    names_field=True,
)
GZIP_MEMBERS = Difference(
    "gzip bodies may have several members",
    "As the format says; Triton reads the first one only.",
    statuses(500, 200),
)
EMPTY_ENCODING = Difference(
    "an empty Content-Encoding is none",
    "Triton takes the empty header for an unknown coding.",
    statuses(501, 200),
)
CHUNK_EXTENSIONS = Difference(
    "chunks may have extensions",
    "As HTTP says; Triton closes the connection without an answer.",
    statuses(0, 200),
)
HOST_IS_REQUIRED = Difference(
    "HTTP/1.1 requests name their host",
    "As HTTP says; Triton does not care.",
    statuses(200, 400),
)
STRICT_HTTP = Difference(
    "malformed HTTP gets an answer",
    "Triton closes the connection without one.",
    statuses(0, 400),
)
CLEAN_HEADERS = Difference(
    "header fields are what HTTP says they are",
    "Triton lets control characters and blanks before the colon through. What two parsers read "
    "differently is how requests are smuggled past a gateway.",
    statuses(200, 400),
)
ASCII_TARGETS = Difference(
    "request targets are ASCII",
    "As HTTP says; other letters have to be percent-encoded. Triton compares the bytes.",
    lambda triton, gateway: triton.status in (400, 404) and gateway.status == 400,
)
DECODED_NAMES = Difference(
    "model names are decoded",
    "Triton compares names as they are in the path, so a model whose name needs encoding cannot "
    "be called. The gateway decodes once, after the path was split.",
    _decoded_name,
)
DECODED_AND_FOUND = Difference(
    "model names are found when decoded",
    "What the decoding of names is for.",
    lambda triton, gateway: triton.status in (400, 404) and gateway.status == 200,
)
IMPOSSIBLE_NAMES = Difference(
    "names no model can have are no route",
    "A slash, a NUL or bytes that are not UTF-8 after decoding.",
    _no_such_name,
)
VERSION_WORDS = Difference(
    "no C++ in the error text",
    "Triton's text for a version beyond 64 bits goes on with the name of the function that threw.",
    lambda triton, gateway: gateway.status == 400 and triton.text.startswith(gateway.text),
)
STATISTICS_ARE_FOUND_OR_NOT = Difference(
    "an unknown model is a 404 everywhere",
    "Triton answers 400 for its statistics and 404 for everything else.",
    statuses(400, 404),
)
SAYS_WHICH_SERVERS = Difference(
    "changes are reported server by server",
    "A Triton answers a load or unload with nothing; the gateway says what became of it on each "
    "server. Triton's clients do not look.",
    lambda triton, gateway: (
        triton.document is None
        and {"id", "model", "state", "servers"} <= set(gateway.document)
        and gateway.document["state"] == "done"
    ),
)
SAYS_WHO_FAILED = Difference(
    "failures are reported server by server",
    "The status is the worst one; the text has Triton's own for each server, and its name.",
    lambda triton, gateway: (
        triton.status == gateway.status and gateway.text.endswith(f" servers: y: {triton.text}")
    ),
)
FILES_NEED_CONFIG = Difference(
    "files without a configuration are malformed",
    "Triton does not find a model in them and says that polling the repository failed.",
    statuses(500, 400),
    names_field=True,
)
NO_REGIONS = Difference(
    "no shared memory",
    "A gateway has no memory in common with its clients, so nothing is ever registered.",
    lambda triton, gateway: (
        triton.status in (200, 400, 404, 500)
        and gateway.status == 501
        and "no memory in common" in gateway.text
    ),
)
SETTINGS_OF_UNKNOWN_MODELS = Difference(
    "an unknown model is a 404 everywhere",
    "Triton answers 400 for its trace settings and 404 for everything else.",
    lambda triton, gateway: (
        triton.status == 400
        and gateway.status == 404
        and gateway.text == "Request for unknown model: 'nope' is not found"
    ),
)
LEVEL_TOO_LARGE = Difference(
    "a log level does not wrap",
    "Triton keeps the low bytes of a level that is too large: 2**32 switches the log off.",
    statuses(200, 400),
    names_field=True,
)
BAD_LOG_FORMAT = Difference(
    "an unknown log format is malformed",
    "Triton says 503, as if it might know the format later.",
    statuses(503, 400),
    names_field=True,
)
MODELS_ARE_LISTED = Difference(
    "/v2/models lists the models of the fleet",
    "Triton has no such route.",
    statuses(404, 200),
)

JSON_ERRORS = Difference(
    "errors are labelled as JSON",
    "All of them are; Triton calls some of its own text/plain.",
    lambda triton, gateway: triton.content_type == "text/plain" and gateway.content_type == JSON,
)

EXACTLY_ONE = Difference(
    "generate without exactly one answer has failed",
    "Triton says so in the body of a 200, which every client takes for an answer.",
    lambda triton, gateway: (
        statuses(200, 400)(triton, gateway) and gateway.text == triton.text != ""
    ),
)
ERROR_BEHIND_ANSWER = Difference(
    "the error behind an answer is told",
    "Where an error follows the one answer to generate, Triton only says that there was more.",
    statuses(200, 500),
)
TRUE_STATUS = Difference(
    "errors of models have their status",
    "Triton answers 400 to every error of a model on its generate routes, also to those that it "
    "answers with 500 or 503 to an infer request.",
    lambda triton, gateway: (
        triton.status == 400 and gateway.status >= 500 and triton.text == gateway.text
    ),
)
LAST_PARAMETER = Difference(
    "of equal parameters the last one counts",
    "Triton hands the first one to the model twice. (Of equal inputs both refuse the second.)",
    statuses(200, 200),
)
KNOWN_PARAMETERS = Difference(
    "parameters of an infer request mean the same on generate",
    "Servers are called by gRPC, where `priority`, `timeout` and `sequence_*` cannot be handed to "
    "a model as mere words, and `triton_*` cannot at all.",
    statuses(200, 200),
)
PACKED_GENERATE = Difference(
    "generate requests may be compressed",
    "As infer requests may; Triton takes them as they are only.",
    statuses(400, 200),
)
KNOWN_LEVELS = Difference(
    "a priority that the model does not have is a 400",
    "Triton takes it for the model's default level without a word, so that the caller believes it "
    "has a priority. Models without levels are told whatever it says.",
    statuses(200, 400),
    names_field=True,
)

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Difference))
