"""Inflight regions: requests survive the daemon, and a hostile region harms nobody."""

import os
import random
import struct
import time

import vhost_user as vu
from daemon import Daemon, hostile_disk, scaled
from tap import deadline
from vhost_user import Closed, Guest, inflight

HEADER, DESC = 16, 16  # split: features u64, version, desc_num, last_batch_head, used_idx u16; then entries
VERSION_AT, DESC_NUM_AT, LAST_BATCH_HEAD_AT, USED_IDX_AT = 8, 10, 12, 14


class InflightRegion:
    """The shared region of one guest with one ring, kept across daemons."""

    def __init__(self, guest):
        self.payload, self.fd = guest.get_inflight_fd()
        self.size, self.offset = struct.unpack_from("=QQ", self.payload)

    def close(self):
        os.close(self.fd)

    def u16(self, at):
        return struct.unpack("=H", os.pread(self.fd, 2, self.offset + at))[0]

    def set_u16(self, at, value):
        os.pwrite(self.fd, struct.pack("=H", value), self.offset + at)

    def flag(self, head):
        return os.pread(self.fd, 1, self.offset + HEADER + DESC * head)[0]

    def set_entry(self, head, flag, next_head=0, counter=0):
        os.pwrite(self.fd, struct.pack("=B5xHQ", flag, next_head, counter), self.offset + HEADER + DESC * head)


def start_with(guest, region, base=0):
    """Set-up order of QEMU: SET_INFLIGHT_FD comes before the memory table and the rings."""
    guest.tell(vu.SET_INFLIGHT_FD, region.payload, [region.fd])
    guest.set_mem_table()
    guest.set_up_ring(guest.ring, base)
    guest.enable(guest.ring)
    guest.ring.kick()


def restart(daemon, make_disk):
    """kill -9, and a new daemon at the same place; its stale sockets are its own business."""
    daemon.kill()
    daemon.start()
    make_disk()


def reads(daemon, bdev):
    return daemon.rpc("bdev_get_iostat", names=[bdev])["bdevs"][0]["num_read_ops"]


def test_region_follows_the_document():
    """Another back-end could take over: the fields are where the document has them."""
    with Daemon() as daemon:
        path = daemon.delayed_disk(read_us=300000)
        with Guest(path, started=False) as guest:
            region = InflightRegion(guest)
            start_with(guest, region)
            requests = [guest.ring.submit(vu.IN, i, length=512) for i in range(3)]
            time.sleep(0.1)
            assert region.u16(VERSION_AT) == 1, "version"
            assert region.u16(DESC_NUM_AT) == guest.ring.size, "desc_num"
            assert [region.flag(r.head) for r in requests] == [1, 1, 1], "inflight while in flight"
            counters = [struct.unpack("=Q", os.pread(region.fd, 8, region.offset + HEADER + DESC * r.head + 8))
                        for r in requests]
            assert counters == sorted(set(counters)), f"counters {counters} do not tell the order"
            guest.ring.wait()
            time.sleep(0.05)
            assert [region.flag(r.head) for r in requests] == [0, 0, 0], "inflight after completion"
            assert region.u16(USED_IDX_AT) == 3, "used_idx"
            region.close()


@deadline(60)
def test_inf_87_fresh_region_on_a_ring_with_history():
    """used_idx 0 and last_batch_head 0 of a fresh region must not clear entry 0."""
    with Daemon() as daemon:
        path = daemon.delayed_disk(read_us=60000000)
        with Guest(path, started=False) as guest:
            ring, region = guest.ring, InflightRegion(guest)
            ring.reset(500)
            start_with(guest, region, base=500)
            for head in range(4):  # heads 0..3: one indirect read each
                indirect_read(guest, head)
            time.sleep(0.2)
            assert [region.flag(head) for head in range(4)] == [1] * 4, "not fetched"
            guest.disconnect()
            restart(daemon, lambda: daemon.malloc_disk(ctrlr="slow", bdev="Base1"))
            before = reads(daemon, "Base1")
            guest.connect()
            # The index that a front-end computes after a lost back-end; used.idx and the region decide.
            start_with(guest, region, base=500)
            ring.wait()
            time.sleep(0.1)
            ring.reap()  # more than four would be a surprise
            assert ring.memory.get16(ring.used + 2) == 504
            assert reads(daemon, "Base1") - before == 4, "resubmitted more or less than once"
            indirect_read(guest, 0)
            ring.wait()
            region.close()


def indirect_read(guest, head, sector=0):
    """A read whose chain is the one descriptor `head`."""
    ring = guest.ring
    table = ring.buffers + head * 1024
    parts = table + 128
    guest.memory.write(parts, struct.pack("<IIQ", vu.IN, 0, sector) + bytes([vu.UNWRITTEN]))
    guest.memory.write(table, struct.pack("<QIHHQIHHQIHH", parts, 16, vu.NEXT, 1, table + 256, 512,
                                          vu.NEXT | vu.WRITE, 2, parts + 16, 1, vu.WRITE, 0))
    ring.set_desc(head, table, 48, vu.INDIRECT)
    request = ring.track(head)
    request.status_gpa = parts + 16
    ring.publish([head])
    ring.kick()
    return request


def test_inf_87_base_is_not_trusted():
    """SET_VRING_BASE may be stale either way: used.idx plus the region's entries count."""
    for base in (0, 3, 5, 8):
        with Daemon() as daemon:
            path = daemon.malloc_disk()
            with Guest(path, started=False) as guest:
                region = InflightRegion(guest)
                start_with(guest, region)
                for i in range(5):
                    guest.ring.read(i)
                guest.disconnect()
                guest.connect()
                start_with(guest, region, base)
                guest.ring.check()
                assert guest.get_vring_base(guest.ring) == 7
                region.close()


def hostile_changes(size):
    """Name: what to write into a region of a ring of this size before it is handed over."""
    def all_inflight(region):
        for head in range(size):
            region.set_entry(head, 1, head, 1)

    def self_loop(region):
        region.set_u16(USED_IDX_AT, 0xFFF0)
        for head in range(size):
            region.set_entry(head, 1, head, head)

    def next_outside(region):
        region.set_u16(USED_IDX_AT, 0xFFFE)
        for head in range(size):
            region.set_entry(head, 1, 0xFFFF, head)

    def ones(region):
        os.pwrite(region.fd, b"\xff" * region.size, region.offset)

    def noise(region):
        os.pwrite(region.fd, random.Random(89).randbytes(region.size), region.offset)

    return {"last_batch_head 0xFFFF": lambda r: r.set_u16(LAST_BATCH_HEAD_AT, 0xFFFF),
            "desc_num 65535": lambda r: r.set_u16(DESC_NUM_AT, 65535),
            "desc_num 0": lambda r: r.set_u16(DESC_NUM_AT, 0),
            "used_idx + 1": lambda r: r.set_u16(USED_IDX_AT, 1),
            "used_idx 0x8000": lambda r: r.set_u16(USED_IDX_AT, 0x8000),
            "version 7": lambda r: r.set_u16(VERSION_AT, 7),
            "all inflight": all_inflight, "next is self": self_loop, "next outside": next_outside,
            "all ones": ones, "noise": noise}


@deadline(90)
def test_inf_89_hostile_region():
    """Refused or ignored, with a bounded walk; entries to resubmit are validated as any chain."""
    with hostile_disk() as (daemon, path):
        for name, change in hostile_changes(16).items():
            for used in (False, True):
                with Guest(path, size=16, started=False) as guest:
                    region = InflightRegion(guest)
                    if used:  # a valid header to spoil: the ring ran once
                        start_with(guest, region)
                        guest.ring.read(0)
                        guest.get_vring_base(guest.ring)
                        guest.reconnect()
                    change(region)
                    try:
                        start_with(guest, region)
                        time.sleep(0.05)
                        guest.connection.ask_u64(vu.GET_FEATURES)
                    except (AssertionError, Closed):
                        pass  # refused
                    region.close()
                assert daemon.alive(), name
            with Guest(path) as guest:
                guest.ring.check()


def test_inf_89_region_changes_while_running():
    with hostile_disk() as (daemon, path), Guest(path, size=16, started=False) as guest:
        region = InflightRegion(guest)
        start_with(guest, region)
        for i in range(50):
            os.pwrite(region.fd, os.urandom(region.size), region.offset)
            request = guest.ring.submit(vu.IN, 0, length=512)
            try:
                guest.ring.wait(request, deadline=0.5)
            except AssertionError:
                break  # the daemon may give such a ring up
        assert daemon.alive() and guest.connection.serves()
        region.close()


def test_inf_89_region_shrinks_under_the_daemon():
    with hostile_disk() as (daemon, path), Guest(path, started=False) as guest:
        region = InflightRegion(guest)
        start_with(guest, region)
        guest.ring.check()
        try:
            os.ftruncate(region.fd, 0)
        except OSError:
            pass  # sealed: then it cannot happen
        guest.ring.submit(vu.IN, 0, length=512)
        time.sleep(0.2)
        assert daemon.alive(), "SIGBUS"
        region.close()


def test_region_of_another_size_is_refused():
    """desc_num must equal the ring's size."""
    with hostile_disk() as (daemon, path), Guest(path, size=64, started=False) as guest:
        payload, fd = guest.get_inflight_fd(1, 32)
        refused = guest.connection.try_ack(vu.SET_INFLIGHT_FD, payload, [fd]) != "ok"
        os.close(fd)
        if not refused:
            try:
                guest.start()
                for _ in range(40):
                    guest.ring.read(0, deadline=0.5)
            except (AssertionError, Closed):
                pass
        assert daemon.alive()
        mmap_size = struct.unpack_from("=Q", payload)[0]
        big = vu.memfd(mmap_size, "inflight")
        outcome = guest.connection.try_ack(vu.SET_INFLIGHT_FD, inflight(mmap_size, 0, 1, 4096), [big])
        assert outcome != "ok", "a region too small for its queue size is accepted"
        os.close(big)


@deadline(120)
def test_inf_90_kill_9_under_load():
    """Every request is answered once in the end, and the file holds what was acknowledged."""
    with Daemon() as daemon:
        with open(daemon.path("disk"), "wb") as file:
            file.truncate(64 << 20)

        def make_disk():
            daemon.rpc("bdev_uring_create", name="File0", filename=daemon.path("disk"), block_size=512)
            daemon.rpc("vhost_create_blk_controller", ctrlr="disk", dev_name="File0")

        make_disk()
        model = {}
        with Guest(daemon.vhost_path("disk"), started=False) as guest:
            region = InflightRegion(guest)
            start_with(guest, region)
            for round_number in range(scaled(50, 12)):
                run_until_killed(daemon, guest, model, round_number)
                restart(daemon, make_disk)
                guest.connect()
                start_with(guest, region, guest.ring.memory.get16(guest.ring.used + 2))
                finish(guest, model)
            region.close()
        with open(daemon.path("disk"), "rb") as file:
            for sector, data in model.items():
                file.seek(sector * 512)
                assert file.read(512) == data, f"sector {sector} lost"


def run_until_killed(daemon, guest, model, seed):
    """Writes to distinct sectors until the daemon is killed in the middle of them."""
    ring, sectors = guest.ring, iter(random.Random(seed).sample(range(1 << 17), 1 << 16))
    ring.writes = {}
    end = time.monotonic() + random.uniform(0.02, 0.2)
    while time.monotonic() < end:
        while ring.free:
            sector = next(sectors)
            data = struct.pack("<QQ", seed, sector) * 32
            ring.writes[ring.submit(vu.OUT, sector, out=data)] = (sector, data)
        ring.reap()
        collect(ring, model)
    while ring.free:  # so that something is surely in flight
        sector = next(sectors)
        data = struct.pack("<QQ", seed, sector) * 32
        ring.writes[ring.submit(vu.OUT, sector, out=data)] = (sector, data)
    daemon.kill()
    guest.disconnect()
    ring.reap()
    collect(ring, model)


def collect(ring, model):
    for request in [r for r in ring.writes if r.done]:
        sector, data = ring.writes.pop(request)
        assert request.status() == vu.OK, f"guest sees status {request.status()}"
        model[sector] = data


def finish(guest, model):
    guest.ring.wait()
    collect(guest.ring, model)
    assert not guest.ring.writes
