"""Every vhost-user message: legal use, refusals, ring states, validation, and the bug log's VU entries."""

import os
import random
import resource
import socket
import struct
import threading
import time

import vhost_user as vu
from daemon import Daemon, hostile_disk, scaled
from tap import Skip, deadline
from vhost_user import (Closed, Connection, Guest, Legal, Memory, NoReply, Region, bits, close_all,
                        config, inflight, legal_messages, mem_reg, mem_table, memfd, open_session, state,
                        u64, vring_addr)

MIB = 1 << 20
ALL_ONES = (1 << 64) - 1


# -- helpers -------------------------------------------------------------------------------------


def refusal(connection, message, payload, fds=()):
    """Send a message that must be refused; 'refused' or 'closed'. A message with a reply of its own
    can only be refused by a close or a reply without a body (section 2, GET_CONFIG)."""
    try:
        if message.reply == "own":
            answer = connection.ask(message.request, payload, fds)
            close_all(connection.reply_fds)
            assert answer == b"", f"{message.name} answered {answer.hex()}, must be refused"
            return "refused"
        outcome = connection.try_ack(message.request, payload, fds)
    except Closed:
        return "closed"
    assert outcome != "ok", f"{message.name} {payload.hex()} with {len(fds)} fds accepted"
    return outcome


def must_refuse(guest, request, payload=b"", fds=(), reply="ack", name=None):
    """The guest's connection is replaced if the refusal closed it."""
    message = Legal(name or f"request {request}", request, payload, list(fds), reply)
    outcome = refusal(guest.connection, message, payload, list(fds))
    if outcome == "closed":
        guest.reconnect()
    else:
        assert guest.connection.serves(), f"{message.name}: refused, then not served any more"
    return outcome


def must_nack(guest, request, payload=b"", fds=()):
    """Reply rule 3: a failure is a non-zero ack, and the connection stays."""
    number = guest.connection.ack(request, payload, fds)
    assert number != 0, f"request {request} {payload.hex()} accepted"
    assert guest.connection.serves()


def named(guest, name):
    messages, lent = legal_messages(guest)
    return {m.name: m for m in messages}[name], lent


def stamp_disk(guest, sectors=64):
    """Sector n holds its number, so that a read can be checked without a model."""
    for sector in range(0, sectors, 8):
        data = b"".join(struct.pack("<Q", s) * 64 for s in range(sector, sector + 8))
        guest.ring.write(sector, data)


def check_stamp(request, sector):
    assert request.status() == vu.OK
    wanted = b"".join(struct.pack("<Q", s) * 64 for s in range(sector, sector + request.length // 512))
    assert request.data() == wanted, f"sector {sector} holds {request.data()[:16].hex()}"


def read_load(guest, until, step=None, depth=16, sectors=64):
    """Random reads, each checked; step() runs between completions. The number of requests."""
    ring, flying, count = guest.ring, {}, 0
    while time.monotonic() < until or flying:
        while not flying or len(flying) < depth and time.monotonic() < until:
            sector = random.randrange(sectors - 8)
            flying[ring.submit(vu.IN, sector, length=4096)] = sector
        if step is not None:
            step()
        ring.wait(next(iter(flying)))
        for request in [r for r in flying if r.done]:
            check_stamp(request, flying.pop(request))
            count += 1
    return count


# -- legal use and reply rules (sections 2 and 3) --------------------------------------------------


def test_every_message_without_need_reply():
    """Messages with a reply answer once, the others not at all."""
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        messages, lent = legal_messages(guest)
        for m in messages:
            if m.reply == "own":
                guest.connection.ask(m.request, m.payload, m.fds)
                close_all(guest.connection.reply_fds)
            else:
                guest.connection.send(m.request, m.payload, m.fds)
            assert guest.connection.serves(), f"{m.name}: not served afterwards"
        close_all(lent)
        guest.start()
        guest.ring.check()


def test_every_message_with_need_reply():
    """need_reply adds an ack of 0 to messages without a reply, and nothing to the others."""
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        messages, lent = legal_messages(guest)
        for m in messages:
            answer = guest.connection.ask(m.request, m.payload, m.fds, vu.VERSION | vu.NEED_REPLY)
            close_all(guest.connection.reply_fds)
            if m.reply == "ack":
                assert answer == u64(0), f"{m.name}: ack {answer.hex()}"
            # A second reply would be taken for the answer to this.
            assert guest.connection.serves(), f"{m.name}: not served afterwards"
        close_all(lent)
        guest.start()
        guest.ring.check()


def test_reply_sizes():
    sizes = {"GET_FEATURES": 8, "GET_PROTOCOL_FEATURES": 8, "GET_QUEUE_NUM": 8, "GET_CONFIG": 72,
             "GET_INFLIGHT_FD": 24, "GET_VRING_BASE": 8, "GET_MAX_MEM_SLOTS": 8, "SET_LOG_BASE": 0,
             "GET_STATUS": 8}
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        messages, lent = legal_messages(guest)
        for m in messages:
            if m.reply == "own":
                answer = guest.connection.ask(m.request, m.payload, m.fds)
                fds = guest.connection.reply_fds
                assert len(answer) == sizes[m.name], f"{m.name}: reply of {len(answer)} bytes"
                assert len(fds) == (m.name == "GET_INFLIGHT_FD"), f"{m.name}: {len(fds)} fds"
                close_all(fds)
        close_all(lent)


def test_features_offered():
    """What is needed is there; what must never be offered is not."""
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        for bit in (vu.F_FLUSH, vu.F_CONFIG_WCE, vu.F_MQ, vu.F_DISCARD, vu.F_WRITE_ZEROES, vu.F_SEG_MAX,
                    vu.F_BLK_SIZE, vu.F_INDIRECT, vu.F_EVENT_IDX, vu.F_PROTOCOL_FEATURES,
                    vu.F_VERSION_1):
            assert guest.offered >> bit & 1, f"virtio feature {bit} not offered"
        for bit in (0, 7, 15, 16, 17, 33):
            assert not guest.offered >> bit & 1, f"virtio feature {bit} offered"
        assert not guest.offered >> vu.F_RO & 1, "RO offered for a writable disk"
        for bit in (vu.P_MQ, vu.P_REPLY_ACK, vu.P_BACKEND_REQ, vu.P_CONFIG, vu.P_INFLIGHT_SHMFD,
                    vu.P_CONFIGURE_MEM_SLOTS, vu.P_RESET_DEVICE):
            assert guest.offered_protocol >> bit & 1, f"protocol feature {bit} not offered"
        assert guest.connection.ask_u64(vu.GET_QUEUE_NUM) == 2


def test_unknown_feature_bits_are_refused():
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        must_refuse(guest, vu.SET_FEATURES, u64(guest.offered | 1 << 63))
        must_refuse(guest, vu.SET_FEATURES, u64(guest.offered | bits(15)))
        must_refuse(guest, vu.SET_PROTOCOL_FEATURES, u64(guest.offered_protocol | 1 << 62))
        guest.set_features(guest.features)
        guest.start()
        guest.ring.check()


def test_a_failure_without_need_reply_closes():
    with hostile_disk() as (_, path):
        for request, payload in ((vu.SET_VRING_NUM, state(99, 64)), (vu.SET_VRING_ENABLE, state(99, 1)),
                                 (vu.SET_VRING_BASE, state(99, 0)), (vu.SET_FEATURES, u64(1 << 63))):
            with Guest(path, started=False) as guest:
                guest.connection.send(request, payload)
                assert guest.connection.is_closed(), f"request {request} failed and the session lives"


def test_a_failure_with_need_reply_keeps_the_connection():
    with hostile_disk() as (_, path), Guest(path) as guest:
        for request, payload in ((vu.SET_VRING_NUM, state(99, 64)), (vu.SET_VRING_ENABLE, state(99, 1)),
                                 (vu.SET_VRING_BASE, state(99, 0)), (vu.SET_VRING_ENABLE, state(0, 2)),
                                 (vu.SET_FEATURES, u64(1 << 63))):
            must_nack(guest, request, payload)
        guest.ring.check()


def refuse_all(guest, variants):
    """Go through all (message, payload, fds) before failing, so that one mistake hides no other."""
    wrong = []
    for message, payload, fds in variants:
        try:
            outcome = refusal(guest.connection, message, payload, fds)
        except AssertionError as error:
            wrong.append(str(error))
            outcome = "wrong"
        if outcome == "closed" or not guest.connection.serves():
            guest.reconnect()
    assert not wrong, "\n".join(wrong)


def test_wrong_payload_sizes():
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        messages, lent = legal_messages(guest)
        variants = []
        for m in messages:
            sizes = {0, len(m.payload) - 1, len(m.payload) + 1, len(m.payload) + 8} - {-1, len(m.payload)}
            variants += [(m, (m.payload + bytes(16))[:size], m.fds) for size in sorted(sizes)]
        refuse_all(guest, variants)
        close_all(lent)


def test_wrong_number_of_fds():
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        messages, lent = legal_messages(guest)
        spare = memfd()
        variants = []
        for m in messages:
            wrong = [m.fds + [spare], m.fds + [spare] * 8]
            if m.fds:
                wrong.append([])
            if m.name == "REM_MEM_REG":
                wrong = wrong[1:]  # one fd is tolerated
            variants += [(m, m.payload, fds) for fds in wrong]
        refuse_all(guest, variants)
        close_all(lent + [spare])


def test_oversized_payload_is_refused_from_the_header():
    """The daemon neither waits for the payload nor allocates it."""
    with hostile_disk(rss_kib=4096) as (_, path):
        for request in (vu.GET_FEATURES, vu.SET_MEM_TABLE, vu.GET_CONFIG, vu.SET_FEATURES, 1000):
            for size in (8192, MIB, 0x7FFFFFFF, 0xFFFFFFFF):
                connection, _ = open_session(path)
                with connection:
                    connection.send_bytes(vu.header(request, size))
                    assert connection.is_closed(), f"request {request} of {size} bytes is waited for"


def test_wrong_version_and_reply_bit():
    with hostile_disk() as (_, path):
        for flags in (0, 2, 3, vu.VERSION | vu.REPLY, vu.VERSION | vu.REPLY | vu.NEED_REPLY, 0xFFFFFFFF,
                      vu.NEED_REPLY):
            connection, _ = open_session(path)
            with connection:
                connection.send(vu.GET_FEATURES, flags=flags)
                assert connection.is_closed(), f"flags {flags:#x} answered"


def test_unknown_requests():
    """With need_reply a non-zero ack, without it a close."""
    with hostile_disk() as (_, path), Guest(path) as guest:
        for request in (0, 45, 100, 0x7FFFFFFF, 0xFFFFFFFF, *vu.NOT_OFFERED):
            for payload in (b"", bytes(8)):
                try:
                    assert guest.connection.ack(request, payload) != 0, f"request {request} accepted"
                except Closed:
                    raise AssertionError(f"request {request}: closed without an ack") from None
                if not guest.connection.serves():
                    guest.reconnect()
        for request in (0, 45, 0xFFFFFFFF, vu.POSTCOPY_ADVISE):
            guest.connection.send(request)
            assert guest.connection.is_closed(), f"request {request} ignored"
            guest.reconnect()


def test_requests_of_features_not_negotiated():
    """IOTLB_MSG and VRING_KICK belong to features that a blk back-end need not offer."""
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        if not guest.offered >> 33 & 1:
            must_refuse(guest, vu.IOTLB_MSG, bytes(32))
        if not guest.offered_protocol >> vu.P_INBAND & 1:
            must_refuse(guest, vu.VRING_KICK, state(0))


def test_split_across_writes():
    """A header or payload may arrive in pieces, down to single bytes."""
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        messages, lent = legal_messages(guest)
        for m in messages:
            data = vu.header(m.request, len(m.payload), vu.VERSION | vu.NEED_REPLY) + m.payload
            for i in range(len(data)):
                guest.connection.send_bytes(data[i:i + 1], m.fds if i == 0 else ())
                if i in (0, 4, 11, 12, len(data) - 2):
                    time.sleep(0.001)  # so that the daemon really sees a part
            reply = guest.connection.receive()
            close_all(reply.fds)
            assert reply.request == m.request, m.name
            if m.reply == "ack":
                assert reply.payload == u64(0), f"{m.name}: ack {reply.payload.hex()}"
        close_all(lent)
        guest.start()
        guest.ring.check()


def test_several_in_one_write():
    """Replies come in order, whatever shares a read."""
    with hostile_disk() as (_, path), Guest(path) as guest:
        ask = [(vu.GET_FEATURES, b"", 1), (vu.SET_VRING_ENABLE, state(1, 0), 9), (vu.GET_QUEUE_NUM, b"", 1),
               (vu.GET_CONFIG, config(0, 60), 1), (vu.SET_VRING_ENABLE, state(77, 0), 9),
               (vu.GET_PROTOCOL_FEATURES, b"", 9), (vu.SET_VRING_ENABLE, state(1, 1), 1),
               (vu.GET_FEATURES, b"", 9)]
        data = b"".join(vu.header(r, len(p), f) + p for r, p, f in ask) * 20
        half = len(data) // 2 + 5
        guest.connection.send_bytes(data[:half])
        time.sleep(0.01)
        guest.connection.send_bytes(data[half:])
        for _ in range(20):
            for request, payload, flags in ask:
                if request != vu.SET_VRING_ENABLE or flags & vu.NEED_REPLY:
                    reply = guest.connection.receive()
                    assert reply.request == request, f"reply to {reply.request} instead of {request}"
                    if request == vu.SET_VRING_ENABLE:
                        refused = reply.payload != u64(0)
                        assert refused == (payload == state(77, 0))
        guest.ring.check()


def test_second_connection_does_not_mix_state():
    with hostile_disk() as (_, path), Guest(path) as guest:
        for _ in range(20):
            try:
                with Connection(path, deadline=0.1) as second:
                    second.send(vu.SET_FEATURES, u64(guest.features & ~bits(vu.F_PROTOCOL_FEATURES)))
                    second.send(vu.SET_VRING_ENABLE, state(0, 0))
                    second.ask_u64(vu.GET_FEATURES)
                    raise AssertionError("two front-ends are served on one socket")
            except (Closed, NoReply):
                pass  # turned away, or left in the backlog
            guest.ring.check()


# -- configuration space -----------------------------------------------------------------------------


def test_get_config():
    with hostile_disk(blocks=32768) as (_, path), Guest(path, started=False) as guest:
        for size in (57, 60, 96, 256):
            assert struct.unpack_from("<Q", guest.get_config(0, size))[0] == 32768
        whole = guest.get_config(0, 256)
        assert whole[96:] == bytes(160), "not zero past the structure"
        for offset, size in ((0, 1), (1, 1), (8, 4), (20, 4), (255, 1), (95, 2), (100, 156), (32, 1)):
            assert guest.get_config(offset, size) == whole[offset:offset + size]
        seg_max, = struct.unpack_from("<I", whole, 12)
        assert seg_max > 1, f"seg_max {seg_max}"
        assert struct.unpack_from("<I", whole, 20)[0] == 512, "blk_size"
        assert struct.unpack_from("<H", whole, 34)[0] == 2, "num_queues"
        assert struct.unpack_from("<I", whole, 36)[0] >= 1, "max_discard_sectors"
        if guest.offered & 2:  # SIZE_MAX
            assert struct.unpack_from("<I", whole, 8)[0] >= MIB


def test_get_config_outside():
    """Size 0 in the reply, or a close; never bytes from beyond the structure."""
    message = Legal("GET_CONFIG", vu.GET_CONFIG, b"", [], "own")
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        for offset, size in ((0x100, 1), (0, 257), (1, 256), (255, 2), (0xFFFFFFFF, 1), (0xFFFFFFFF, 2),
                             (0xFFFFFF01, 255), (0x80000000, 60)):
            payload = config(offset, size)
            if refusal(guest.connection, message, payload) == "closed":
                guest.reconnect()
        for announced, carried in ((60, 10), (10, 60), (256, 60), (0xFFFFFFFF, 60), (60, 0)):
            payload = struct.pack("=III", 0, announced, 0) + bytes(carried)
            if refusal(guest.connection, message, payload) == "closed":
                guest.reconnect()


def test_set_config():
    """Only writeback may be written, except in migration."""
    with hostile_disk() as (_, path), Guest(path) as guest:
        for value in (0, 1, 0, 1):
            guest.connection.must(vu.SET_CONFIG, config(32, 1, data=bytes([value])))
            assert guest.get_config(32, 1)[0] == value
            guest.ring.check()
        for payload in (config(0, 8), config(0, 60), config(31, 1), config(33, 1), config(32, 2),
                        config(32, 0), config(0x100, 1), config(0xFFFFFFFF, 2), config(0, 257),
                        struct.pack("=III", 32, 1, 0), struct.pack("=III", 32, 0xFFFFFFFF, 0) + b"\1"):
            if must_refuse(guest, vu.SET_CONFIG, payload) == "closed":
                guest.start()
        assert guest.capacity() == 32768
        # Migration may write it all; what it means is the daemon's business, surviving it too.
        try:
            guest.connection.try_ack(vu.SET_CONFIG, config(0, 60, flags=1, data=b"\xff" * 60))
        except NoReply:
            raise AssertionError("SET_CONFIG with flags 1: no ack") from None


def test_read_only_disk():
    with hostile_disk() as (daemon, path):
        daemon.rpc("vhost_create_blk_controller", ctrlr="ro", dev_name="Malloc0", readonly=True)
        with Guest(path) as guest, Guest(daemon.vhost_path("ro")) as reader:
            assert reader.offered >> vu.F_RO & 1, "RO not offered"
            guest.ring.write(3, b"w" * 512)
            assert reader.ring.read(3) == b"w" * 512
            reader.ring.write(3, b"x" * 512, status=vu.IOERR)
            reader.ring.flush()
            assert guest.ring.read(3) == b"w" * 512, "a read-only controller wrote"
        daemon.delete_controller("ro")


# -- ring states (section 4) -----------------------------------------------------------------------------


def not_served(request, seconds=0.2):
    """The request stays in the ring, untouched."""
    time.sleep(seconds)
    request.ring.reap()
    assert not request.done and request.status() == vu.UNWRITTEN, "processed"


def test_disabled_ring_leaves_requests():
    with hostile_disk() as (_, path), Guest(path) as guest:
        guest.ring.check()
        guest.enable(guest.ring, 0)
        request = guest.ring.submit(vu.IN, 0, length=512)
        not_served(request)
        guest.enable(guest.ring, 1)
        guest.ring.wait(request)
        assert request.status() == vu.OK


def test_ring_starts_with_the_first_kick():
    """Started is: the kick fd has become readable after SET_VRING_KICK."""
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        request = guest.ring.prepare(vu.IN, 0, length=512)
        guest.ring.publish([request.head])
        guest.set_mem_table()
        guest.set_up_ring(guest.ring)
        guest.enable(guest.ring)
        not_served(request)
        guest.ring.kick()
        guest.ring.wait(request)


def test_kick_before_everything_else():
    """KICK and CALL before NUM, ADDR, BASE and the memory table are remembered."""
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        ring = guest.ring
        guest.tell(vu.SET_VRING_CALL, u64(0), [ring.call_fd])
        guest.tell(vu.SET_VRING_KICK, u64(0), [ring.kick_fd])
        guest.enable(ring)
        ring.kick()
        time.sleep(0.05)
        guest.set_mem_table()
        guest.tell(vu.SET_VRING_NUM, state(0, ring.size))
        guest.tell(vu.SET_VRING_ADDR, guest.ring_addr(ring))  # a missing SET_VRING_BASE means 0
        ring.kick()
        ring.check()


def test_kick_without_memory():
    """A ring with addresses from nowhere is not touched."""
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        ring, connection = guest.ring, guest.connection
        connection.try_ack(vu.SET_VRING_NUM, state(0, 64))
        if connection.try_ack(vu.SET_VRING_ADDR, vring_addr(0, 0x1000, 0x3000, 0x2000)) == "closed":
            return
        if connection.try_ack(vu.SET_VRING_KICK, u64(0), [ring.kick_fd]) == "closed":
            return
        connection.try_ack(vu.SET_VRING_ENABLE, state(0, 1))
        ring.kick()
        time.sleep(0.1)


def test_call_fd_replaced_while_running():
    with hostile_disk() as (_, path), Guest(path) as guest:
        ring = guest.ring
        for round_number in range(20):
            old, ring.call_fd = ring.call_fd, vu.eventfd()
            guest.tell(vu.SET_VRING_CALL, u64(0), [ring.call_fd])
            os.close(old)
            request = ring.submit(vu.IN, round_number, length=512)
            poll_call(ring, f"round {round_number}")
            ring.wait(request)
        guest.tell(vu.SET_VRING_CALL, u64(vu.NO_FD))  # the guest polls from now on
        ring.check()
        guest.tell(vu.SET_VRING_CALL, u64(0), [ring.call_fd])
        ring.drain_call()
        ring.submit(vu.IN, 0, length=512)
        poll_call(ring, "after polling")


def poll_call(ring, what):
    end = time.monotonic() + 5
    while not ring.drain_call():
        assert time.monotonic() < end, f"{what}: no call"
        time.sleep(0.002)
    ring.reap()


def test_ring_without_call_fd():
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        ring = guest.ring
        guest.set_mem_table()
        guest.tell(vu.SET_VRING_NUM, state(0, ring.size))
        guest.tell(vu.SET_VRING_BASE, state(0, 0))
        guest.tell(vu.SET_VRING_ADDR, guest.ring_addr(ring))
        guest.tell(vu.SET_VRING_KICK, u64(0), [ring.kick_fd])
        guest.enable(ring)
        ring.kick()
        ring.check()


def test_event_idx():
    """With EVENT_IDX a call comes for the used index that was asked for."""
    features = vu.DRIVER_FEATURES | bits(vu.F_EVENT_IDX)
    with hostile_disk() as (_, path), Guest(path, features=features) as guest:
        ring = guest.ring
        used_event = ring.avail + 4 + 2 * ring.size
        for i in range(200):
            guest.memory.put16(used_event, ring.used_idx)
            ring.drain_call()
            request = ring.submit(vu.IN, i, length=512)
            poll_call(ring, f"request {i}")
            ring.wait(request)


def test_get_vring_base_stops_and_memory_survives():
    with hostile_disk() as (_, path), Guest(path) as guest:
        ring = guest.ring
        for _ in range(5):
            ring.check()
            base = guest.get_vring_base(ring)
            assert base == ring.avail_idx, f"base {base}, {ring.avail_idx} requests were made"
            request = ring.submit(vu.IN, 0, length=512)
            not_served(request, 0.05)
            # Not SET_MEM_TABLE: the table survives the stop. Not ENABLE: neither does the stop disable.
            guest.set_up_ring(ring, base)
            ring.kick()
            ring.wait(request)


def test_suspended_device_does_not_write():
    """After the reply to the last GET_VRING_BASE guest memory stands still."""
    with Daemon() as daemon:
        path = daemon.delayed_disk(read_us=100000)
        with Guest(path) as guest:
            for _ in range(10):
                guest.ring.submit(vu.IN, 0, length=512)
            time.sleep(0.02)
            guest.get_vring_base(guest.ring)
            guest.ring.drain_call()
            region = guest.memory.regions[0].map
            before = region[:]
            time.sleep(0.3)
            assert region[:] == before, "guest memory written after GET_VRING_BASE"
            assert not guest.ring.drain_call(), "called after GET_VRING_BASE"
            assert guest.connection.serves()


def test_enable_a_ring_that_was_never_configured():
    with hostile_disk() as (_, path), Guest(path) as guest:
        for on in (1, 0, 1, 1):
            guest.connection.must(vu.SET_VRING_ENABLE, state(1, on))
        guest.ring.check()


def test_features_without_bit_30_enable_all_rings():
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        guest.set_features(guest.features & ~bits(vu.F_PROTOCOL_FEATURES))
        guest.set_mem_table()
        guest.set_up_ring(guest.ring)
        guest.ring.kick()
        guest.ring.check()


def test_reset_owner_keeps_state():
    """Deprecated: ignored, or all rings disabled; never a lost table."""
    with hostile_disk() as (_, path), Guest(path) as guest:
        guest.ring.check()
        guest.connection.must(vu.RESET_OWNER)
        guest.enable(guest.ring)
        guest.ring.check()


def test_reset_device():
    with hostile_disk() as (_, path), Guest(path) as guest:
        for _ in range(5):
            guest.ring.check()
            guest.connection.must(vu.RESET_DEVICE)
            guest.ring.reset()
            request = guest.ring.submit(vu.IN, 0, length=512)
            not_served(request, 0.05)
            guest.ring.reset()
            guest.set_features(guest.features)
            guest.start()


def test_mem_table_while_running():
    with hostile_disk() as (_, path), Guest(path) as guest:
        stamp_disk(guest)
        read_load(guest, time.monotonic() + 0.5, step=guest.set_mem_table)


def test_addresses_while_running():
    """SET_VRING_ADDR on a running ring: stop, translate, restart."""
    with hostile_disk() as (_, path), Guest(path) as guest:
        stamp_disk(guest)
        again = guest.ring_addr(guest.ring)
        read_load(guest, time.monotonic() + 0.3,
                  step=lambda: guest.connection.try_ack(vu.SET_VRING_ADDR, again))


def test_two_rings_stop_alone():
    with hostile_disk() as (_, path), Guest(path, queues=2) as guest:
        first, second = guest.rings
        for _ in range(5):
            first.check(1)
            second.check(2)
            base = guest.get_vring_base(first)
            second.check(3)
            guest.set_up_ring(first, base)
            first.kick()


# -- validation (section 5) ----------------------------------------------------------------------------


def refused_table(guest, payload, fds):
    """Refused, and then the old table still serves; or the session has ended."""
    if must_refuse(guest, vu.SET_MEM_TABLE, payload, fds) == "closed":
        guest.ring.reset()
        guest.start()
    guest.ring.check()


def test_mem_table_refused():
    size = MIB
    table = {
        "no size": [(0x10000000, 0, 0x10000000, 0)],
        "gpa wraps": [(ALL_ONES - 0xFFF, 0x2000, 0x10000000, 0)],
        "user address wraps": [(0x10000000, 0x2000, ALL_ONES - 0xFFF, 0)],
        "offset wraps": [(0x10000000, 0x2000, 0x10000000, ALL_ONES - 0xFFF)],
        "beyond the file": [(0x10000000, size + 1, 0x10000000, 0)],
        "offset beyond the file": [(0x10000000, 4096, 0x10000000, size)],
        "gpa overlaps": [(0x10000000, 8192, 0x10000000, 0), (0x10001000, 8192, 0x20000000, 0)],
        "user space overlaps": [(0x10000000, 8192, 0x10000000, 0), (0x20000000, 8192, 0x10001000, 0)],
        "same twice": [(0x10000000, 8192, 0x10000000, 0), (0x10000000, 8192, 0x10000000, 0)],
    }
    with hostile_disk() as (_, path), Guest(path) as guest:
        fd = memfd(size)
        for name, entries in table.items():
            try:
                refused_table(guest, mem_table(entries), [fd] * len(entries))
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error
        os.close(fd)


def test_mem_table_counts():
    with hostile_disk() as (_, path), Guest(path) as guest:
        fd = memfd(MIB)
        entries = [(0x10000000 + i * MIB, 4096, 0x10000000 + i * MIB, 0) for i in range(9)]
        refused_table(guest, mem_table(entries), [fd] * 9)
        refused_table(guest, mem_table(entries[:2]), [fd])
        refused_table(guest, mem_table(entries[:2]), [fd] * 3)
        refused_table(guest, mem_table(entries[:2]), [])
        for announced in (0xFFFFFFFF, 0x08000000, 3, 1):  # 32 * 0x08000000 is 0 in 32 bits
            refused_table(guest, struct.pack("=II", announced, 0) + mem_table(entries[:2])[8:], [fd] * 2)
        os.close(fd)


def test_mem_table_fds_that_cannot_be_mapped():
    with hostile_disk() as (daemon, path), Guest(path) as guest:
        with open(daemon.path("plain"), "wb") as file:
            file.truncate(MIB)
        pipe, ours = os.pipe(), socket.socket(socket.AF_UNIX)
        fds = [vu.eventfd(), os.open("/", os.O_RDONLY), os.open("/dev/null", os.O_RDWR), *pipe,
               ours.detach(), os.open(daemon.path("plain"), os.O_RDONLY),
               os.open(daemon.path("plain"), os.O_WRONLY)]
        for fd in fds:
            refused_table(guest, mem_table([(0, 4096, 0x10000000, 0)]), [fd])
        close_all(fds)


def test_mem_table_of_eight_regions():
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        extra = [Region((i + 1) << 24, 0x10000) for i in range(7)]
        guest.memory.regions += extra
        guest.start()
        for region in extra:
            io_at(guest, region.gpa)


def test_no_regions_drop_all():
    """nregions 0 drops the table. A ring that still runs in it may be an error, but is let go of."""
    with hostile_disk() as (_, path), Guest(path) as guest:
        guest.ring.check()
        base = guest.get_vring_base(guest.ring)
        guest.connection.must(vu.SET_MEM_TABLE, mem_table([]))
        guest.set_mem_table()
        guest.set_up_ring(guest.ring, base)
        guest.ring.kick()
        guest.ring.check()
        guest.connection.try_ack(vu.SET_MEM_TABLE, mem_table([]))
        not_served(guest.ring.submit(vu.IN, 0, length=512))
        guest.reconnect()
        guest.ring.reset()
        guest.start()
        guest.ring.check()


def io_at(guest, gpa, size=512):
    """Write and read back with the data buffer at this address."""
    ring, pattern = guest.ring, os.urandom(size)
    for kind, flag in ((vu.OUT, 0), (vu.IN, vu.WRITE)):
        request = ring.prepare(kind, 7, length=512)
        ring.set_desc(request.head + 1, gpa, size, vu.NEXT | flag, request.head + 2)
        guest.memory.write(gpa, pattern if kind == vu.OUT else bytes(size))
        ring.publish([request.head])
        ring.kick()
        ring.wait(request)
        assert request.status() == vu.OK, f"status {request.status()} at {gpa:#x}"
    assert guest.memory.read(gpa, size) == pattern, f"wrong data at {gpa:#x}"


def test_vring_num_refused():
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        for num in (0, 3, 5, 100, 65535, 65536, 65537, 0x20000, 0x10040, 0x80000000, 0xFFFFFFFF):
            must_nack(guest, vu.SET_VRING_NUM, state(0, num))
        guest.start()
        guest.ring.check()


def test_ring_sizes():
    """Up to 1024; larger may be refused, never misread."""
    with hostile_disk() as (_, path):
        for size in (4, 8, 128, 256, 1024):
            with Guest(path, size=size) as guest:
                for _ in range(size):
                    guest.ring.read(0)
                guest.ring.check()


def test_ring_sizes_1_and_2():
    """A chain, indirect or not, has as many descriptors as the ring at most: 2 are enough for a flush,
    1 is too short for anything and comes back unwritten."""
    with hostile_disk() as (_, path):
        for size in (1, 2):
            with Guest(path, size=size) as guest:
                ring, head, status = guest.ring, guest.ring.buffers, guest.ring.buffers + 16
                for _ in range(5):
                    guest.memory.write(head, struct.pack("<IIQB", vu.FLUSH, 0, 0, vu.UNWRITTEN))
                    ring.set_desc(0, head, 16, vu.NEXT if size == 2 else 0, 1)
                    if size == 2:
                        ring.set_desc(1, status, 1, vu.WRITE)
                    request = ring.track(0)
                    ring.publish([0])
                    ring.kick()
                    ring.wait(request)
                    wanted = (1, vu.OK) if size == 2 else (0, vu.UNWRITTEN)
                    assert (request.written, guest.memory.read(status, 1)[0]) == wanted


def test_vring_addr_refused():
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        ring, region = guest.ring, guest.memory.regions[0]
        guest.set_mem_table()
        guest.tell(vu.SET_VRING_NUM, state(0, ring.size))
        good = {"desc": ring.desc, "avail": ring.avail, "used": ring.used}
        user = {name: region.user_addr + gpa for name, gpa in good.items()}
        end = region.user_addr + region.size
        wrong = {"desc not 16-aligned": {"desc": user["desc"] + 8}, "avail odd": {"avail": user["avail"] + 1},
                 "used not 4-aligned": {"used": user["used"] + 2}, "desc at the end": {"desc": end - 16},
                 "avail at the end": {"avail": end - 4 - 2 * ring.size},
                 "used at the end": {"used": end - 4 - 8 * ring.size & ~3},
                 "desc before the region": {"desc": region.user_addr - 16},
                 "desc nowhere": {"desc": 0x1000}, "used nowhere": {"used": 0},
                 "desc wraps": {"desc": ALL_ONES - 15}, "avail wraps": {"avail": ALL_ONES - 1},
                 "used wraps": {"used": ALL_ONES - 3}}
        for name, change in wrong.items():
            payload = vring_addr(0, **{**user, **change})
            try:
                must_nack(guest, vu.SET_VRING_ADDR, payload)
            except (AssertionError, Closed) as error:
                raise AssertionError(f"{name}: {error!r}") from error
        guest.start()
        ring.check()


def test_vring_addr_exactly_at_the_end():
    """The whole ring may end with the region: off by one would refuse or overrun."""
    size = 64
    with hostile_disk() as (_, path):
        memory = Memory([Region(0, MIB), Region(1 << 24, 4096)])
        with Guest(path, size=size, memory=memory, started=False) as guest:
            ring, end = guest.ring, (1 << 24) + 4096
            ring.used = end - (6 + 8 * size + 2) & ~3  # the last 4-aligned place that fits
            assert ring.used + 6 + 8 * size <= end < ring.used + 6 + 8 * size + 4
            guest.start()
            for _ in range(100):
                ring.check()


def test_vring_base_above_16_bits():
    """Split: bits 16-31 are zero. Refused, or the bits ignored; the ring runs either way."""
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        guest.connection.try_ack(vu.SET_VRING_BASE, state(0, 0xFFFF0000))
        if not guest.connection.serves():
            guest.reconnect()
        guest.start()
        guest.ring.check()


def test_base_near_the_wrap():
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        ring = guest.ring
        ring.reset(65530)
        guest.set_mem_table()
        guest.set_up_ring(ring, 65530)
        guest.enable(ring)
        ring.kick()
        for _ in range(10):
            ring.check()
        assert guest.get_vring_base(ring) == ring.avail_idx < 65530


def test_memory_shrinks_under_the_daemon():
    """A memfd truncated after it was mapped must not kill the daemon with SIGBUS."""
    with hostile_disk() as (daemon, path), Guest(path) as guest:
        extra = Region(1 << 24, MIB)
        guest.memory.regions.append(extra)
        guest.set_mem_table()
        os.ftruncate(extra.fd, 0)
        for kind, flag in ((vu.OUT, 0), (vu.IN, vu.WRITE)):
            request = guest.ring.prepare(kind, 7, length=512)
            guest.ring.set_desc(request.head + 1, extra.gpa, 4096, vu.NEXT | flag, request.head + 2)
            guest.ring.publish([request.head])
            guest.ring.kick()
            try:
                guest.ring.wait(request, deadline=2)
            except AssertionError:
                break  # the device may be broken for this guest; the daemon may not
        time.sleep(0.1)
        assert daemon.alive(), "SIGBUS"


def test_ring_memory_shrinks_under_the_daemon():
    with hostile_disk() as (daemon, path), Guest(path) as guest:
        guest.ring.check()
        os.ftruncate(guest.memory.regions[0].fd, 0)
        for _ in range(3):
            os.eventfd_write(guest.ring.kick_fd, 1)
            time.sleep(0.05)
        assert daemon.alive(), "SIGBUS"


# -- memory slots ----------------------------------------------------------------------------------------


def test_mem_slots_32_regions():
    """32 regions one by one, I/O in each; removed in another order; as often as one likes."""
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        slots = guest.connection.ask_u64(vu.GET_MAX_MEM_SLOTS)
        assert slots >= 32, f"{slots} slots"
        home = guest.memory.regions[0]
        guest.tell(vu.ADD_MEM_REG, mem_reg(*home.entry()), [home.fd])
        guest.set_up_ring(guest.ring)
        guest.enable(guest.ring)
        guest.ring.kick()
        extra = [Region((i + 1) << 24, 0x10000, offset=4096 * (i % 3)) for i in range(31)]
        guest.memory.regions += extra
        for _ in range(2):
            for region in extra:
                guest.tell(vu.ADD_MEM_REG, mem_reg(*region.entry()), [region.fd])
                io_at(guest, region.gpa + 512)
            guest.ring.check()
            for region in random.sample(extra, len(extra)):
                guest.tell(vu.REM_MEM_REG, mem_reg(*region.entry()))
            guest.ring.check()


def test_mem_slots_too_many():
    with hostile_disk() as (_, path), Guest(path) as guest:
        slots = guest.connection.ask_u64(vu.GET_MAX_MEM_SLOTS)
        if slots > 4096:
            raise Skip(f"{slots} slots are too many to fill")
        fd, taken = memfd(4096), 1
        for i in range(slots + 8):
            outcome = guest.connection.try_ack(vu.ADD_MEM_REG, mem_reg((i + 1) << 24, 4096, (i + 1) << 24),
                                               [fd])
            if outcome != "ok":
                break
            taken += 1
        os.close(fd)
        assert outcome == "refused", outcome
        assert taken == slots, f"{taken} regions accepted, {slots} slots announced"
        guest.ring.check()


def test_mem_slots_refused():
    entry = (1 << 30, 8192, 1 << 30)
    with hostile_disk() as (_, path), Guest(path) as guest:
        fd = memfd(8192)
        guest.tell(vu.ADD_MEM_REG, mem_reg(*entry), [fd])
        for payload in (mem_reg(*entry), mem_reg((1 << 30) + 4096, 8192, 1 << 31),
                        mem_reg(1 << 31, 8192, (1 << 30) + 4096), mem_reg(1 << 31, 0, 1 << 31),
                        mem_reg(1 << 31, 8193, 1 << 31), mem_reg(1 << 31, 4096, 1 << 31, 8192),
                        mem_reg(ALL_ONES - 0xFFF, 8192, 1 << 31), mem_reg(1 << 31, 8192, ALL_ONES - 0xFFF),
                        mem_reg(1 << 31, ALL_ONES, 1 << 31)):
            must_nack(guest, vu.ADD_MEM_REG, payload, [fd])
        for payload in (mem_reg(1 << 31, 8192, 1 << 30), mem_reg(1 << 30, 4096, 1 << 30),
                        mem_reg(1 << 30, 8192, 1 << 31)):
            must_nack(guest, vu.REM_MEM_REG, payload)
        # Matched by gpa, size and user address; offset ignored, one fd tolerated.
        guest.tell(vu.REM_MEM_REG, mem_reg(*entry, 12345), [fd])
        must_nack(guest, vu.REM_MEM_REG, mem_reg(*entry))
        os.close(fd)
        guest.ring.check()


def test_mem_slot_of_the_ring_removed():
    """The ring loses its memory: it stops, and comes back with the region."""
    with hostile_disk() as (daemon, path), Guest(path) as guest:
        home = guest.memory.regions[0]
        guest.ring.check()
        if guest.connection.try_ack(vu.REM_MEM_REG, mem_reg(*home.entry())) == "closed":
            return
        for _ in range(3):
            guest.ring.kick()
            time.sleep(0.03)
        assert daemon.alive()
        guest.reconnect()
        guest.ring.reset()
        guest.start()
        guest.ring.check()


# -- inflight messages -------------------------------------------------------------------------------------


def test_inflight_fd():
    with hostile_disk() as (_, path), Guest(path, queues=2, started=False) as guest:
        payload, fd = guest.get_inflight_fd(2, 64)
        mmap_size, offset, queues, size = struct.unpack_from("=QQHH", payload)
        assert (queues, size) == (2, 64)
        assert mmap_size >= 2 * (16 + 16 * 64) and os.fstat(fd).st_size >= offset + mmap_size
        assert not any(os.pread(fd, mmap_size, offset)), "a fresh region is not zeroed"
        guest.connection.must(vu.SET_INFLIGHT_FD, payload, [fd])
        guest.connection.must(vu.SET_INFLIGHT_FD, payload[:20], [fd])  # 20 bytes: without the padding
        os.close(fd)
        guest.start()
        for ring in guest.rings:
            ring.check()


def test_get_inflight_fd_outside():
    """No fd for nonsense: a close, an empty reply, or a size of 0."""
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        for queues, size in ((0, 64), (3, 64), (65535, 64), (1, 0), (1, 65535), (65535, 65535)):
            try:
                answer = guest.connection.ask(vu.GET_INFLIGHT_FD, inflight(0, 0, queues, size))
            except Closed:
                guest.reconnect()
                continue
            fds = guest.connection.reply_fds
            close_all(fds)
            assert not fds, f"{queues} queues of {size}: an fd of {answer.hex()}"
            assert answer == b"" or struct.unpack_from("=Q", answer)[0] == 0, answer.hex()


# -- the bug log -----------------------------------------------------------------------------------------


@deadline(90)
def test_vu_1_surplus_fds_leak():
    rounds = scaled(2000, 150)
    with hostile_disk() as (daemon, path):
        fds = [memfd() for _ in range(8)]
        # A low limit instead of 20,000 messages: a leak of one fd per message shows soon.
        pid, limit = daemon.process.pid, daemon.counters().fds + 64
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        for request, payload in ((vu.GET_FEATURES, b""), (vu.SET_VRING_NUM, state(0, 64))):
            connection, _ = open_session(path)
            for _ in range(rounds):
                try:
                    connection.send(request, payload, fds)
                    if request == vu.GET_FEATURES:
                        connection.receive()
                except Closed:
                    connection.close()
                    connection, _ = open_session(path)
            connection.close()
            for _ in range(rounds):
                connection, _ = open_session(path)
                with connection:
                    connection.send(request, payload, fds)
        close_all(fds)


@deadline(90)
def test_vu_2_set_vring_num_memory():
    rounds, batch = scaled(100000, 20000), 500
    with hostile_disk(rss_kib=1024) as (_, path), Guest(path, started=False) as guest:
        flags = vu.VERSION | vu.NEED_REPLY
        pair = b"".join(vu.header(vu.SET_VRING_NUM, 8, flags) + state(0, n) for n in (1024, 32768))
        for _ in range(rounds // batch):
            guest.connection.send_bytes(pair * (batch // 2))
            for _ in range(batch // 2):
                assert guest.connection.receive().payload == u64(0), "1024 refused"
                guest.connection.receive()  # 32768 may be refused
        guest.start()
        guest.ring.check()


def test_vu_3_vring_index_narrowed():
    with hostile_disk() as (_, path), Guest(path) as guest:
        ring = guest.ring
        for index in (0x10000, 0xFFFF0000, 0x80000000, 2, 3, 255, 256, 0xFFFFFFFF):
            addr = struct.pack("=I", index) + guest.ring_addr(ring)[4:]
            must_nack(guest, vu.SET_VRING_NUM, state(index, 64))
            must_nack(guest, vu.SET_VRING_ADDR, addr)
            must_nack(guest, vu.SET_VRING_BASE, state(index, 0))
            must_nack(guest, vu.SET_VRING_ENABLE, state(index, 1))
            if must_refuse(guest, vu.GET_VRING_BASE, state(index), reply="own") == "closed":
                ring.reset()
                guest.start()
        ring.check()


def test_vu_3_vring_index_of_kick():
    """An index beyond the queues in KICK, CALL and ERR."""
    with hostile_disk() as (_, path), Guest(path) as guest:
        for request in (vu.SET_VRING_KICK, vu.SET_VRING_CALL, vu.SET_VRING_ERR):
            for index in (2, 128, 255):
                fd = vu.eventfd()
                must_refuse(guest, request, u64(index), [fd])
                must_refuse(guest, request, u64(index | vu.NO_FD))
                os.close(fd)


def test_vu_4_log_size_and_offset_wrap():
    with hostile_disk() as (_, path), Guest(path) as guest:
        fd = memfd(4096, "log")
        for size, offset in ((0xFFFFFFFFFFFFF000, 0x2000), (0x2000, 0xFFFFFFFFFFFFF000), (ALL_ONES, 0),
                             (8192, 0), (4096, 4096), (1 << 62, 1 << 62), (0, 0)):
            payload = struct.pack("=QQ", size, offset)
            try:
                guest.connection.send(vu.SET_LOG_BASE, payload, [fd], vu.VERSION | vu.NEED_REPLY)
                reply = guest.connection.receive()
                refused = len(reply.payload) == 8 and reply.payload != u64(0)
            except Closed:
                refused = True
                guest.reconnect()
                guest.ring.reset()
                guest.start()
            log_all = bits(vu.F_LOG_ALL) & guest.offered
            guest.set_features(guest.features | log_all)
            guest.ring.check()
            guest.set_features(guest.features)
            # A size of 0 logs nothing; whether it is an error is left open.
            assert refused or size == 0, f"log of {size:#x} at {offset:#x} accepted"
        assert os.fstat(fd).st_size == 4096
        os.close(fd)


def test_log_marks_written_pages():
    """With a log and LOG_ALL a read marks the page of its buffer and the used ring's, and nothing beyond."""
    with hostile_disk() as (_, path), Guest(path, slot=16384) as guest:
        if not guest.offered >> vu.F_LOG_ALL & 1 or not guest.offered_protocol >> vu.P_LOG_SHMFD & 1:
            raise Skip("dirty logging is not offered")
        ring, pages = guest.ring, guest.memory.regions[0].size // 4096
        fd = memfd(8192, "log")
        os.pwrite(fd, b"\0" * 8192, 0)
        answer = guest.connection.ask(vu.SET_LOG_BASE, struct.pack("=QQ", 4096, 4096), [fd])
        assert answer == b"", "SET_LOG_BASE is answered with a header of size 0"
        flagged = struct.pack("=II", 0, 1) + guest.ring_addr(ring)[8:32] + u64(ring.used)
        guest.tell(vu.SET_VRING_ADDR, flagged)
        guest.set_features(guest.features | bits(vu.F_LOG_ALL))
        ring.kick()
        data = ring.run(vu.IN, 0, length=8192).data_gpa
        log = os.pread(fd, 8192, 0)
        marked = {p for p in range(4096 * 8) if log[4096 + p // 8] >> p % 8 & 1}
        for gpa in (data, data + 4096, data + 8191, ring.used):
            assert gpa // 4096 in marked, f"page {gpa // 4096} of {gpa:#x} not marked, only {sorted(marked)}"
        assert max(marked) < pages and not any(log[:4096]), "marked outside"
        guest.set_features(guest.features)
        os.close(fd)


def test_vu_5_get_inflight_fd_leak():
    with hostile_disk() as (daemon, path), Guest(path, started=False) as guest:
        _, fd = guest.get_inflight_fd(1, 128)
        os.close(fd)
        with daemon.no_leak(maps=4):
            for _ in range(scaled(10000, 2000)):
                _, fd = guest.get_inflight_fd(1, 128)
                os.close(fd)


def test_vu_7_set_inflight_fd_counts():
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        fd = memfd(4096, "inflight")
        for payload in (inflight(4096, 0, 65535, 256), inflight(4096, 0, 3, 16), inflight(4096, 0, 1, 0),
                        inflight(0, 0, 1, 64), inflight(2048, 1, 1, 64), inflight(4096, ALL_ONES - 4095, 1, 64),
                        inflight(ALL_ONES, 1, 1, 64), inflight(4096, 0, 2, 32768), inflight(4096, 0, 1, 65535),
                        inflight(8192, 0, 1, 64), inflight(4096, 4096, 1, 64), inflight(1032, 0, 1, 64),
                        inflight(4096, 0, 0, 64)):
            must_refuse(guest, vu.SET_INFLIGHT_FD, payload, [fd])
        must_refuse(guest, vu.SET_INFLIGHT_FD, inflight(4096, 0, 1, 64))
        guest.start()
        guest.ring.check()
        os.close(fd)


def test_vu_8_region_size_rounded_to_0():
    with hostile_disk() as (_, path), Guest(path) as guest:
        fd = memfd(4096)
        for entry in ((0, 0xFFFFFFFFFFFFF001, 0, 0), (0, ALL_ONES, 0, 0), (0, 0, 0, 0),
                      (0xFFFFFFFFFFFFF000, 0x2000, 0, 0), (0, 0x2000, 0xFFFFFFFFFFFFF000, 0),
                      (0, 0xFFFFFFFFFFFFF001, 0x1000, 0x1000), (0, 1 << 63, 0, 1 << 63)):
            refused_table(guest, mem_table([entry]), [fd])
        os.close(fd)


def test_vu_11_regions_of_a_small_pc():
    """[0, 0xa0000] and [0xc0000, 0xff40000] of one memfd: nothing is a multiple of 2 MiB."""
    with hostile_disk() as (_, path):
        fd = memfd(256 * MIB)
        memory = Memory([Region(0, 0xA0000, 0x7F1200000000, 0, fd),
                         Region(0xC0000, 0xFF40000, 0x7F12000C0000, 0xC0000, fd)])
        os.close(fd)
        with Guest(path, memory=memory, ring_gpa=0x1000) as guest:
            for gpa in (0x90000, 0x9FE00, 0xC0000, 0x2000200, 0xFFFFE00):
                io_at(guest, gpa)


@deadline(90)
def test_vu_12_growing_tables():
    with hostile_disk() as (daemon, path):
        fd = memfd(944 * MIB)
        one = [Region(0, 472 * MIB, fd=fd)]
        two = one + [Region(472 * MIB, 472 * MIB, offset=472 * MIB, fd=fd)]
        os.close(fd)
        memory = Memory(two)
        with Guest(path, memory=memory) as guest:
            stamp_disk(guest)
            start = daemon.counters().vsize_kib
            for i in range(50):
                memory.regions = (one, two)[i % 2]
                guest.set_mem_table()
                read_load(guest, time.monotonic() + 0.01)
            memory.regions = two
            grown = daemon.counters().vsize_kib - start
            assert grown < 2 * 944 * 1024, f"{grown} KiB of address space more"


@deadline(120)
def test_vu_13_mem_table_under_load():
    with hostile_disk() as (_, path):
        fd = memfd(4 * MIB)
        ring_part = Region(0, 2 * MIB, fd=fd)
        whole = Region(0, 4 * MIB, fd=fd)
        upper = Region(2 * MIB, 2 * MIB, offset=2 * MIB, fd=fd)
        os.close(fd)
        memory = Memory([whole])
        with Guest(path, size=128, memory=memory) as guest:
            stamp_disk(guest)
            last = [time.monotonic(), 0]

            def replace_table():
                """Every 5 ms the same memory at new mappings, in one piece or two."""
                if time.monotonic() - last[0] > 0.005:
                    last[1] += 1
                    memory.regions = ([whole], [ring_part, upper])[last[1] % 2]
                    guest.set_mem_table()
                    last[0] = time.monotonic()

            count = read_load(guest, time.monotonic() + scaled(60, 5), step=replace_table, depth=32)
            assert count > 100 and last[1] > 20, (count, last[1])
            memory.regions = [whole]
        for region in (ring_part, upper):
            region.close()


def test_vu_15_bit_8_is_not_the_index():
    with hostile_disk() as (_, path), Guest(path, queues=2, started=False) as guest:
        first, second = guest.rings
        guest.set_mem_table()
        for ring in guest.rings:
            guest.set_up_ring(ring)
        guest.tell(vu.SET_VRING_CALL, u64(0x101))  # queue 1 polls its used ring
        guest.tell(vu.SET_VRING_KICK, u64(0x101))  # and is polled by the daemon
        for ring in guest.rings:
            guest.enable(ring)
        first.kick()
        first.check()
        for i in range(3):  # no kick reaches the daemon for this ring
            request = second.prepare(vu.IN, i, length=512)
            second.publish([request.head])
            second.wait(request)
            assert request.status() == vu.OK
        assert not second.drain_call(), "called although bit 8 said no fd"
        for request in (vu.SET_VRING_KICK, vu.SET_VRING_CALL, vu.SET_VRING_ERR):
            fd = vu.eventfd()
            must_refuse(guest, request, u64(0x100), [fd])
            must_refuse(guest, request, u64(0))
            os.close(fd)


def test_vu_17_queue_size_32768():
    with hostile_disk() as (daemon, path), Guest(path, started=False) as guest:
        number = guest.connection.ack(vu.SET_VRING_NUM, state(0, 32768))
        if number:
            assert "32768" in daemon.log(), "no log line names the value"
        guest.start()
        guest.ring.check()


def test_vu_18_queue_size_cast_to_0():
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        ring = guest.ring
        guest.set_mem_table()
        for num in (0x10000, 0x20000, 0, 3, 65535, 0xFFFFFFFF):
            must_nack(guest, vu.SET_VRING_NUM, state(0, num))
            # Never set: the size is 0. Whatever these two are answered, a kick must be harmless.
            guest.connection.try_ack(vu.SET_VRING_ADDR, guest.ring_addr(ring))
            guest.connection.try_ack(vu.SET_VRING_KICK, u64(0), [ring.kick_fd])
            guest.connection.try_ack(vu.SET_VRING_ENABLE, state(0, 1))
            ring.kick()
            time.sleep(0.01)
            if not guest.connection.serves():
                guest.reconnect()
                guest.set_mem_table()
        guest.reconnect()
        guest.start()
        ring.check()


def test_vu_19_set_features_keeps_rings_enabled():
    with hostile_disk() as (_, path), Guest(path) as guest:
        stamp_disk(guest)
        log_all = bits(vu.F_LOG_ALL) & guest.offered
        toggles = [0]

        def toggle():
            toggles[0] += 1
            guest.set_features(guest.features | (log_all if toggles[0] % 2 else 0))

        while toggles[0] < 200:
            read_load(guest, time.monotonic() + 0.05, step=toggle)


def test_vu_22_get_vring_base_keeps_the_index():
    with hostile_disk() as (daemon, path), Guest(path) as guest:
        ring = guest.ring
        for i in range(5):
            ring.read(i)
        assert guest.get_vring_base(ring) == 5
        assert guest.get_vring_base(ring) == 5, "a second GET_VRING_BASE resets"
        guest.enable(ring)
        guest.tell(vu.SET_VRING_BASE, state(0, 5))
        guest.tell(vu.SET_VRING_KICK, u64(0), [ring.kick_fd])
        before = reads(daemon)
        request = ring.submit(vu.IN, 5, length=512)
        ring.wait(request)
        time.sleep(0.1)
        ring.reap()  # a second completion would be a surprise
        assert reads(daemon) - before == 1, "served more than once"


def reads(daemon, bdev="Malloc0"):
    return daemon.rpc("bdev_get_iostat", names=[bdev])["bdevs"][0]["num_read_ops"]


def test_vu_23_disabled_before_get_vring_base():
    with Daemon() as daemon:
        path = daemon.delayed_disk(read_us=400000)
        with Guest(path) as guest:
            ring = guest.ring
            fetched = [ring.submit(vu.IN, i, length=512) for i in range(2)]
            time.sleep(0.1)
            guest.enable(ring, 0)
            waiting = [ring.submit(vu.IN, i, length=512) for i in range(3)]
            time.sleep(0.05)
            base = guest.get_vring_base(ring)
            assert base == 2, f"index {base}, 2 requests were fetched"
            ring.reap()
            assert all(r.done for r in fetched), "GET_VRING_BASE answered before the drain"
            assert not any(r.done for r in waiting)
            guest.set_up_ring(ring, base)
            guest.enable(ring)
            ring.kick()
            ring.wait()


def test_vu_24_ack_without_protocol_features():
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        guest.disconnect()
        time.sleep(0.1)  # the first message must be SET_FEATURES, so no retry hides behind another one
        with Connection(path) as connection:
            connection.send(vu.SET_FEATURES, u64(guest.features))
            connection.must(vu.SET_MEM_TABLE, guest.memory.table(), guest.memory.fds())
            guest.connection = connection
            guest.set_up_ring(guest.ring)
            guest.enable(guest.ring)
            guest.ring.kick()
            guest.ring.check()
            guest.connection = None


def test_vu_25_enable_without_mq():
    features = vu.DRIVER_FEATURES & ~bits(vu.F_MQ)
    protocol = vu.PROTOCOL_FEATURES & ~bits(vu.P_MQ)
    with hostile_disk() as (_, path), Guest(path, features=features, protocol=protocol) as guest:
        guest.connection.must(vu.SET_VRING_ENABLE, state(1, 1))
        guest.connection.must(vu.SET_VRING_ENABLE, state(0, 1))
        guest.ring.check()


def test_vu_26_inflight_before_any_vring():
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        payload, fd = guest.get_inflight_fd()
        guest.disconnect()
        guest.connect()
        guest.tell(vu.SET_INFLIGHT_FD, payload, [fd])
        guest.start()
        guest.ring.check()
        mmap_size, offset = struct.unpack_from("=QQ", payload)
        assert any(os.pread(fd, mmap_size, offset)), "the region is not used once the ring runs"
        os.close(fd)


def test_vu_29_too_many_fds_in_one_message():
    with hostile_disk() as (_, path):
        fds = [memfd() for _ in range(253)]  # SCM_MAX_FD
        for request, payload in ((vu.GET_FEATURES, b""), (vu.SET_MEM_TABLE, mem_table([(0, 4096, 0, 0)])),
                                 (vu.SET_VRING_CALL, u64(0))):
            connection, _ = open_session(path)
            with connection:
                try:
                    connection.send(request, payload, fds, vu.VERSION | vu.NEED_REPLY)
                    reply = connection.receive()
                    assert request != vu.GET_FEATURES, "GET_FEATURES with 253 fds answered"
                    assert reply.payload != u64(0), f"request {request} with 253 fds accepted"
                except Closed:
                    pass
        close_all(fds)


def test_vu_29_table_while_fds_are_used_up():
    """The kernel then drops fds and sets MSG_CTRUNC; the message must be refused as a whole."""
    with hostile_disk() as (daemon, path), Guest(path) as guest:
        pid = daemon.process.pid
        old = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        fd = memfd(MIB)
        entries = [(0x10000000 + i * MIB, 4096, 0x10000000 + i * MIB, 0) for i in range(8)]
        highest = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
        for room in (0, 1, 3):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1 + room, old[1]))
            try:
                outcome = guest.connection.try_ack(vu.SET_MEM_TABLE, mem_table(entries), [fd] * 8)
            finally:
                resource.prlimit(pid, resource.RLIMIT_NOFILE, old)
            in_use = len(os.listdir(f"/proc/{pid}/fd"))
            # Free numbers below the limit may have made room for all eight.
            assert outcome != "ok" or in_use >= 8 + room, "accepted without its fds"
            if outcome == "ok":
                guest.set_mem_table()
            elif outcome == "closed":
                guest.reconnect()
                guest.ring.reset()
                guest.start()
            guest.ring.check()
        os.close(fd)


@deadline(60)
def test_vu_31_sigterm_with_a_table_in_flight():
    """The long form, with load, is in test_config."""
    for _ in range(scaled(20, 4)):
        with Daemon() as daemon:
            path = daemon.malloc_disk()
            guest = Guest(path)
            stop = threading.Event()

            def resend():
                try:
                    while not stop.is_set():
                        guest.set_mem_table()
                except (Closed, NoReply, AssertionError):
                    pass

            thread = threading.Thread(target=resend)
            thread.start()
            time.sleep(random.uniform(0, 0.05))
            try:
                daemon.stop()
            finally:
                stop.set()
                thread.join()
                guest.close()


def test_vu_32_bdev_cannot_vanish_under_a_controller():
    """Riffle's way: the delete is refused, so GET_CONFIG always has a bdev."""
    with hostile_disk() as (daemon, path):
        error = daemon.rpc_error("bdev_malloc_delete", name="Malloc0")
        assert (error.code, error.message) == (-16, "Device or resource busy"), error
        with Guest(path) as guest:
            error = daemon.rpc_error("bdev_malloc_delete", name="Malloc0")
            assert error.code == -16, error
            assert guest.capacity() == 32768
            guest.ring.check()


@deadline(90)
def test_vu_34_get_vring_base_waits_for_slow_io():
    """Longer than 4 s, which is where another back-end gave up."""
    seconds = scaled(10, 5)
    with Daemon() as daemon:
        path = daemon.delayed_disk(write_us=seconds * 1000000)
        with Guest(path, deadline=seconds + 20) as guest:
            request = guest.ring.submit(vu.OUT, 9, out=b"slow" * 128)
            time.sleep(0.2)
            begin = time.monotonic()
            base = guest.get_vring_base(guest.ring)
            waited = time.monotonic() - begin
            guest.ring.reap()
            assert base == 1
            assert request.done, f"base after {waited:.1f} s, the write neither done nor failed"
            if request.status() == vu.OK:
                guest.set_up_ring(guest.ring, base)
                guest.ring.kick()
                assert guest.ring.read(9) == b"slow" * 128, "acknowledged but lost"
