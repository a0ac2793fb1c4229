"""Inside a sandbox: runs a task's tests against a candidate that runs in another sandbox.

The functions that the tests call are stand-ins: arguments are sent to the other sandbox as data, and a value comes back
as data. So the candidate never sees the tests, and nothing that it does to its own process (other builtins, an early
exit, printed text) can make a test pass.

An object that is not data stays in the candidate's sandbox, and the tests have a `Remote` of it. What a function
returned may be called, iterated, indexed and read, and its truth asked; what is compared with an expected value is
compared here, so that the candidate cannot decide it. All operations, comparing included, are passed on for an object
that the tests themselves have created from one of the `class_names`: its behaviour is what they test.

It is joined to `values.py` as text; the names from there are imported for the reader only.
"""

import builtins
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _json import encode_basestring_ascii as quoted
    from collections.abc import Callable
    from typing import Any, TextIO

    from practicum.sandbox.harness.values import NotData, dumps, loads

METHODS_OF_DATA = {name for cls in (str, bytes, list, tuple, dict, set, int, float) for name in dir(cls)}
"""Methods that tests call on data: on an object that a function returned, they would let the candidate judge itself."""
UNARY = ("abs", "neg", "pos", "invert")
BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
COMPARING = ("eq", "ne", "lt", "le", "gt", "ge", "contains")


class Unusable(Exception):
    """The tests cannot be run this way, whatever the candidate does."""


class CandidateEnded(Exception):
    """The candidate's process has ended."""


class Connection:
    """The candidate's sandbox, in which functions are called."""

    def __init__(self, line_in: "TextIO", line_out: "TextIO") -> None:
        self.line_in, self.line_out = line_in, line_out
        self.unusable = ""
        """Why the tests cannot be run, kept in case that they catch the exception."""
        self.exceptions: dict[str, type[Exception]] = {}

    def read(self, trusted: bool = False) -> "Any":
        def resolve(kind: str, body: "Any") -> object:
            number, name = body
            return (Trusted if trusted else Remote)(self, "object", int(number), str(name))

        try:
            return loads(self.line_in.readline(), resolve)
        except (ValueError, OSError) as error:
            raise CandidateEnded(f"the candidate did not answer: {error}") from None

    def call(self, kind: str, key: object, arguments: "Any", keywords: "Any" = None, trusted: bool = False) -> "Any":
        """Call something in the other sandbox; return its value, or raise its exception."""
        keywords = keywords or {}
        try:
            request = dumps([kind, key, list(arguments), keywords], _reference)
        except NotData as error:
            self.unusable = f"the tests pass a {error} to {key}, and only data can cross"
            raise Unusable(self.unusable) from None
        try:
            self.line_out.write(request + "\n")
            self.line_out.flush()
        except OSError as error:
            raise CandidateEnded(f"the candidate did not answer: {error}") from None
        answer, first, second = self.read(trusted)
        if answer == "raised":
            raise self.exception(first, second)
        if second is not None:
            _assign(list(arguments), second[0])
            _assign(keywords, second[1])
        return first

    def exception(self, names: "list[str]", text: str) -> Exception:
        """Return an exception of the first of the classes that is known here."""
        for name in names:
            exception_class = self.exceptions.get(name, getattr(builtins, name, None))
            if isinstance(exception_class, type) and issubclass(exception_class, Exception):
                try:
                    return exception_class(text)
                except TypeError:  # one that needs other arguments
                    break
        return RuntimeError(text)


def _assign(old: "Any", new: "Any") -> "Any":
    """Change a value that was passed as an argument to what the call has made of it; return what replaces it."""
    if isinstance(old, list) and isinstance(new, list):
        old[:] = [_assign(*pair) for pair in zip(old, new)] + new[len(old) :]  # noqa: B905 (lengths may differ)
    elif isinstance(old, dict) and isinstance(new, dict):
        items = {key: _assign(old[key], item) if key in old else item for key, item in new.items()}
        old.clear()
        old.update(items)
    elif isinstance(old, set) and isinstance(new, set):
        old.clear()
        old.update(new)
    elif isinstance(old, bytearray) and isinstance(new, bytes):
        old[:] = new
    elif type(old).__name__ == type(new).__name__ == "deque":
        old.clear()
        old.extend(new)
    elif isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        parts = tuple(_assign(*pair) for pair in zip(old, new))  # noqa: B905 (lengths are equal)
        return old if parts == old else parts
    else:
        return new
    return old


class Remote:
    """An object of the candidate, or one of its functions and classes, in the other sandbox."""

    _trusted = False

    def __init__(self, connection: Connection, kind: str, key: object, name: str) -> None:
        self.__dict__.update(_connection=connection, _kind=kind, _key=key, _name=name)

    def _op(self, name: str, *arguments: object) -> "Any":
        return self._connection.call("op", name, [self, *arguments], trusted=self._trusted)

    def __call__(self, *arguments: object, **keywords: object) -> "Any":
        return self._connection.call(self._kind, self._key, arguments, keywords, self._trusted)

    def __getattr__(self, name: str) -> "Any":
        if not self._trusted and name in METHODS_OF_DATA:
            raise AttributeError(f"a {self._name} has no '{name}'")
        return self._op("getattr", name)

    def __bool__(self) -> bool:
        return bool(self._op("truth"))

    def __len__(self) -> int:
        return int(self._op("len"))

    def __iter__(self) -> "Any":
        return self._op("iter")

    def __next__(self) -> "Any":
        return self._op("next")

    def __getitem__(self, index: object) -> "Any":
        return self._op("getitem", index)

    def __str__(self) -> str:
        return str(self._op("str"))

    def __repr__(self) -> str:
        return str(self._op("repr"))

    def __hash__(self) -> int:
        return hash((self._kind, self._key))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and (self._kind, self._key) == (other._kind, other._key)

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, Remote) and bool(self._connection.call("op", "isinstance", [value, self]))

    def __mro_entries__(self, bases: object) -> "Any":
        self._connection.unusable = f"the tests derive a class from {self._name}"
        raise Unusable(self._connection.unusable)


class Trusted(Remote):
    """An object that the tests have created from a class of the candidate, or one that such an object returned."""

    _trusted = True

    def __hash__(self) -> int:
        return int(self._op("hash"))

    def __setattr__(self, name: str, value: object) -> None:
        self._op("setattr", name, value)

    def __setitem__(self, index: object, value: object) -> None:
        self._op("setitem", index, value)

    def __delitem__(self, index: object) -> None:
        self._op("delitem", index)


def _passed_on(operation: str) -> "Callable[..., Any]":
    return lambda self, *arguments: self._op(operation, *arguments)


def _reflected(operation: str) -> "Callable[..., Any]":
    return lambda self, other: self._connection.call("op", operation, [other, self], trusted=True)


for _operation in (*UNARY, *BINARY, *COMPARING):
    _function = f"{_operation}_" if _operation in ("and", "or") else _operation
    setattr(Trusted, f"__{_operation}__", _passed_on(_function))
    if _operation in BINARY:
        setattr(Trusted, f"__r{_operation}__", _reflected(_function))


class StandInClass(Remote):
    """A class of the candidate that the tests use as one: what it creates for them is trusted."""

    _trusted = True


def _reference(value: object) -> str:
    if not isinstance(value, Remote):
        raise NotData(type(value).__name__)
    if value._kind == "name":
        return f'{{"name": {quoted(str(value._key))}}}'
    return f'{{"object": {int(value._key)}}}'


def candidate_names(connection: Connection, class_names: "list[str]") -> "dict[str, Any]":
    """Return stand-ins for what the candidate defines, by name."""
    kind, names = connection.read()
    if kind != "names":
        raise CandidateEnded("the candidate does not load")
    stand_ins: dict[str, Any] = {}
    for name, sort, bases in names:
        if sort == "exception":
            base = next((getattr(builtins, name) for name in bases if hasattr(builtins, name)), Exception)
            stand_ins[name] = connection.exceptions.setdefault(name, type(str(name), (base,), {}))
        else:
            stand_ins[name] = (StandInClass if name in class_names else Remote)(connection, "name", name, name)
    return stand_ins


def check_candidate(setup: str, test: str, token: str, entry_point: "str | None", class_names: "list[str]") -> None:
    """Run the tests and print the token with the verdict: `pass`, `fail` or `unusable`.

    The tests find the entry point under `__candidate__`, so that it may have the name of a builtin.
    """
    connection = Connection(os.fdopen(os.dup(0), "r", encoding="utf-8"), os.fdopen(os.dup(3), "w", encoding="utf-8"))
    namespace: dict[str, Any] = {"__name__": "checker"}
    try:
        names = candidate_names(connection, class_names)
        namespace |= {k: v for k, v in names.items() if not k.startswith("__") and not hasattr(builtins, k)}
        if entry_point is not None and entry_point in names:
            namespace["__candidate__"] = names[entry_point]
        exec(compile(setup, "<setup>", "exec", dont_inherit=True), namespace)
        exec(compile(test, "<test>", "exec", dont_inherit=True), namespace)
        verdict = "pass"
    except BaseException as error:  # an assertion, or whatever else a test raises, is a test that failed
        verdict = f"fail {type(error).__name__}"
    if connection.unusable:
        verdict = f"unusable {connection.unusable}"
    print(f"\n{token} {verdict}", flush=True)
    sys.stdout.flush()
    os._exit(0)
