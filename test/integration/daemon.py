"""Start, watch and end one riffle daemon in a private folder.

Every wait has a deadline, and a daemon never outlives its test: it is ended by its pid, and the
kernel ends it if the test process itself dies.
"""

import collections
import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import vhost_user

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RIFFLE = os.path.abspath(os.environ.get("RIFFLE", os.path.join(ROOT, "build", "riffle")))
LONG = bool(os.environ.get("RIFFLE_LONG"))  # full length instead of the scaled-down loops

START_DEADLINE = 20.0
STOP_DEADLINE = 5.0  # the daemon promises to end within this time after SIGTERM
RPC_DEADLINE = 20.0
LONGEST_REPLY = 32 << 20

PR_SET_PDEATHSIG = 1
ABSENT = object()  # "params" left out, which is not the same as null

# Daemons started by the running test; the runner prints the end of their logs when it fails.
started = []

Counters = collections.namedtuple("Counters", "fds maps memfd_maps rss_kib vsize_kib threads")


def scaled(full, short):
    """How many rounds: the report's number with RIFFLE_LONG, else one that a loaded machine takes."""
    return full if LONG else short


class RpcError(Exception):
    """A JSON-RPC error object."""

    def __init__(self, error):
        super().__init__(json.dumps(error))
        self.code = error.get("code")
        self.message = error.get("message")
        self.data = error.get("data")


class RpcClient:
    """One connection to the RPC socket; raw bytes can be sent as well as calls."""

    def __init__(self, path, timeout=RPC_DEADLINE):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout)
        try:
            vhost_user.connect(self.socket, path, timeout)
        except BaseException:
            self.socket.close()
            raise
        self.buffer = bytearray()
        self.next_id = 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def send(self, text):
        self.socket.sendall(text if isinstance(text, bytes) else text.encode())

    def send_request(self, method, params=ABSENT, **more):
        request = {"jsonrpc": "2.0", "id": self.next_id, "method": method, **more}
        if params is not ABSENT:
            request["params"] = params
        self.next_id += 1
        self.send(json.dumps(request))
        return request["id"]

    def receive_line(self):
        """One reply with its newline; b"" when the daemon closed the connection."""
        seen = 0
        while (end := self.buffer.find(b"\n", seen)) < 0:
            seen = len(self.buffer)
            assert seen <= LONGEST_REPLY, f"a reply of more than {LONGEST_REPLY} bytes"
            try:
                more = self.socket.recv(1 << 16)
            except ConnectionResetError:
                more = b""
            if not more:
                end = len(self.buffer) - 1
                break
            self.buffer += more
        line = bytes(self.buffer[:end + 1])
        del self.buffer[:end + 1]
        return line

    def receive(self):
        """One reply, decoded strictly (bad UTF-8 or bad JSON is the daemon's fault); None at end."""
        line = self.receive_line()
        if not line:
            return None
        assert line.endswith(b"\n"), f"reply cut off: {line[-80:]!r}"
        return json.loads(line.decode("utf-8", "strict"))

    def exchange(self, text):
        self.send(text)
        return self.receive()

    def quiet(self, seconds=0.3):
        """True if the daemon sends nothing for so long (a close counts as something)."""
        if self.buffer:
            return False
        old = self.socket.gettimeout()
        self.socket.settimeout(seconds)
        try:
            self.buffer += self.socket.recv(1 << 16)
            return False
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(old)

    def call(self, method, params=ABSENT):
        wanted = self.send_request(method, params)
        reply = self.receive()
        assert reply is not None, f"connection closed instead of a reply to {method}"
        assert reply.get("id") == wanted, reply
        if "error" in reply:
            raise RpcError(reply["error"])
        return reply["result"]


def two_cpus():
    """The first CPUs we may run on, two at most: more reactors would only fight for a small machine."""
    return sorted(os.sched_getaffinity(0))[:2]


def cpu_mask(cpus=None):
    return hex(sum(1 << cpu for cpu in (cpus or two_cpus())))


def _before_exec(limits):
    """In the child: end with the parent; lower the limits the test asks for."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for which, value in limits.items():
        resource.setrlimit(which, value)


class Daemon:
    """`riffle serve` in a folder of its own.

    wrapper  words put before the command line; they must exec, so that the pid stays the daemon's
    user     run as this uid and gid
    """

    def __init__(self, mask=ABSENT, config=None, wrapper=(), user=None, limits=None, start=True,
                 arguments=()):
        self.directory = tempfile.mkdtemp(prefix="riffle-")
        self.rpc_path = os.path.join(self.directory, "rpc.sock")
        self.vhost_directory = os.path.join(self.directory, "vhost")
        self.log_path = os.path.join(self.directory, "log")
        os.mkdir(self.vhost_directory)
        self.mask = cpu_mask() if mask is ABSENT else mask
        self.wrapper, self.user, self.limits = list(wrapper), user, limits or {}
        self.arguments = list(arguments)
        self.process = None
        self.config_path = None
        if config is not None:
            self.write_config(config)
        if user is not None:
            for path in (self.directory, self.vhost_directory):
                os.chown(path, user, user)
        started.append(self)
        if start:
            try:
                self.start()
            except BaseException:
                self.destroy()
                raise

    # -- life ----------------------------------------------------------------------------------

    def write_config(self, config):
        self.config_path = self.path("config.json")
        with open(self.config_path, "wb") as file:
            file.write(config if isinstance(config, bytes) else json.dumps(config).encode())

    def command(self):
        words = self.wrapper + [RIFFLE, "serve", "-r", self.rpc_path, "-S", self.vhost_directory]
        if self.mask is not None:
            words += ["-m", self.mask]
        if self.config_path is not None:
            words += ["-c", self.config_path]
        return words + self.arguments

    def spawn(self):
        """Start the process without waiting until it serves."""
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=lambda: _before_exec(self.limits),
                user=self.user, group=self.user, extra_groups=None if self.user is None else [])
        return self.process

    def start(self):
        """Ready when the RPC socket accepts."""
        self.spawn()
        end = time.monotonic() + START_DEADLINE
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"daemon ended at start with {self.process.returncode}")
            try:
                RpcClient(self.rpc_path, timeout=1).close()
                return
            except OSError:
                time.sleep(0.01)
        raise AssertionError("RPC socket does not accept")

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def wait(self, deadline=STOP_DEADLINE):
        """The exit status; the daemon must end by itself before the deadline."""
        try:
            return self.process.wait(deadline)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"daemon still runs after {deadline} s") from None

    def stop(self, sig=signal.SIGTERM):
        """End it as an operator does: status 0 in time, sockets gone, sanitizers silent."""
        assert self.alive(), f"daemon died with {self.process.returncode}"
        os.kill(self.process.pid, sig)
        status = self.wait()
        assert status == 0, f"exit status {status} after {signal.Signals(sig).name}"
        assert not os.path.exists(self.rpc_path), "RPC socket left behind"
        if os.path.isdir(self.vhost_directory):
            left = os.listdir(self.vhost_directory)
            assert not left, f"sockets left behind: {left}"
        self.check_log()

    def kill(self):
        if self.alive():
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_DEADLINE)

    def destroy(self):
        """The last resort: nothing of the daemon stays, whatever state it is in."""
        if self.process is not None:
            self.kill()
        # The log outlives the folder for the runner's report.
        self.last_log = self.log()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None and self.process is not None and self.process.returncode is None:
                self.stop()
            elif kind is None:
                self.check_log()
        finally:
            self.destroy()

    # -- what can be seen from outside -----------------------------------------------------------

    def path(self, name):
        return os.path.join(self.directory, name)

    def vhost_path(self, ctrlr):
        return os.path.join(self.vhost_directory, ctrlr)

    def log(self):
        try:
            with open(self.log_path, "rb") as file:
                return file.read().decode("utf-8", "replace")
        except OSError:
            return getattr(self, "last_log", "")

    def check_log(self):
        for word in ("AddressSanitizer", "LeakSanitizer", "runtime error:", "ThreadSanitizer",
                     "Assertion "):
            assert word not in self.log(), f"{word} in the daemon's log"

    def counters(self):
        proc = f"/proc/{self.process.pid}"
        with open(f"{proc}/maps", encoding="utf-8", errors="replace") as file:
            maps = file.readlines()
        status = {}
        with open(f"{proc}/status", encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition(":")
                status[key] = value.split()
        return Counters(fds=len(os.listdir(f"{proc}/fd")), maps=len(maps),
                        memfd_maps=sum("/memfd:" in line for line in maps),
                        rss_kib=int(status["VmRSS"][0]), vsize_kib=int(status["VmSize"][0]),
                        threads=int(status["Threads"][0]))

    def sanitized(self):
        """Under ASan the shadow alone is terabytes, and freed memory stays mapped for a while: RSS and
        the number of all mappings say nothing then."""
        return self.counters().vsize_kib > 1 << 30

    def no_leak(self, maps=24, rss_kib=None, seconds=5.0):
        return NoLeak(self, maps, rss_kib, seconds)

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # -- RPC -------------------------------------------------------------------------------------

    def rpc_client(self, timeout=RPC_DEADLINE):
        return RpcClient(self.rpc_path, timeout)

    def call(self, method, params=ABSENT):
        with self.rpc_client() as client:
            return client.call(method, params)

    def rpc(self, method, **params):
        return self.call(method, params if params else ABSENT)

    def rpc_error(self, method, **params):
        """The error object of a call that must fail."""
        try:
            result = self.rpc(method, **params)
        except RpcError as error:
            return error
        raise AssertionError(f"{method} {params} succeeded with {result!r}")

    def malloc_disk(self, ctrlr="disk", blocks=32768, bdev="Malloc0", **options):
        """A RAM bdev behind a controller; returns the path of the vhost-user socket."""
        self.rpc("bdev_malloc_create", name=bdev, num_blocks=blocks, block_size=512)
        self.rpc("vhost_create_blk_controller", ctrlr=ctrlr, dev_name=bdev, **options)
        return self.vhost_path(ctrlr)

    def delete_controller(self, ctrlr, deadline=5.0):
        """A controller with a connected client is not deleted, and the session of a client that has
        just left may still be ending."""
        end = time.monotonic() + deadline
        while True:
            try:
                assert self.rpc("vhost_delete_controller", ctrlr=ctrlr) is True
                return
            except RpcError as error:
                assert error.message == "Device or resource busy" and time.monotonic() < end, error
                time.sleep(0.02)

    def delayed_disk(self, ctrlr="slow", read_us=0, write_us=0, base="Base0", blocks=32768, **options):
        """A RAM bdev that answers late; for tests that need requests in flight."""
        self.rpc("bdev_malloc_create", name=base, num_blocks=blocks, block_size=512)
        self.rpc("bdev_delay_create", base_bdev_name=base, name=f"{base}-delay",
                 avg_read_latency=read_us, p99_read_latency=read_us,
                 avg_write_latency=write_us, p99_write_latency=write_us)
        self.rpc("vhost_create_blk_controller", ctrlr=ctrlr, dev_name=f"{base}-delay", **options)
        return self.vhost_path(ctrlr)


class NoLeak:
    """A block after which the daemon has as many fds and guest mappings as before it.

    The end of a session is not synchronous with the client's close, so the counters get some time.
    All mappings together may differ a little: thread stacks and malloc arenas come and go.
    """

    def __init__(self, daemon, maps, rss_kib, seconds):
        self.daemon, self.maps, self.rss_kib, self.seconds = daemon, maps, rss_kib, seconds

    def __enter__(self):
        self.before = settled(self.daemon)
        return self

    def problems(self):
        before, now = self.before, self.daemon.counters()
        out = []
        if now.fds > before.fds:
            out.append(f"{now.fds - before.fds} fds more")
        if now.memfd_maps > before.memfd_maps:
            out.append(f"{now.memfd_maps - before.memfd_maps} memfd mappings more")
        if now.maps > before.maps + self.maps and not self.daemon.sanitized():
            out.append(f"{now.maps - before.maps} mappings more")
        if self.rss_kib is not None and not self.daemon.sanitized():
            if now.rss_kib > before.rss_kib + self.rss_kib:
                out.append(f"RSS {now.rss_kib - before.rss_kib} KiB more")
        return out

    def __exit__(self, kind, *_):
        if kind is not None:
            return
        end = time.monotonic() + self.seconds
        while (problems := self.problems()) and time.monotonic() < end:
            time.sleep(0.02)
        assert not problems, f"leak: {', '.join(problems)}\n{open_files(self.daemon)}"


def settled(daemon, quiet=0.15, deadline=3.0):
    """Counters once they have stood still for a moment: earlier sessions may still be ending."""
    end = time.monotonic() + deadline
    last, since = daemon.counters(), time.monotonic()
    while time.monotonic() < end:
        time.sleep(0.02)
        now = daemon.counters()
        if (now.fds, now.memfd_maps) != (last.fds, last.memfd_maps):
            since = time.monotonic()
        elif time.monotonic() - since > quiet:
            return now
        last = now
    return last


def open_files(daemon):
    """What the fds are, for the report of a leak."""
    kinds = collections.Counter()
    folder = f"/proc/{daemon.process.pid}/fd"
    for name in os.listdir(folder):
        try:
            kinds[os.readlink(f"{folder}/{name}").split(":")[0]] += 1
        except OSError:
            pass
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(12))


@contextlib.contextmanager
def hostile_disk(rss_kib=None, maps=24, **options):
    """(daemon, socket path) under the bug log's common pass rule: the process stays alive, fds and
    mappings return to their start, a client of another controller keeps working, and the offender
    can reconnect."""
    options.setdefault("num_queues", 2)
    with Daemon() as daemon:
        path = daemon.malloc_disk(**options)
        other = daemon.malloc_disk(ctrlr="other", bdev="Other0")
        with vhost_user.Guest(other) as bystander:
            # What a first session allocates for good is no leak.
            for _ in range(3):
                with vhost_user.Guest(path) as guest:
                    guest.ring.check()
            with daemon.no_leak(maps=maps, rss_kib=rss_kib):
                yield daemon, path
                bystander.ring.check(sector=1)
                with vhost_user.Guest(path) as guest:
                    guest.ring.check(sector=2)
            assert daemon.alive()


def run_riffle(*words, timeout=20, **options):
    """A short riffle command to its end."""
    return subprocess.run([RIFFLE, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=timeout, check=False, **options)
