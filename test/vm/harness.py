"""What the tests of `run` are made of: servers, guests, and facilities of the host."""
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
VM = HERE / "vm"
MIB = 1 << 20


class Failed(Exception):
    """The test has shown something wrong."""


class Skipped(Exception):
    """This machine lacks what the test needs."""


def run(*command, timeout=60):
    """Run a command on the host; its output. Failed with its error text when it fails."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise Failed(f"{command[0]} {command[1]}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def end(process, seconds=10):
    """SIGTERM, SIGKILL when that does not help; the exit status."""
    if process.poll() is None:
        process.terminate()
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def end_group(process):
    """The same for a process that leads a group: a shell and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not after {seconds} s")
        time.sleep(0.05)


def cpu_seconds(pid):
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def answers(path):
    """Is somebody listening on this UNIX socket?"""
    with socket.socket(socket.AF_UNIX) as s:
        return s.connect_ex(str(path)) == 0


# ---- servers --------------------------------------------------------------------------------------------------------

@dataclass
class Disk:
    name: str                       # of the controller and of its socket
    kind: str = "malloc"            # malloc, aio, uring
    size: int = 128 * MIB
    path: Path = None               # for aio and uring
    queues: int = 1
    serial: str = None
    readonly: bool = False
    packed: bool = False            # packed rings
    device: str = ""                # more properties for QEMU's device
    chardev: str = ""               # and for its socket

    def ring(self):
        return "packed" if self.packed else "split"


class Riffle:
    name = "riffle"
    binary = os.environ.get("RIFFLE", HERE.parents[1] / "build" / "riffle")

    @classmethod
    def program(cls, name):
        """Another program of the same build."""
        path = Path(shutil.which(cls.binary)).resolve().parent / name
        if not path.exists():
            raise Skipped(f"no {path}: build it")
        return path

    def __init__(self, folder):
        self.folder = folder
        self.rpc_socket = folder / "rpc.sock"
        self.log = folder / "daemon.log"
        self.cpumask = "0x1"

    @classmethod
    def missing(cls):
        return None if shutil.which(cls.binary) else f"no {cls.binary}: build it, or name it in $RIFFLE"

    def start(self, disks):
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                [self.binary, "serve", "-m", self.cpumask, "-r", self.rpc_socket, "-S", self.folder / "vhost"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(self.ready, 10, "the daemon answers on its RPC socket")
        for disk in disks:
            self.add(disk)

    def ready(self):
        if self.process.poll() is not None:
            raise Failed(f"riffle serve has ended with {self.process.returncode}")
        return answers(self.rpc_socket)

    def rpc(self, method, **args):
        words = [f"{key}={value}" for key, value in args.items()]
        out = run(self.binary, "rpc", "-s", self.rpc_socket, method, *words, timeout=20)
        return json.loads(out) if out.strip() else None

    def add(self, disk):
        bdev = f"{disk.kind}-{disk.name}"
        if disk.kind in ("malloc", "null"):
            self.rpc(f"bdev_{disk.kind}_create", name=bdev, num_blocks=disk.size // 512, block_size=512)
        else:
            self.rpc(f"bdev_{disk.kind}_create", name=bdev, filename=disk.path)
        options = {}
        if disk.readonly:
            options["readonly"] = "true"
        if disk.packed:
            options["packed_ring"] = "true"
        if disk.serial:
            options["serial"] = disk.serial
        self.rpc("vhost_create_blk_controller", ctrlr=disk.name, dev_name=bdev, **options)

    def socket(self, disk):
        return self.folder / "vhost" / disk.name

    def check_alive(self):
        if self.process.poll() is not None:
            raise Failed(f"the daemon has ended with {self.process.returncode}")
        self.rpc("bdev_get_bdevs")

    def stop(self):
        status = end(self.process)
        if status != 0:
            raise Failed(f"the daemon's exit status after SIGTERM is {status}")


class Qsd:
    """qemu-storage-daemon. It has no serials and tells guests that it has no volatile cache."""
    name = "qsd"
    binary = "qemu-storage-daemon"

    def __init__(self, folder):
        self.folder = folder
        self.log = folder / "daemon.log"

    @classmethod
    def missing(cls):
        return None if shutil.which(cls.binary) else f"no {cls.binary}"

    def start(self, disks):
        args = []
        for disk in disks:
            disk.serial = "vhost_user_blk"
            if not disk.path:
                disk.path = self.folder / disk.name
                with open(disk.path, "wb") as f:
                    f.truncate(disk.size)
            options = f"discard=unmap,read-only={'on' if disk.readonly else 'off'}"
            args += ["--blockdev", f"driver=file,node-name=f-{disk.name},filename={disk.path},{options}",
                     "--blockdev", f"driver=raw,node-name={disk.name},file=f-{disk.name},{options}",
                     "--export", f"type=vhost-user-blk,id=e-{disk.name},node-name={disk.name},"
                     f"writable={'off' if disk.readonly else 'on'},num-queues={disk.queues},"
                     f"addr.type=unix,addr.path={self.socket(disk)}"]
        with open(self.log, "a") as log:
            self.process = subprocess.Popen([self.binary, *args], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        for disk in disks:
            wait_until(self.socket(disk).exists, 10, "qemu-storage-daemon makes its socket")

    def socket(self, disk):
        return self.folder / f"{disk.name}.sock"

    def check_alive(self):
        if self.process.poll() is not None:
            raise Failed(f"the daemon has ended with {self.process.returncode}")

    def stop(self):
        end(self.process)


class Qmp:
    """QEMU's control socket."""

    def __init__(self, path):
        wait_until(lambda: answers(path), 20, "QEMU answers on its control socket")
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(str(path))
        self.file = self.socket.makefile("rw")
        self.file.readline()                        # the greeting
        self("qmp_capabilities")

    def __call__(self, command, **arguments):
        self.file.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.file.flush()
        while True:                                 # past events
            answer = json.loads(self.file.readline())
            if "error" in answer:
                raise Failed(f"{command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]


# ---- guests ---------------------------------------------------------------------------------------------------------

@dataclass
class Guest:
    """One run of `vm`: what to boot, and what to answer when the guest asks."""
    command: str = "run"                            # or boot
    job: list = field(default_factory=list)         # script and its arguments
    options: list = field(default_factory=list)     # of vm
    questions: dict = field(default_factory=dict)   # question -> function that returns the answer
    timeout: int = 200


class NvmeDevices:
    """Controllers in the guest, as QEMU's arguments: files for their namespaces, in the test's folder.

    The one that can be unplugged is behind a port; the functions of one device share an IOMMU group.
    """

    def __init__(self, folder):
        self.folder, self.args = folder, []
        self.serials = []

    def add(self, serial, block_sizes, where, size=64 * MIB):
        number = len(self.serials)
        self.serials.append(serial)
        self.args += ["-device", f"nvme-subsys,id=subsystem{number},nqn={serial}",
                      "-device", f"nvme,id={serial},serial={serial},subsys=subsystem{number},{where}"]
        for nsid, block_size in enumerate(block_sizes, 1):
            path = self.folder / f"{serial}-{nsid}"
            with open(path, "wb") as f:
                f.truncate(size)
            drive = f"{serial}-{nsid}"
            self.args += ["-drive", f"if=none,id={drive},format=raw,file={path}",
                          "-device", f"nvme-ns,drive={drive},bus={serial},nsid={nsid},"
                          f"logical_block_size={block_size},physical_block_size={block_size}"]

    def add_with_port(self, serial, block_sizes, options=""):
        port = f"port{len(self.serials)}"
        self.args += ["-device", f"pcie-root-port,id={port},chassis={len(self.serials) + 1},slot={len(self.serials) + 1}"]
        self.add(serial, block_sizes, ",".join(filter(None, [f"bus={port}", options])))


class Test:
    """One test: a folder, a server, a guest; all of it ended and removed by __exit__."""

    def __init__(self, server_class, keep):
        self.keep = keep
        self.stack = contextlib.ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="riffle-test."))
        self.console = self.folder / "console"
        self.server = server_class(self.folder)
        self.disks = []
        self.notes = []

    def __enter__(self):
        if not self.keep:
            # Not rmtree: were something still mounted there, it would be emptied.
            self.stack.callback(subprocess.run, ["rm", "-rf", "--one-file-system", self.folder])
        return self

    def __exit__(self, *exc):
        return self.stack.__exit__(*exc)

    def serve(self, *disks):
        self.disks = disks
        self.stack.callback(lambda: hasattr(self.server, "process") and end(self.server.process))
        self.server.start(disks)

    def qemu_args(self):
        args = []
        for disk in self.disks:
            args += ["-chardev", f"socket,id={disk.name},path={self.server.socket(disk)}" + (f",{disk.chardev}" if disk.chardev else ""),
                     "-device", f"vhost-user-blk-pci,chardev={disk.name},num-queues={disk.queues}"
                     + (",packed=on" if disk.packed else "") + (f",{disk.device}" if disk.device else "")]
        return args

    def start_guest(self, guest, *more):
        """Start vm, with more arguments for QEMU; the listening socket for the control port."""
        path = self.folder / "control"
        listener = self.stack.enter_context(socket.socket(socket.AF_UNIX))
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen(1)
        job = [HERE / guest.job[0], *guest.job[1:]] if guest.job else []
        command = [VM, guest.command, "-t", guest.timeout, "-c", path, "-f", HERE / "blk.sh", *guest.options,
                   *job, "--", *self.qemu_args(), *more]
        with open(self.console, "a") as console:
            vm = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=console,
                                  stderr=console, start_new_session=True)
        self.stack.callback(end_group, vm)
        return vm, listener

    def run_guest(self, guest, *more):
        """Run a guest to its end; Failed unless all of its checks passed and it ended with 0."""
        self.see_to_its_end(guest, *self.start_guest(guest, *more))

    def see_to_its_end(self, guest, vm, listener):
        listener.settimeout(0.5)
        control = None
        while not control and vm.poll() is None:
            with contextlib.suppress(socket.timeout):
                control = listener.accept()[0]
        passed, failed = self.converse(control, guest.questions) if control else ([], [])
        status = vm.wait(guest.timeout + 30)
        self.notes += [f"passed: {name}" for name in passed]
        if failed:
            raise Failed("failed: " + "; ".join(failed))
        if status:
            raise Failed(f"the guest ended with {status}" + (" (time-out)" if status == 124 else ""))
        if not passed:
            raise Failed("the guest checked nothing")

    @staticmethod
    def converse(control, questions):
        """Read the control port until QEMU closes it; the checks that passed and failed."""
        passed, failed = [], []
        control.settimeout(None)                    # vm's own time-out ends QEMU
        with control, control.makefile("rw", newline="\n") as port, contextlib.suppress(ConnectionError):
            for line in port:
                word, _, rest = line.strip().partition(" ")
                if word == "ok":
                    passed.append(rest)
                elif word == "fail":
                    failed.append(rest)
                elif word == "ask":
                    key, *args = rest.split()
                    port.write(f"{questions[key](*args)}\n")
                    port.flush()
        return passed, failed

    def finish(self):
        """The daemon has lived through it, and ends cleanly."""
        self.server.check_alive()
        self.notes.append(f"the daemon has used {cpu_seconds(self.server.process.pid):.1f} s of CPU")
        self.server.stop()

    def evidence(self):
        for what, path in ("console", self.console), ("daemon", self.server.log):
            lines = path.read_text(errors="replace").splitlines() if path.exists() else []
            yield from (f"{what}: {line}" for line in lines[-50:])


def boot_counter():
    """Answers "1", "2", .. to a guest that asks which boot it is in."""
    count = 0

    def boot():
        nonlocal count
        count += 1
        return count
    return boot


# ---- facilities of the host -----------------------------------------------------------------------------------------

def need_root(why):
    if os.geteuid():
        raise Skipped(f"only root can {why}")


@contextlib.contextmanager
def hugepages(mib):
    """At least that much memory in free 2 MiB hugepages; afterwards as many as before."""
    setting = Path("/proc/sys/vm/nr_hugepages")

    def free():
        return int(re.search(r"HugePages_Free: *(\d+)", Path("/proc/meminfo").read_text())[1])
    if not setting.exists():
        raise Skipped("this kernel has no hugepages")
    before, missing = setting.read_text(), mib // 2 - free()
    if missing <= 0:
        yield
        return
    need_root("reserve hugepages")
    try:
        setting.write_text(str(int(before) + missing))
        if free() < mib // 2:
            raise Skipped(f"{mib} MiB of hugepages cannot be reserved")
        yield
    finally:
        setting.write_text(before)


class LoopFs:
    """A small ext4 of our own, on a loop device. Without a journal: it flushes only when somebody asks."""

    def __init__(self, test, mib):
        need_root("mount a file system of the test's own")
        self.image = test.folder / "fs.img"
        self.folder = test.folder / "fs"
        self.folder.mkdir()
        with open(self.image, "wb") as f:
            f.truncate(mib * MIB)
        run("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", self.image)
        try:
            self.device = run("losetup", "--find", "--show", self.image).strip()
        except Failed as e:
            raise Skipped(f"no loop device: {e}") from e
        test.stack.callback(run, "losetup", "--detach", self.device)
        try:
            run("mount", "-t", "ext4", self.device, self.folder)
        except Failed as e:
            raise Skipped(f"cannot mount a loop device: {e}") from e
        test.stack.callback(run, "umount", self.folder)

    def flushes(self):
        """Cache flushes that the device has seen: the sixteenth number of Documentation/block/stat.rst."""
        return int(Path("/sys/block", Path(self.device).name, "stat").read_text().split()[15])


class SyncTrace:
    """Counts the fdatasyncs of files on ext4 by the kernel's tracing.

    strace sees a process's system calls only; this sees the call of ext4 itself, and so what io_uring brings as well.
    """

    def __init__(self, test, paths):
        need_root("trace the kernel")
        mount = test.folder / "tracefs"
        mount.mkdir()
        try:
            run("mount", "-t", "tracefs", "tracefs", mount)
        except Failed as e:
            raise Skipped(f"no kernel tracing: {e}") from e
        test.stack.callback(run, "umount", mount)
        self.instance = mount / "instances" / test.folder.name      # a buffer of its own: nobody is disturbed
        self.instance.mkdir()
        test.stack.callback(self.instance.rmdir)
        event = self.instance / "events" / "ext4" / "ext4_sync_file_enter"
        if not event.exists():
            raise Skipped("the kernel does not trace ext4 (ext4_sync_file_enter)")
        inodes = " || ".join(f"ino == {path.stat().st_ino}" for path in paths)
        (event / "filter").write_text(f"datasync == 1 && ({inodes})")
        (event / "enable").write_text("1")

    def lines(self, path):
        """One line for each fdatasync: task-pid, CPU, time, event."""
        mark = f" ino {path.stat().st_ino} "
        return [line for line in (self.instance / "trace").read_text().splitlines() if mark in line]


class Strace:
    """Counts a process's fdatasync system calls."""

    def __init__(self, test, pid):
        if not shutil.which("strace"):
            raise Skipped("no strace")
        self.output = test.folder / "strace"
        self.process = subprocess.Popen(["strace", "-f", "-qq", "-e", "trace=fdatasync", "-o", self.output, "-p", str(pid)],
                                        stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        test.stack.callback(end, self.process)
        try:
            wait_until(lambda: self.attached(pid), 10, "strace attaches to the daemon")
        except Failed as e:
            raise Skipped(str(e)) from e

    def attached(self, pid):
        if self.process.poll() is not None:
            raise Skipped("strace may not trace the daemon")
        status = [task / "status" for task in Path(f"/proc/{pid}/task").iterdir()]
        return not any("TracerPid:\t0\n" in path.read_text() for path in status)

    def finish(self):
        """Detach; the number of calls."""
        end(self.process)
        return len(re.findall(r"\bfdatasync\(", self.output.read_text()))
