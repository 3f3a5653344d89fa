"""Files behind a disk that shrink, fill up, vanish or cannot be written (bug log, BACK)."""

import ctypes
import fcntl
import os
import random
import resource
import signal
import struct
import threading
import time

import vhost_user as vu
from daemon import Daemon, RpcError, scaled
from tap import Skip, deadline, needs_root
from vhost_user import Guest, bits

MIB = 1 << 20
KINDS = ("aio", "uring")
F_OFD_SETLK = 37  # <fcntl.h>; in Python since 3.9


def make_file(daemon, size, name="disk"):
    path = daemon.path(name)
    with open(path, "wb") as file:
        file.truncate(size)
    return path


def file_disk(daemon, kind, filename, ctrlr="disk", block_size=512, **options):
    daemon.rpc(f"bdev_{kind}_create", name=f"{ctrlr}-file", filename=filename, block_size=block_size)
    daemon.rpc("vhost_create_blk_controller", ctrlr=ctrlr, dev_name=f"{ctrlr}-file", **options)
    return daemon.vhost_path(ctrlr)


def delete_disk(daemon, kind, ctrlr="disk"):
    daemon.delete_controller(ctrlr)
    assert daemon.rpc(f"bdev_{kind}_delete", name=f"{ctrlr}-file") is True


def test_data_reaches_the_file():
    """Written by the guest, flushed, read from the file; and the other way round."""
    for kind in KINDS:
        with Daemon() as daemon:
            path = make_file(daemon, 4 * MIB)
            with open(path, "r+b") as file:
                file.seek(77 * 512)
                file.write(b"outside" * 100)
            with Guest(file_disk(daemon, kind, path)) as guest:
                assert guest.capacity() == 4 * MIB // 512
                assert guest.ring.read(77)[:7] == b"outside"
                guest.ring.write(1000, b"inside" * 1024)
                guest.ring.flush()
                with open(path, "rb") as file:
                    file.seek(1000 * 512)
                    assert file.read(6144) == b"inside" * 1024
                last = guest.capacity() - 1
                guest.ring.write(last, b"E" * 512)
                guest.ring.write(last, b"X" * 1024, status=vu.IOERR)
                assert guest.ring.read(last) == b"E" * 512
                assert os.path.getsize(path) == 4 * MIB, "the file grew"


def test_discard_and_write_zeroes():
    for kind in KINDS:
        with Daemon() as daemon:
            path = make_file(daemon, 4 * MIB)
            with Guest(file_disk(daemon, kind, path)) as guest:
                for flags in (0, 1):
                    guest.ring.write(8, b"z" * 4096)
                    guest.ring.discard(9, 2, vu.WRITE_ZEROES, flags)
                    assert guest.ring.read(8, 4096) == b"z" * 512 + bytes(1024) + b"z" * 2560
                guest.ring.discard(8, 8)
                guest.ring.discard(8191, 2, status=vu.IOERR)
                guest.ring.discard(0, 0xFFFFFFFF, vu.WRITE_ZEROES, status=vu.IOERR)
                assert os.path.getsize(path) == 4 * MIB


def test_back_168_odd_size():
    """A size that is no multiple of the block: refused clearly, or rounded down; no I/O past the end."""
    for kind in KINDS:
        with Daemon() as daemon:
            path = make_file(daemon, MIB + 100)
            try:
                disk = file_disk(daemon, kind, path)
            except RpcError as error:
                assert error.code == -22 and error.data["hint"], error
                continue
            with Guest(disk) as guest:
                capacity = guest.capacity()
                assert capacity == MIB // 512
                guest.ring.check(capacity - 2)
                guest.ring.write(capacity, b"x" * 512, status=vu.IOERR)
                assert os.path.getsize(path) == MIB + 100


def test_back_168_truncated_while_in_use():
    """A short read or write is an error or reads as zeros; never SIGBUS, never a hang, never junk."""
    for kind in KINDS:
        with Daemon() as daemon:
            path = make_file(daemon, 4 * MIB)
            with Guest(file_disk(daemon, kind, path), slot=16384) as guest:
                ring, half = guest.ring, 4 * MIB // 512 // 2
                for sector in (0, half - 8, half, half + 4000):
                    ring.write(sector, b"F" * 4096)
                flying = [ring.submit(vu.IN, random.randrange(0, 8000), length=4096) for _ in range(8)]
                os.truncate(path, 2 * MIB)
                ring.wait(*flying)
                for sector in (half, half + 4000, half - 4):  # behind the end, and across it
                    request = ring.submit(vu.IN, sector, length=4096)
                    ring.wait(request)
                    assert request.status() in (vu.OK, vu.IOERR)
                    if request.status() == vu.OK:
                        inside = max(0, half - sector) * 512
                        assert request.data()[inside:] == bytes(4096 - inside), "not zeros behind the end"
                assert ring.read(half - 8, 4096) == b"F" * 4096, "the half that is left"
                ring.check(5)
            delete_disk(daemon, kind)


# -- a full file system (BACK 169) ------------------------------------------------------------------------


def private_tmpfs(*options):
    """The daemon gets a mount namespace of its own, with a tmpfs on the path in $1; it ends with the daemon."""
    script = 'mount -t tmpfs -o "$1" tmpfs "$2" && shift 2 && exec "$@"'
    return lambda folder: ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh",
                           ",".join(options), folder]


def tmpfs_daemon(*options):
    daemon = Daemon(start=False)
    folder = daemon.path("small")
    os.mkdir(folder)
    daemon.wrapper = private_tmpfs(*options)(folder)
    try:
        daemon.start()
    except AssertionError:
        log = daemon.log()
        daemon.destroy()
        if "unshare" in log or "mount" in log:
            raise Skip("mount namespaces are not available here") from None
        raise
    return daemon, folder, f"/proc/{daemon.process.pid}/root{folder}"  # the folder from our side


@needs_root
@deadline(120)
def test_back_169_no_space():
    """IOERR when it is full, other disks unharmed, and writes work again when there is space."""
    for kind in KINDS:
        daemon, folder, seen = tmpfs_daemon("size=64m")
        with daemon:
            with open(f"{seen}/disk", "wb") as file:
                file.truncate(128 * MIB)
            path = file_disk(daemon, kind, f"{folder}/disk")
            with Guest(daemon.malloc_disk(ctrlr="other")) as other, Guest(path, slot=128 << 10) as guest:
                chunk, failed, sector = 64 << 10, None, 0
                while sector < 128 * MIB // 512:
                    batch = []
                    for _ in range(16):
                        batch.append((sector, guest.ring.submit(vu.OUT, sector, out=b"f" * chunk)))
                        sector += chunk // 512
                    guest.ring.wait()
                    bad = [s for s, r in batch if r.status() != vu.OK]
                    assert all(r.status() in (vu.OK, vu.IOERR) for _, r in batch)
                    if bad:
                        failed = bad[0]
                        break
                assert failed is not None, "128 MiB fit into 64"
                other.ring.check()
                assert guest.ring.read(0, 4096) == b"f" * 4096
                guest.ring.discard(0, 32 * MIB // 512, status=vu.OK)  # gives pages back
                guest.ring.write(failed, b"g" * chunk)
                assert guest.ring.read(failed, chunk) == b"g" * chunk
            delete_disk(daemon, kind)


# -- files that go away, or may not be written ----------------------------------------------------------------


def test_back_171_unlinked():
    """I/O ends (the open file still serves it, or it fails) and the delete works."""
    for kind in KINDS:
        with Daemon() as daemon:
            path = make_file(daemon, 4 * MIB)
            disk = file_disk(daemon, kind, path)
            with Guest(disk) as guest:
                guest.ring.check()
                os.unlink(path)
                for i in range(20):
                    request = guest.ring.submit(vu.IN if i % 2 else vu.OUT, i, length=512,
                                                out=b"" if i % 2 else b"u" * 512)
                    guest.ring.wait(request, deadline=5)
                    assert request.status() in (vu.OK, vu.IOERR)
            delete_disk(daemon, kind)
            assert daemon.rpc("bdev_get_bdevs") == []


@deadline(90)
def test_back_173_sigint_under_file_load():
    for i in range(scaled(50, 10)):
        with Daemon() as daemon:
            guest = Guest(file_disk(daemon, KINDS[i % 2], make_file(daemon, 8 * MIB)), slot=16384)
            stop = threading.Event()

            def load():
                try:
                    while not stop.is_set():
                        while guest.ring.free:
                            guest.ring.submit(vu.OUT, random.randrange(16000), out=b"s" * 4096)
                        guest.ring.wait(next(iter(guest.ring.pending.values())), deadline=1)
                except AssertionError:
                    pass

            thread = threading.Thread(target=load)
            thread.start()
            try:
                time.sleep(random.uniform(0.02, 0.2))
                daemon.stop(signal.SIGINT)
            finally:
                stop.set()
                thread.join()
                guest.close()


def refused_or_read_only(daemon, kind, filename):
    """Creating fails with a sentence, or the disk says RO and refuses writes."""
    try:
        disk = file_disk(daemon, kind, filename)
    except RpcError as error:
        assert error.code in (-13, -30, -1), error
        assert error.data and error.data.get("hint"), error
        assert daemon.rpc("bdev_get_bdevs") == []
        return
    with Guest(disk) as guest:
        assert guest.offered >> vu.F_RO & 1, "a file that cannot be written is offered without RO"
        guest.ring.read(0)
        guest.ring.write(0, b"x" * 512, status=vu.IOERR)
    delete_disk(daemon, kind)


def test_back_177_read_only_file():
    # Root may write to any file, so it needs another user for this.
    with Daemon(user=65534 if os.geteuid() == 0 else None) as daemon:
        path = make_file(daemon, MIB)
        os.chmod(path, 0o444)
        for kind in KINDS:
            refused_or_read_only(daemon, kind, path)
        os.chmod(path, 0)
        for kind in KINDS:
            try:
                file_disk(daemon, kind, path)
                raise AssertionError("a file that cannot be read is accepted")
            except RpcError as error:
                assert (error.code, error.message) == (-13, "Permission denied"), error


@needs_root
def test_back_177_read_only_file_system():
    daemon, folder, seen = tmpfs_daemon("size=8m")
    with daemon:
        with open(f"{seen}/disk", "wb") as file:
            file.truncate(MIB)
        remount = ["nsenter", f"--mount=/proc/{daemon.process.pid}/ns/mnt", "mount", "-o", "remount,ro", folder]
        if os.spawnvp(os.P_WAIT, remount[0], remount) != 0:
            raise Skip("cannot remount in the daemon's namespace")
        for kind in KINDS:
            refused_or_read_only(daemon, kind, f"{folder}/disk")


def test_aio_readonly():
    with Daemon() as daemon:
        path = make_file(daemon, MIB)
        daemon.rpc("bdev_aio_create", name="A", filename=path, block_size=512, readonly=True)
        daemon.rpc("vhost_create_blk_controller", ctrlr="ro", dev_name="A")
        with Guest(daemon.vhost_path("ro")) as guest:
            assert guest.offered >> vu.F_RO & 1, "a read-only bdev without RO"
            guest.ring.read(0)
            for kind in (vu.OUT, vu.WRITE_ZEROES, vu.DISCARD):
                out = struct.pack("<QII", 0, 1, 0) if kind != vu.OUT else b"x" * 512
                guest.ring.run(kind, 0, out=out, status=vu.IOERR)
            guest.ring.flush()
        with open(path, "rb") as file:
            assert not any(file.read(4096))


def lock_as_others_do(path):
    """The lock of QEMU and riffle, on a description of its own."""
    fd = os.open(path, os.O_RDWR)
    fcntl.fcntl(fd, F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 100, 200, 0))
    return fd


def test_a_predecessor_lets_go():
    """A killed process holds its file until its last I/O has ended: that is waited for, but not for ever."""
    with Daemon() as daemon:
        path = make_file(daemon, MIB)
        fd = lock_as_others_do(path)
        error = daemon.rpc_error("bdev_aio_create", name="A", filename=path, block_size=512)
        assert error.code == -16 and "is in use" in str(error.data), error.data
        threading.Timer(0.3, os.close, [fd]).start()
        assert daemon.rpc("bdev_aio_create", name="A", filename=path, block_size=512) == "A"
        daemon.rpc("bdev_uring_create", name="B", filename=path, block_size=512)  # a second of ours shares the lock
        daemon.rpc("bdev_aio_delete", name="A")
        try:
            os.close(lock_as_others_do(path))
        except OSError:
            return
        raise AssertionError("the lock went with the disk that took it")


# -- durability -----------------------------------------------------------------------------------------------


class CachestatRange(ctypes.Structure):
    _fields_ = [("off", ctypes.c_uint64), ("len", ctypes.c_uint64)]


class Cachestat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recently_evicted")]


def dirty_pages(path):
    """Pages of the file that the kernel has not written yet; needs Linux 6.5."""
    libc, fd = ctypes.CDLL(None, use_errno=True), os.open(path, os.O_RDONLY)
    try:
        result = Cachestat()
        if libc.syscall(451, fd, ctypes.byref(CachestatRange(0, 0)), ctypes.byref(result), 0) != 0:
            raise Skip(f"cachestat: {os.strerror(ctypes.get_errno())}")
        return result.dirty + result.writeback
    finally:
        os.close(fd)


def read_line(path):
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def disk_flushes(path):
    """Cache flushes that the disk under this file has done; None if it does not need any to be stable,
    or may be told by FUA. Others add to the number, so only its growth by too little says something."""
    number = os.stat(path).st_dev
    disk = os.path.realpath(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if os.path.exists(f"{disk}/partition"):
        disk = os.path.dirname(disk)
    try:
        cache, fua, fields = (read_line(f"{disk}/{name}") for name in ("queue/write_cache", "queue/fua", "stat"))
    except OSError:
        return None
    return int(fields.split()[15]) if (cache, fua) == ("write back", "0") else None


def check_write_through(guest, path, what):
    """Each of these writes is stable when it completes."""
    before = disk_flushes(path)
    for i in range(10):
        guest.ring.write(i * 100, os.urandom(512))
        assert dirty_pages(path) == 0, f"{what}: completed with dirty pages"
    if before is not None:
        assert disk_flushes(path) - before >= 10, f"{what}: completed without a flush of the disk's cache"


def written_file(daemon):
    """With blocks on the disk, so that no metadata is written later."""
    path = daemon.path("disk")
    with open(path, "wb") as file:
        file.write(b"0" * 4 * MIB)
        os.fsync(file.fileno())
    return path


def test_write_through_without_flush_and_wce():
    """A driver that negotiated neither (SeaBIOS) gets completions of stable writes only."""
    legacy = vu.DRIVER_FEATURES & ~bits(vu.F_FLUSH, vu.F_CONFIG_WCE)
    for kind in KINDS:
        with Daemon() as daemon:
            path = written_file(daemon)
            with Guest(file_disk(daemon, kind, path), features=legacy) as guest:
                check_write_through(guest, path, kind)


def test_write_through_by_config_wce():
    """writeback 0 makes every write stable; CONFIG_WCE without FLUSH starts that way."""
    for kind in KINDS:
        with Daemon() as daemon:
            path = written_file(daemon)
            disk = file_disk(daemon, kind, path)
            with Guest(disk) as guest:
                guest.connection.must(vu.SET_CONFIG, vu.config(32, 1, data=b"\0"))
                check_write_through(guest, path, f"{kind}, writeback 0")
            with Guest(disk, features=vu.DRIVER_FEATURES & ~bits(vu.F_FLUSH)) as guest:
                check_write_through(guest, path, f"{kind}, CONFIG_WCE without FLUSH")


def test_flush_reaches_the_disk():
    for kind in KINDS:
        with Daemon() as daemon:
            path = written_file(daemon)
            with Guest(file_disk(daemon, kind, path)) as guest:
                for i in range(5):
                    guest.ring.write(i * 100, os.urandom(512))
                    before = disk_flushes(path)
                    guest.ring.flush()
                    assert dirty_pages(path) == 0, f"{kind}: flushed with dirty pages"
                    if before is not None:
                        assert disk_flushes(path) > before, f"{kind}: flushed without a flush of the disk's cache"


def test_writeback_starts_0_without_flush():
    """CONFIG_WCE negotiated without FLUSH: the cache mode starts as write-through."""
    with Daemon() as daemon:
        path = daemon.malloc_disk()
        features = vu.DRIVER_FEATURES & ~bits(vu.F_FLUSH)
        with Guest(path, features=features) as guest:
            assert guest.get_config(32, 1) == b"\0", "writeback is 1 without FLUSH"
            guest.ring.check()


def test_unaligned_buffers():
    """Guest buffers at odd addresses, in pieces of odd size: direct I/O must cope."""
    for kind in KINDS:
        with Daemon() as daemon:
            path = make_file(daemon, 4 * MIB)
            with Guest(file_disk(daemon, kind, path), slot=32768) as guest:
                for offset, parts in ((0, (512,)), (1, (512,)), (3, (1, 511)), (7, (100, 924)), (0, (1536, 2560)),
                                      (513, (4096,)), (4095, (4095, 1))):
                    data = os.urandom(sum(parts))
                    scattered(guest, vu.OUT, offset, parts, data)
                    assert scattered(guest, vu.IN, offset, parts) == data, (kind, offset, parts)
                    with open(path, "rb") as file:
                        file.seek(40 * 512)
                        assert file.read(len(data)) == data, "the file holds something else"


def scattered(guest, kind, offset, parts, data=None):
    """One request whose data lies in pieces with gaps, through an indirect table."""
    ring = guest.ring
    request = ring.prepare(kind, 40)
    base = ring.buffers + (request.head // 3) * ring.slot
    table, at = base + 1024, base + 4096 + offset
    entries, places = [(base, 16, 0)], []
    for part in parts:
        places.append((at, part))
        entries.append((at, part, vu.WRITE if kind == vu.IN else 0))
        at += part + 3
    entries.append((request.status_gpa, 1, vu.WRITE))
    guest.memory.write(table, b"".join(
        struct.pack("<QIHH", gpa, size, flags | (vu.NEXT if i + 1 < len(entries) else 0), i + 1)
        for i, (gpa, size, flags) in enumerate(entries)))
    if data is not None:
        for gpa, size in places:
            guest.memory.write(gpa, data[:size])
            data = data[size:]
    ring.set_desc(request.head, table, 16 * len(entries), vu.INDIRECT)
    ring.publish([request.head])
    ring.kick()
    ring.wait(request)
    assert request.status() == vu.OK, f"status {request.status()}"
    return b"".join(guest.memory.read(gpa, size) for gpa, size in places)


def test_back_174_until_nothing_is_left():
    """Disks until the process has no file descriptor left: an error in words, and all goes on when some are deleted."""
    with Daemon(limits={resource.RLIMIT_NOFILE: (160, 160)}) as daemon:
        path, made = make_file(daemon, MIB), 0
        client = daemon.rpc_client()
        try:
            while made < 400:
                client.call("bdev_aio_create", {"name": f"d{made}", "filename": path, "block_size": 512, "readonly": True})
                made += 1
        except RpcError as error:
            assert error.code in (-11, -12, -24) and "file" in str(error), f"{error}"
        assert 50 < made < 400, f"{made} disks"
        for i in range(made):
            client.call("bdev_aio_delete", {"name": f"d{i}"})
        client.close()
        with Guest(file_disk(daemon, "aio", path)) as guest:
            guest.ring.check()
