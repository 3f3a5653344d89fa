"""The initiator: a disk behind somebody's vhost-user-blk socket, served on by riffle to a guest of ours."""

import os
import shutil
import subprocess
import time

import vhost_user as vu
from daemon import Daemon
from tap import Skip
from vhost_backend import SPDK_FEATURES, SPDK_PROTOCOL, Backend
from vhost_user import Guest


def attach(daemon, path, name="V", **options):
    """The bdev's name; behind a controller "through", whose socket is returned too."""
    names = daemon.rpc("bdev_virtio_attach_controller", name=name, trtype="user", traddr=path, dev_type="blk", **options)
    assert names == [name], names
    daemon.rpc("vhost_create_blk_controller", ctrlr="through", dev_name=name)
    return daemon.vhost_path("through")


def exercise(path, discard=True):
    """Data of many sizes, at odd places in memory, come back; flush and discard work."""
    with Guest(path, slot=1 << 16) as guest:
        for i, length in enumerate((512, 4096, 12288, 32768)):
            data = os.urandom(length)
            guest.ring.write(100 * i, data)
            assert guest.ring.read(100 * i, length) == data, f"{length} bytes"
        guest.ring.flush()
        if discard:
            guest.ring.discard(0, 8, kind=vu.WRITE_ZEROES)
            assert guest.ring.read(0, 4096) == bytes(4096), "not zeroed"


def test_riffle_behind_riffle():
    with Daemon() as far, Daemon() as near:
        path = attach(near, far.malloc_disk())
        exercise(path)
        near.delete_controller("through")
        assert near.rpc("bdev_virtio_detach_controller", name="V") is True


def test_a_write_reaches_the_far_disk():
    with Daemon() as far, Daemon() as near:
        socket = far.malloc_disk()
        with Guest(attach(near, socket)) as guest:
            guest.ring.write(7, b"x" * 512)
            guest.ring.flush()
        near.delete_controller("through")
        near.rpc("bdev_virtio_detach_controller", name="V")
        with Guest(socket) as guest:
            assert guest.ring.read(7) == b"x" * 512


def test_qemu_storage_daemon():
    program = shutil.which("qemu-storage-daemon")
    if not program:
        raise Skip("no qemu-storage-daemon")
    with Daemon() as near:
        image, socket = near.path("image"), near.path("qsd")
        with open(image, "wb") as f:
            f.truncate(64 << 20)
        server = subprocess.Popen(
            [program, "--blockdev", f"driver=file,node-name=f0,filename={image},discard=unmap", "--export",
             f"type=vhost-user-blk,id=e0,node-name=f0,writable=on,addr.type=unix,addr.path={socket},num-queues=2"])
        try:
            end = time.monotonic() + 10
            while not os.path.exists(socket) and time.monotonic() < end:
                time.sleep(0.05)
            exercise(attach(near, socket))
            near.delete_controller("through")
            near.rpc("bdev_virtio_detach_controller", name="V")
        finally:
            server.terminate()
            server.wait(10)


def test_the_far_side_dies():
    """I/O fails, nothing hangs, the disk can be detached, and the daemon goes on."""
    with Daemon() as far, Daemon() as near:
        path = attach(near, far.delayed_disk(read_us=60000000))
        with Guest(path) as guest:
            request = guest.ring.submit(vu.IN, 0, length=512)
            time.sleep(0.2)
            far.kill()
            guest.ring.wait(request)
            assert request.status() == vu.IOERR
            guest.ring.read(0, status=vu.IOERR)
        near.delete_controller("through")
        assert near.rpc("bdev_virtio_detach_controller", name="V") is True
        with Guest(near.malloc_disk(ctrlr="own", bdev="Own")) as guest:
            guest.ring.check()


def test_what_cannot_be_attached():
    with Daemon() as daemon:
        for path, code in ((daemon.path("nothing"), -2), (daemon.rpc_path, -71)):
            error = daemon.rpc_error("bdev_virtio_attach_controller", name="V", trtype="user", traddr=path, dev_type="blk")
            assert error.code == code, error
        error = daemon.rpc_error("bdev_virtio_attach_controller", name="V", trtype="pci", traddr="x", dev_type="blk")
        assert error.code == -22 and error.data["field"] == "trtype", error
        assert daemon.rpc("bdev_get_bdevs") == []


def test_the_configuration_names_the_method():
    with Daemon() as far, Daemon() as near:
        attach(near, far.malloc_disk(), vq_count=1)
        saved = near.rpc("save_config")["subsystems"][0]["config"]
        assert saved[0]["method"] == "bdev_virtio_attach_controller", saved
        assert saved[0]["params"]["vq_count"] == 1, saved


# -- what servers offer and omit --


def backend_test(check=exercise, **options):
    """Run check on a disk behind a back-end with these options, through a daemon; returns the back-end."""
    with Daemon() as near, Backend(near.path("far"), **options) as far:
        check(attach(near, near.path("far")))
        near.delete_controller("through")
        assert near.rpc("bdev_virtio_detach_controller", name="V") is True
        return far


def test_what_spdk_offers():
    """No EVENT_IDX; SIZE_MAX, NOTIFY_ON_EMPTY and ANY_LAYOUT, which we do not need, are there."""
    far = backend_test()
    assert vu.FLUSH in far.seen and vu.WRITE_ZEROES in far.seen, far.seen
    assert far.acked & vu.bits(vu.F_EVENT_IDX, vu.F_RING_PACKED) == 0


def test_no_indirect_tables():
    backend_test(features=SPDK_FEATURES & ~vu.bits(vu.F_INDIRECT))


def test_no_flush_no_discard():
    """A disk without FLUSH writes through: a FLUSH is answered without asking it."""
    features = SPDK_FEATURES & ~vu.bits(vu.F_FLUSH, vu.F_DISCARD, vu.F_WRITE_ZEROES)
    far = backend_test(lambda path: exercise(path, discard=False), features=features)
    assert vu.FLUSH not in far.seen, far.seen


def test_no_acknowledgements_one_queue():
    backend_test(protocol=vu.bits(vu.P_CONFIG), features=SPDK_FEATURES & ~vu.bits(vu.F_MQ), queues=1)


def test_blocks_of_4096():
    def check(path):
        with Guest(path, slot=1 << 16) as guest:
            data = os.urandom(8192)
            guest.ring.write(8, data)
            assert guest.ring.read(8, 8192) == data
    backend_test(check, block_size=4096)


def test_servers_that_cannot_be_used():
    spdk, must = SPDK_FEATURES, {"features": SPDK_FEATURES & ~vu.bits(vu.F_VERSION_1)}
    for options in (must, {"features": spdk & ~vu.bits(vu.F_PROTOCOL_FEATURES)}, {"protocol": SPDK_PROTOCOL & ~vu.bits(vu.P_CONFIG)},
                    {"capacity": 0}, {"capacity": 1 << 63}, {"block_size": 0}, {"block_size": 777}):
        with Daemon() as near, Backend(near.path("far"), **options):
            error = near.rpc_error("bdev_virtio_attach_controller", name="V", trtype="user", traddr=near.path("far"), dev_type="blk")
            assert error.code == -71, (options, error)
            assert near.rpc("bdev_get_bdevs") == []


def test_servers_that_lie():
    """Heads that were not given, twice the same, an index that jumps: I/O fails, the daemon goes on."""
    def strange_head(far, ring, head, written):
        far.give_back(ring, 0xffffffff, written)

    def other_head(far, ring, head, written):
        far.give_back(ring, (head + 1) % ring.num, written)

    def twice(far, ring, head, written):
        far.give_back(ring, head, written)
        far.give_back(ring, head, written)

    def jump(far, ring, head, written):
        far.give_back(ring, head, written, by=ring.num + 1)

    for lie in (strange_head, other_head, twice, jump):
        with Daemon() as near, Backend(near.path("far"), lie=lie):
            path = attach(near, near.path("far"))
            with Guest(path) as guest:
                request = guest.ring.submit(vu.IN, 0, length=512)
                guest.ring.wait(request)
                assert request.status() == (vu.OK if lie is twice else vu.IOERR), lie.__name__
                guest.ring.read(0, status=vu.IOERR)
            near.delete_controller("through")
            assert near.rpc("bdev_virtio_detach_controller", name="V") is True
            with Guest(near.malloc_disk(ctrlr="own", bdev="Own")) as guest:
                guest.ring.check()
