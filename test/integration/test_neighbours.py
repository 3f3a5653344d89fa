"""What one client may do to the others, and to the daemon's end: nothing."""

import fcntl
import os
import random
import signal
import socket
import struct
import subprocess
import time

import vhost_user as vu
from daemon import Daemon, RpcClient
from tap import deadline
from vhost_user import Guest


def bystander(daemon):
    return Guest(daemon.malloc_disk(ctrlr="bystander", bdev="Bystander"))


def test_a_full_eventfd_that_blocks_again():
    """O_NONBLOCK is the front-end's to clear after it was set: no reactor may wait in write()."""
    with Daemon(mask="0x1") as daemon, bystander(daemon) as other, Guest(daemon.malloc_disk()) as guest:
        fd = guest.ring.call_fd
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_NONBLOCK)
        os.write(fd, struct.pack("=Q", 2**64 - 100))
        for _ in range(200):
            guest.ring.submit(vu.FLUSH)
            time.sleep(0.001)
            guest.ring.reap()
        other.ring.check()
        os.eventfd_read(fd)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)


def test_a_disk_that_changes_its_size():
    """The front-end is told (CONFIG_CHANGE_MSG), reads the new capacity, and I/O beyond it fails or works accordingly."""
    with Daemon() as daemon:
        daemon.rpc("bdev_null_create", name="Null0", num_blocks=2048, block_size=512)
        daemon.rpc("vhost_create_blk_controller", ctrlr="disk", dev_name="Null0")
        ours, theirs = socket.socketpair()
        ours.settimeout(5)
        with Guest(daemon.vhost_path("disk")) as guest:
            guest.tell(vu.SET_BACKEND_REQ_FD, b"", [theirs.fileno()])
            guest.ring.read(2047)
            for mib, last in ((4, 8191), (1, 2047)):
                daemon.rpc("bdev_null_resize", name="Null0", new_size=mib)
                assert ours.recv(64) == struct.pack("<III", 2, 1, 0)
                assert struct.unpack("<Q", guest.get_config(0, 8))[0] == mib * 2048
                guest.ring.read(last)
                guest.ring.read(last + 1, status=vu.IOERR)
        saved = daemon.rpc("save_config")
        null = [r for s in saved["subsystems"] for r in s["config"] if r["method"] == "bdev_null_create"]
        assert null[0]["params"]["num_blocks"] == 2048, null
        error = daemon.rpc_error("bdev_null_resize", name="Null1", new_size=1)
        assert error.code == -19, error
    ours.close()
    theirs.close()


def test_a_log_that_nobody_reads():
    """A full stderr pipe loses lines; it stops nobody."""
    read_end, write_end = os.pipe()
    with Daemon(start=False) as daemon:
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
        daemon.process = subprocess.Popen(daemon.command(), stdin=subprocess.DEVNULL, stdout=write_end, stderr=write_end)
        end = time.monotonic() + 10
        while not os.path.exists(daemon.rpc_path) and time.monotonic() < end:
            time.sleep(0.02)
        with bystander(daemon) as other:
            path = daemon.malloc_disk()
            for _ in range(100):
                with vu.Connection(path) as c:
                    c.try_ack(vu.SET_VRING_NUM, vu.state(9999, 1))
            with Guest(path) as guest:
                guest.ring.memory.put16(guest.ring.avail + 2, 999)  # breaks the ring: a line from a reactor
                guest.ring.kick()
                time.sleep(0.2)
            other.ring.check()
        daemon.stop()
    os.close(read_end)
    os.close(write_end)


@deadline(60)
def test_clients_that_do_not_read_and_half_messages_do_not_spoil_the_end():
    with Daemon() as daemon:
        path = daemon.malloc_disk()
        for i in range(300):
            daemon.rpc("bdev_null_create", name=f"N{i}", num_blocks=8, block_size=512)
        deaf = socket.socket(socket.AF_UNIX)
        deaf.connect(daemon.rpc_path)
        deaf.sendall(b'{"id":1,"method":"bdev_get_bdevs"}' * 20)
        half = socket.socket(socket.AF_UNIX)
        half.connect(path)
        half.send(b"\1\0\0")
        time.sleep(0.3)
        daemon.stop(signal.SIGTERM)  # status 0 within 5 s, sockets unlinked
        deaf.close()
        half.close()


def test_a_client_of_a_daemon_that_does_not_answer():
    """`riffle rpc -t` holds for connecting too."""
    with Daemon() as daemon:
        os.kill(daemon.process.pid, signal.SIGSTOP)
        try:
            waiting = []
            for _ in range(200):
                s = socket.socket(socket.AF_UNIX)
                s.setblocking(False)
                try:
                    s.connect(daemon.rpc_path)
                except BlockingIOError:
                    break
                finally:
                    waiting.append(s)
            start = time.monotonic()
            done = subprocess.run([daemon.command()[0], "rpc", "-s", daemon.rpc_path, "-t", "1", "spdk_get_version"],
                                  capture_output=True, text=True, timeout=20, check=False)
            assert done.returncode == 1 and done.stderr.strip(), done
            assert time.monotonic() - start < 10
            for s in waiting:
                s.close()
        finally:
            os.kill(daemon.process.pid, signal.SIGCONT)
        RpcClient(daemon.rpc_path).close()


# -- what the review of the rings found ----------------------------------------------------------------


def test_a_ring_smaller_than_its_inflight_region():
    """SeaBIOS makes rings of 256 out of 1024, and QEMU asks for the region by the larger number."""
    with Daemon() as daemon, Guest(daemon.malloc_disk(), started=False, size=64) as guest:
        payload, fd = guest.get_inflight_fd(size=256)
        for _ in range(2):
            guest.tell(vu.SET_INFLIGHT_FD, payload, [fd])
            guest.start()
            guest.ring.check()
            guest.get_vring_base(guest.ring)
            guest.reconnect()
            guest.ring.reset()
            os.pwrite(fd, bytes(16), 0)
        os.close(fd)


def test_a_restarted_ring_asks_for_kicks():
    """The event index of a ring that was stopped while it was polled lies behind: a driver would not kick."""
    with Daemon() as daemon, Guest(daemon.malloc_disk(), features=vu.DRIVER_FEATURES | vu.bits(vu.F_EVENT_IDX)) as guest:
        for i in range(25):
            guest.ring.read(i)
        base = guest.get_vring_base(guest.ring)
        guest.set_up_ring(guest.ring, base)
        guest.enable(guest.ring)
        time.sleep(0.1)
        avail_event = guest.ring.memory.get16(guest.ring.used + 4 + 8 * guest.ring.size)
        assert avail_event == base, f"avail_event {avail_event}, not {base}"


def test_a_new_call_fd_hears_at_once():
    """What completed before SET_VRING_CALL was told to nobody."""
    with Daemon() as daemon, Guest(daemon.malloc_disk()) as guest:
        guest.tell(vu.SET_VRING_CALL, vu.u64(guest.ring.index | vu.NO_FD))
        guest.ring.read(0)
        fd = os.eventfd(0, os.EFD_NONBLOCK)
        guest.tell(vu.SET_VRING_CALL, vu.u64(guest.ring.index), [fd])
        end = time.monotonic() + 2
        while time.monotonic() < end:
            try:
                assert os.eventfd_read(fd) > 0
                break
            except BlockingIOError:
                time.sleep(0.01)
        else:
            raise AssertionError("no interrupt on the new fd")
        os.close(fd)


def test_reads_into_its_own_rings():
    """The disk's contents, which the guest chose, become its descriptors and indices: nobody else notices."""
    with Daemon(mask="0x1") as daemon, bystander(daemon) as other:
        path = daemon.malloc_disk()
        with daemon.no_leak(maps=4):
            for seed in range(40):
                with Guest(path) as guest:
                    ring, dice = guest.ring, random.Random(seed)
                    ring.write(0, dice.randbytes(4096))
                    part = dice.choice((ring.desc, ring.avail, ring.used))
                    request = ring.prepare(vu.IN, dice.randrange(8), length=512)
                    ring.set_desc(request.head + 1, part + 2 * dice.randrange(8), 512, vu.NEXT | vu.WRITE, request.head + 2)
                    ring.publish([request.head] * dice.choice((1, 2, 9)))
                    ring.kick()
                    other.ring.check()
        with Guest(path) as guest:
            guest.ring.check()
