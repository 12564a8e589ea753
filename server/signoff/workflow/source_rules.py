"""What a handler must not touch itself, and what to write instead (D5)."""

from __future__ import annotations

import builtins
import types
from dataclasses import dataclass
from typing import Any

NOW = "use step.now()"
RANDOM = "use step.random"
UUID = "use step.uuid()"
SLEEP = "use await step.sleep(...)"
LOG = "use step.log(...)"
ENVIRONMENT = "read it in an action, or pass it as an argument of the run"
OUTSIDE = "do it in a step: await step.run_action(...) or step.do(...)"
CONCURRENT = "use asyncio.gather or a TaskGroup over steps"

# Dotted names; a name covers everything below it. The longest that fits decides; None allows.
_RULES: dict[str, str | None] = {
    "time.time": NOW,
    "time.time_ns": NOW,
    "time.monotonic": NOW,
    "time.monotonic_ns": NOW,
    "time.perf_counter": NOW,
    "time.perf_counter_ns": NOW,
    "time.process_time": NOW,
    "time.process_time_ns": NOW,
    "time.thread_time": NOW,
    "time.clock_gettime": NOW,
    "time.clock_gettime_ns": NOW,
    "time.localtime": NOW,
    "time.gmtime": NOW,
    "time.ctime": NOW,
    "time.asctime": NOW,
    "time.strftime": NOW,
    "time.sleep": SLEEP,
    "datetime.datetime.now": NOW,
    "datetime.datetime.utcnow": NOW,
    "datetime.datetime.today": NOW,
    "datetime.date.today": NOW,
    "random": RANDOM,
    "secrets": RANDOM,
    "numpy.random": RANDOM,
    "os.urandom": RANDOM,
    "os.getrandom": RANDOM,
    "uuid.uuid1": UUID,
    "uuid.uuid4": UUID,
    "uuid.uuid6": UUID,
    "uuid.uuid7": UUID,
    "uuid.getnode": UUID,
    "os": OUTSIDE,
    "os.environ": ENVIRONMENT,
    "os.environb": ENVIRONMENT,
    "os.getenv": ENVIRONMENT,
    "os.getenvb": ENVIRONMENT,
    "os.getcwd": ENVIRONMENT,
    "os.getpid": ENVIRONMENT,
    "os.cpu_count": ENVIRONMENT,
    "os.fspath": None,
    "os.PathLike": None,
    "os.fsencode": None,
    "os.fsdecode": None,
    "os.path": None,
    "os.path.exists": OUTSIDE,
    "os.path.lexists": OUTSIDE,
    "os.path.isfile": OUTSIDE,
    "os.path.isdir": OUTSIDE,
    "os.path.islink": OUTSIDE,
    "os.path.getsize": OUTSIDE,
    "os.path.getmtime": OUTSIDE,
    "os.path.realpath": OUTSIDE,
    "os.path.abspath": ENVIRONMENT,
    "os.path.expanduser": ENVIRONMENT,
    "os.path.expandvars": ENVIRONMENT,
    "platform": ENVIRONMENT,
    "getpass": ENVIRONMENT,
    "sys.argv": ENVIRONMENT,
    "sys.stdin": OUTSIDE,
    "sys.stdout": LOG,
    "sys.stderr": LOG,
    "builtins.open": OUTSIDE,
    "builtins.input": OUTSIDE,
    "builtins.breakpoint": "debug the step functions, or replay the run in a test",
    "builtins.print": LOG,
    "pprint.pprint": LOG,
    "pprint.pp": LOG,
    "warnings.warn": LOG,
    "logging": LOG,
    "structlog": LOG,
    "loguru": LOG,
    "io.open": OUTSIDE,
    "io.open_code": OUTSIDE,
    "io.FileIO": OUTSIDE,
    "pathlib.Path.cwd": ENVIRONMENT,
    "pathlib.Path.home": ENVIRONMENT,
    **dict.fromkeys(
        [
            "aiohttp",
            "aiosmtplib",
            "aiosqlite",
            "asyncio.create_subprocess_exec",
            "asyncio.create_subprocess_shell",
            "asyncio.open_connection",
            "asyncio.open_unix_connection",
            "asyncio.start_server",
            "asyncio.start_unix_server",
            "asyncpg",
            "boto3",
            "botocore",
            "codecs.open",
            "fileinput",
            "ftplib",
            "glob",
            "http.client",
            "http.server",
            "httpx",
            "httpx2",
            "imaplib",
            "linecache",
            "mmap",
            "paramiko",
            "poplib",
            "psycopg",
            "psycopg2",
            "pymongo",
            "redis",
            "requests",
            "select",
            "selectors",
            "shelve",
            "shutil",
            "signal",
            "smtplib",
            "socket",
            "socketserver",
            "sqlite3",
            "ssl",
            "subprocess",
            "telnetlib",
            "tempfile",
            "urllib.request",
            "urllib3",
            "websockets",
        ],
        OUTSIDE,
    ),
    **dict.fromkeys(
        [
            "_thread",
            "anyio.to_thread",
            "asyncio.new_event_loop",
            "asyncio.run",
            "asyncio.run_coroutine_threadsafe",
            "asyncio.to_thread",
            "concurrent.futures",
            "multiprocessing",
            "threading",
        ],
        CONCURRENT,
    ),
}

# Modules whose public face differs from where their objects say that they live.
_MODULE_NAMES = {
    "_io": "io",
    "_pydatetime": "datetime",
    "_random": "random",
    "_socket": "socket",
    "_sqlite3": "sqlite3",
    "_uuid": "uuid",
    "genericpath": "os.path",
    "nt": "os",
    "ntpath": "os.path",
    "pathlib._local": "pathlib",
    "posix": "os",
    "posixpath": "os.path",
}

# Methods that no other kind of object has under this name: of paths and of event loops.
METHODS: dict[str, str] = {
    "read_text": OUTSIDE,
    "write_text": OUTSIDE,
    "read_bytes": OUTSIDE,
    "write_bytes": OUTSIDE,
    "run_in_executor": CONCURRENT,
}


@dataclass(frozen=True, slots=True)
class Hit:
    name: str
    replacement: str


def lookup(dotted: str) -> Hit | None:
    """The rule for a dotted name, by its longest part that has one."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        prefix = ".".join(parts[:length])
        if prefix in _RULES:
            replacement = _RULES[prefix]
            return None if replacement is None else Hit(dotted, replacement)
    return None


def dotted_name(value: Any) -> str | None:
    """Where an object comes from: module and qualified name; of an instance, those of its class."""
    known = _by_identity().get(id(value))
    if known is not None:
        return known
    if isinstance(value, types.ModuleType):
        return _MODULE_NAMES.get(value.__name__, value.__name__)
    owner = value
    if not isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | types.MethodType):
        owner = type(value)
    bound = getattr(owner, "__self__", None)
    if bound is not None and not isinstance(bound, types.ModuleType):
        inner = dotted_name(bound)
        return None if inner is None else f"{inner}.{owner.__name__}"
    module, qualname = getattr(owner, "__module__", None), getattr(owner, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        return None
    return f"{_MODULE_NAMES.get(module, module)}.{qualname}"


_identities: dict[int, str] = {}


def _by_identity() -> dict[int, str]:
    """Objects that do not say where they come from, like os.environ and random.random."""
    if not _identities:
        import os
        import random
        import sys

        for name in ("environ", "environb"):
            if hasattr(os, name):
                _identities[id(getattr(os, name))] = f"os.{name}"
        for name in ("stdin", "stdout", "stderr"):
            _identities[id(getattr(sys, name))] = f"sys.{name}"
        for name, value in vars(random).items():
            if callable(value) and not isinstance(value, type) and getattr(value, "__self__", None) is not None:
                _identities[id(value)] = f"random.{name}"
        _identities[id(builtins.open)] = "builtins.open"
    return _identities


def is_harmless_reference(value: Any) -> bool:
    """What may be named, only not called: classes, exceptions, constants, modules."""
    return isinstance(value, type | types.ModuleType | int | float | str | bytes | tuple | frozenset)
