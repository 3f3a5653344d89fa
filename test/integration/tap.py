"""A minimal runner: finds `test_*` functions in test_*.py and prints TAP.

A test passes by returning, is skipped by raising Skip, and fails by any other exception, or when
its deadline passes. Diagnostics are `# ` lines; a failure shows the end of the daemon's log.
"""

import importlib
import os
import signal
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
DEADLINE = 60  # seconds for a test that does not say otherwise
SLOWER = 4 if any(word in os.environ.get("RIFFLE", "") for word in ("asan", "tsan")) else 1  # sanitizers cost time
LOG_LINES = 25


class Skip(Exception):
    """A facility that the test needs is missing here."""


class DeadlinePassed(BaseException):
    """Not an Exception: no test may swallow it."""


def deadline(seconds):
    """Give a test its own deadline."""
    def mark(function):
        function.deadline = seconds
        return function
    return mark


def needs_root(function):
    """Skip visibly without root."""
    def run():
        if os.geteuid() != 0:
            raise Skip("needs root")
        function()
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.deadline = getattr(function, "deadline", DEADLINE)
    run.__code_line__ = function.__code__.co_firstlineno
    return run


def _alarm(*_):
    raise DeadlinePassed()


def discover(names):
    """(file, test, function) in file order and, within a file, in the order of the text."""
    files = sorted(f[:-3] for f in os.listdir(HERE) if f.startswith("test_") and f.endswith(".py"))
    found = []
    for file in files:
        module = importlib.import_module(file)
        tests = [(n, f) for n, f in vars(module).items() if n.startswith("test_") and callable(f)]
        tests.sort(key=lambda t: getattr(t[1], "__code_line__", t[1].__code__.co_firstlineno))
        found += [(file, name, function) for name, function in tests]
    if names:
        unknown = [n for n in names if not any(matches(n, f, t) for f, t, _ in found)]
        if unknown:
            sys.exit(f"run: no test is named {' or '.join(unknown)}.")
        found = [t for t in found if any(matches(n, t[0], t[1]) for n in names)]
    return found


def matches(name, file, test):
    """A file, a test, or file:test; with or without .py."""
    name = name.removesuffix(".py")
    return name in (file, test, f"{file}:{test}", f"{file}.py:{test}") or \
        (name.endswith("*") and test.startswith(name[:-1]))


def say(text):
    print("\n".join(f"# {line}" for line in text.rstrip("\n").split("\n")), flush=True)


def show_logs():
    import daemon
    for one in daemon.started:
        lines = one.log().rstrip("\n").split("\n")
        state = "not started" if one.process is None else f"status {one.process.returncode}"
        say(f"--- daemon's log, {state}, last {min(len(lines), LOG_LINES)} of {len(lines)} lines:")
        say("\n".join(line[:300] for line in lines[-LOG_LINES:]))


def run_one(number, file, name, function):
    """Print one result; True unless it failed."""
    import daemon
    daemon.started.clear()
    title = f"{number} - {file}: {name.removeprefix('test_')}"
    begin = time.monotonic()
    limit = getattr(function, "deadline", DEADLINE) * SLOWER * (10 if daemon.LONG else 1)
    try:
        signal.alarm(limit)
        try:
            function()
        finally:
            signal.alarm(0)
        print(f"ok {title}  # {time.monotonic() - begin:.1f} s", flush=True)
        return True
    except Skip as reason:
        print(f"ok {title} # SKIP {reason}", flush=True)
        return True
    except DeadlinePassed as late:
        print(f"not ok {title}", flush=True)
        say(f"deadline of {limit} s passed at:")
        say("".join(traceback.format_tb(late.__traceback__)[-4:]))
    except KeyboardInterrupt:
        print(f"Bail out! interrupted in {name}", flush=True)
        raise
    except BaseException:
        print(f"not ok {title}", flush=True)
        say(traceback.format_exc(limit=-6))
    finally:
        for one in daemon.started:
            if one.process is not None and one.process.poll() is None:
                one.destroy()
    show_logs()
    return False


def main(names):
    import daemon
    if not os.access(daemon.RIFFLE, os.X_OK):
        sys.exit(f"run: {daemon.RIFFLE} is not there; build it, or name the binary with RIFFLE=.")
    signal.signal(signal.SIGALRM, _alarm)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    tests = discover(names)
    print("TAP version 13", flush=True)
    print(f"1..{len(tests)}", flush=True)
    failed = [t for number, t in enumerate(tests, 1) if not run_one(number, *t)]
    if failed:
        say(f"{len(failed)} of {len(tests)} failed: " + ", ".join(f"{f}:{n}" for f, n, _ in failed))
    return 1 if failed else 0
