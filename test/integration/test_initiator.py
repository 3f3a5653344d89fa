"""The initiator: a disk behind somebody's vhost-user-blk socket, served on by riffle to a guest of ours."""

import os
import shutil
import subprocess
import time

import vhost_user as vu
from daemon import Daemon
from tap import Skip
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
