"""The write cache mode: what the driver was told last decides whether a completed write is durable, over reconnects and restarts."""

import vhost_user as vu
from daemon import Daemon
from test_inflight import InflightRegion, restart, start_with
from vhost_user import Guest, bits

WRITEBACK = 32  # offset of the byte in struct virtio_blk_config
WCE = vu.DRIVER_FEATURES | bits(vu.F_CONFIG_WCE)


class Driver(Guest):
    """A front-end that reads the configuration space before it sets features, as QEMU does when a machine starts."""

    fresh = True

    def set_features(self, features):
        if self.fresh:
            assert self.get_config(WRITEBACK, 1) == b"\1", "a new driver finds the cache on"
        super().set_features(features)

    def set_writeback(self, value):
        self.tell(vu.SET_CONFIG, vu.config(WRITEBACK, 1, 0, bytes([value])))


def write_through(daemon, ctrlr="disk"):
    return daemon.rpc("vhost_get_controllers", name=ctrlr)[0]["sessions"][0]["write_through"]


def test_flush_makes_write_back():
    with Daemon() as daemon:
        path = daemon.malloc_disk()
        with Driver(path, features=WCE):
            assert not write_through(daemon)


def test_neither_flush_nor_wce_makes_write_through():
    with Daemon() as daemon:
        path = daemon.malloc_disk()
        with Guest(path, features=vu.DRIVER_FEATURES & ~bits(vu.F_FLUSH, vu.F_CONFIG_WCE)):
            assert write_through(daemon)
        with Guest(path, features=vu.DRIVER_FEATURES & ~bits(vu.F_CONFIG_WCE)):
            assert not write_through(daemon)


def test_the_driver_turns_the_cache_off_and_on():
    with Daemon() as daemon:
        path = daemon.malloc_disk()
        with Driver(path, features=WCE) as guest:
            guest.set_writeback(0)
            assert write_through(daemon)
            guest.ring.check()
            guest.set_writeback(1)
            assert not write_through(daemon)


def test_the_mode_outlives_a_reconnect():
    """A front-end that reconnects does not read the configuration space again."""
    with Daemon() as daemon:
        path = daemon.malloc_disk()
        for value in (0, 1):
            with Driver(path, features=WCE) as guest:
                guest.set_writeback(value)
                guest.fresh = False
                guest.reconnect()
                guest.start()
                assert write_through(daemon) == (value == 0)


def test_the_mode_outlives_the_daemon():
    with Daemon() as daemon:
        path = daemon.malloc_disk()
        for value in (0, 1):
            with Driver(path, features=WCE, started=False) as guest:
                guest.set_writeback(value)
                region = InflightRegion(guest)
                start_with(guest, region)
                guest.ring.check()
                guest.disconnect()
                restart(daemon, lambda: daemon.malloc_disk())
                guest.fresh = False
                guest.connect()
                start_with(guest, region)
                guest.ring.check()
                assert write_through(daemon) == (value == 0)
                region.close()


def test_an_unknown_mode_is_taken_for_write_through():
    """No configuration space read, no note in a region: the driver may believe anything."""
    with Daemon() as daemon:
        path = daemon.malloc_disk()
        with Guest(path, features=WCE):
            assert write_through(daemon)
