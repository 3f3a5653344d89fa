"""A vhost-user-blk back-end in a thread: one disk in RAM, of which a test chooses what it offers and how it lies.

It knows split rings, direct and indirect, and polls them; what it offers is what the front-end may use, so that
an initiator can be tried against servers that omit things.
"""

import array
import mmap
import os
import socket
import struct
import threading

import vhost_user as vu

# What SPDK's vhost target offers (no EVENT_IDX), with DPDK's protocol features (no CONFIGURE_MEM_SLOTS).
SPDK_FEATURES = vu.bits(vu.F_SEG_MAX, vu.F_BLK_SIZE, vu.F_TOPOLOGY, vu.F_MQ, vu.F_FLUSH, vu.F_DISCARD,
                        vu.F_WRITE_ZEROES, vu.F_INDIRECT, vu.F_PROTOCOL_FEATURES, vu.F_VERSION_1) | vu.bits(1, 24, 26, 27)
SPDK_PROTOCOL = vu.bits(vu.P_MQ, vu.P_LOG_SHMFD, vu.P_REPLY_ACK, vu.P_CONFIG, vu.P_INFLIGHT_SHMFD)

NEXT, WRITE, INDIRECT = 1, 2, 4
NO_INTERRUPT, NO_NOTIFY = 1, 1


class Ring:
    """What the messages said of a ring."""

    def __init__(self):
        self.num = self.last = 0
        self.addr = self.kick = self.call = None
        self.enabled = False

    @property
    def running(self):
        return self.enabled and self.num and self.addr and self.kick is not None


class Backend(threading.Thread):
    """Serves one connection at a time on a socket at path, until close()."""

    def __init__(self, path, size=1 << 20, features=SPDK_FEATURES, protocol=SPDK_PROTOCOL, block_size=512, queues=2,
                 capacity=None, lie=None):
        super().__init__(daemon=True)
        self.disk = bytearray(size)
        self.features, self.protocol, self.queues = features, protocol, queues
        self.config = struct.pack("<QIIHBBIBBHIBBHIIIIIB3x", size // 512 if capacity is None else capacity, 1 << 20, 126, 0, 0, 0,
                                  block_size, 0, 0, 1, 0, 1, 0, queues, 1 << 15, 1, 1, 1 << 15, 1, 1)
        self.lie = lie  # called with (backend, head, written) instead of giving a request back
        self.seen = []  # types of the requests that were served
        self.acked = 0
        self.rings, self.regions = {}, []
        self.stop = False
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(1)
        self.listener.settimeout(0.1)
        self.start()

    def close(self):
        self.stop = True
        self.join(10)
        self.listener.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def run(self):
        while not self.stop:
            try:
                connection, _ = self.listener.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(0.002)
                self.rings = {i: Ring() for i in range(self.queues)}
                self.session(connection)
            for *_, view in self.regions:
                view.close()
            self.regions = []

    # -- messages --

    def session(self, connection):
        while not self.stop:
            try:
                head, ancillary, *_ = connection.recvmsg(12, socket.CMSG_SPACE(8 * 4))
            except TimeoutError:
                for ring in self.rings.values():
                    self.serve(ring)
                continue
            except ConnectionError:
                return
            if len(head) < 12:
                return
            fds = array.array("i")
            for *_, data in ancillary:
                fds.frombytes(data[:len(data) - len(data) % 4])
            request, flags, size = struct.unpack("=III", head)
            connection.settimeout(2)
            payload = connection.recv(size, socket.MSG_WAITALL) if size else b""
            reply = self.handle(request, payload, list(fds))
            if reply is None and flags & vu.NEED_REPLY and self.protocol & vu.bits(vu.P_REPLY_ACK):
                reply = vu.u64(0)
            if reply is not None:
                connection.sendall(vu.header(request, len(reply), vu.VERSION | vu.REPLY) + reply)
            connection.settimeout(0.002)

    def handle(self, request, payload, fds):
        """The reply's payload, or None."""
        if request == vu.GET_FEATURES:
            return vu.u64(self.features)
        if request == vu.GET_PROTOCOL_FEATURES:
            return vu.u64(self.protocol)
        if request == vu.GET_QUEUE_NUM:
            return vu.u64(self.queues)
        if request == vu.SET_FEATURES:
            self.acked, = struct.unpack("=Q", payload)
            assert self.acked & ~self.features == 0, hex(self.acked)
        elif request == vu.GET_CONFIG:
            offset, size, _ = struct.unpack_from("=III", payload)
            return vu.config(offset, size, data=(self.config + bytes(256))[offset:offset + size])
        elif request == vu.SET_MEM_TABLE:
            n, = struct.unpack_from("=I", payload)
            for i, fd in zip(range(n), fds):
                gpa, size, user, offset = struct.unpack_from("=QQQQ", payload, 8 + 32 * i)
                self.regions.append((gpa, size, user, mmap.mmap(fd, size, offset=offset)))
        elif request in (vu.SET_VRING_KICK, vu.SET_VRING_CALL, vu.SET_VRING_ERR):
            ring = self.rings[struct.unpack("=Q", payload)[0] & 0xff]
            if request == vu.SET_VRING_KICK:
                ring.kick = os.dup(fds[0])
            elif request == vu.SET_VRING_CALL:
                ring.call = os.dup(fds[0])
        elif request == vu.SET_VRING_ADDR:
            index, _, desc, used, avail, _ = struct.unpack("=IIQQQQ", payload)
            self.rings[index].addr = desc, avail, used
        elif len(payload) == 8 and request in (vu.SET_VRING_NUM, vu.SET_VRING_BASE, vu.SET_VRING_ENABLE, vu.GET_VRING_BASE):
            index, value = struct.unpack("=II", payload)
            ring = self.rings[index]
            if request == vu.SET_VRING_NUM:
                ring.num = value
            elif request == vu.SET_VRING_BASE:
                ring.last = value
            elif request == vu.SET_VRING_ENABLE:
                ring.enabled = bool(value)
            else:
                ring.enabled = False
                return vu.state(index, ring.last)
        for fd in fds:
            os.close(fd)
        return None

    # -- rings --

    def at(self, address, by_user=False):
        for gpa, size, user, view in self.regions:
            start = user if by_user else gpa
            if start <= address < start + size:
                return view, address - start
        raise AssertionError(f"0x{address:x} is not shared")

    def serve(self, ring):
        if not ring.running:
            return
        view, avail = self.at(ring.addr[1], by_user=True)
        flags, idx = struct.unpack_from("<HH", view, avail)
        done = 0
        while ring.last != idx:
            head, = struct.unpack_from("<H", view, avail + 4 + 2 * (ring.last % ring.num))
            ring.last = (ring.last + 1) & 0xffff
            written = self.request(ring, head)
            if self.lie:
                self.lie(self, ring, head, written)
            else:
                self.give_back(ring, head, written)
            done += 1
        if done and not flags & NO_INTERRUPT:
            os.eventfd_write(ring.call, 1)

    def give_back(self, ring, head, written, by=1):
        view, used = self.at(ring.addr[2], by_user=True)
        idx, = struct.unpack_from("<H", view, used + 2)
        struct.pack_into("<II", view, used + 4 + 8 * (idx % ring.num), head, written)
        struct.pack_into("<H", view, used + 2, (idx + by) & 0xffff)

    def chain(self, ring, head):
        """(view, offset, length, writable) of each buffer."""
        view, table = self.at(ring.addr[0], by_user=True)
        index = head
        while True:
            address, length, flags, following = struct.unpack_from("<QIHH", view, table + 16 * index)
            if flags & INDIRECT:
                assert self.features & vu.bits(vu.F_INDIRECT), "an indirect table that was not negotiated"
                view, table = self.at(address)
                index = 0
                continue
            yield (*self.at(address), length, bool(flags & WRITE))
            if not flags & NEXT:
                return
            index = following

    def request(self, ring, head):
        buffers = list(self.chain(ring, head))
        out = b"".join(view[at:at + length] for view, at, length, writable in buffers if not writable)
        kind, _, sector = struct.unpack_from("<IIQ", out)
        self.seen.append(kind)
        written, place = 0, sector * 512
        targets = [buffer for buffer in buffers if buffer[3]]
        status_view, status_at, status_length, _ = targets[-1]
        if kind == vu.IN:
            for view, at, length, _ in targets[:-1]:
                view[at:at + length] = bytes(self.disk[place:place + length])
                place, written = place + length, written + length
        elif kind == vu.OUT:
            self.disk[place:place + len(out) - 16] = out[16:]
        elif kind == vu.WRITE_ZEROES:
            first, count, _ = struct.unpack_from("<QII", out, 16)
            self.disk[first * 512:(first + count) * 512] = bytes(count * 512)
        status_view[status_at + status_length - 1] = 0
        return written + 1
