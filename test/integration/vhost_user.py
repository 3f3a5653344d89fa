"""A raw vhost-user front-end and a tiny virtio-blk driver.

Three layers, each usable alone:
  Connection  any message byte by byte, with any fds; replies with a deadline
  Ring        a split virtqueue in shared memory, filled by hand or by request()
  Guest       a front-end that negotiates, shares its memory and starts rings, as QEMU does

The driver relies on x86's order of stores; it kicks always, so no barrier decides about a lost kick.
"""

import array
import collections
import mmap
import os
import select
import socket
import struct
import time

DEADLINE = 10.0  # for a reply or a completion

# -- the protocol ------------------------------------------------------------------------------

GET_FEATURES, SET_FEATURES, SET_OWNER, RESET_OWNER, SET_MEM_TABLE = 1, 2, 3, 4, 5
SET_LOG_BASE, SET_LOG_FD, SET_VRING_NUM, SET_VRING_ADDR, SET_VRING_BASE = 6, 7, 8, 9, 10
GET_VRING_BASE, SET_VRING_KICK, SET_VRING_CALL, SET_VRING_ERR = 11, 12, 13, 14
GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES, GET_QUEUE_NUM, SET_VRING_ENABLE = 15, 16, 17, 18
SEND_RARP, NET_SET_MTU, SET_BACKEND_REQ_FD, IOTLB_MSG, SET_VRING_ENDIAN = 19, 20, 21, 22, 23
GET_CONFIG, SET_CONFIG, CREATE_CRYPTO_SESSION, CLOSE_CRYPTO_SESSION = 24, 25, 26, 27
POSTCOPY_ADVISE, POSTCOPY_LISTEN, POSTCOPY_END, GET_INFLIGHT_FD, SET_INFLIGHT_FD = 28, 29, 30, 31, 32
GPU_SET_SOCKET, RESET_DEVICE, VRING_KICK, GET_MAX_MEM_SLOTS, ADD_MEM_REG = 33, 34, 35, 36, 37
REM_MEM_REG, SET_STATUS, GET_STATUS = 38, 39, 40
NOT_OFFERED = (19, 20, 23, 26, 27, 28, 29, 30, 33, 41, 42, 43, 44)

VERSION, REPLY, NEED_REPLY = 1, 4, 8
NO_FD = 0x100  # bit 8 of SET_VRING_KICK, CALL, ERR

P_MQ, P_LOG_SHMFD, P_REPLY_ACK, P_BACKEND_REQ, P_CONFIG = 0, 1, 3, 5, 9
P_INFLIGHT_SHMFD, P_RESET_DEVICE, P_INBAND, P_CONFIGURE_MEM_SLOTS, P_STATUS = 12, 13, 14, 15, 16
F_SEG_MAX, F_RO, F_BLK_SIZE, F_FLUSH, F_TOPOLOGY, F_CONFIG_WCE, F_MQ = 2, 5, 6, 9, 10, 11, 12
F_DISCARD, F_WRITE_ZEROES, F_LOG_ALL, F_INDIRECT, F_EVENT_IDX = 13, 14, 26, 28, 29
F_PROTOCOL_FEATURES, F_VERSION_1, F_RING_PACKED = 30, 32, 34


def bits(*numbers):
    return sum(1 << n for n in numbers)


# What our driver can do; EVENT_IDX and the packed ring only when a test asks for them.
DRIVER_FEATURES = bits(F_SEG_MAX, F_RO, F_BLK_SIZE, F_FLUSH, F_TOPOLOGY, F_CONFIG_WCE, F_MQ, F_DISCARD,
                       F_WRITE_ZEROES, F_INDIRECT, F_PROTOCOL_FEATURES, F_VERSION_1)
PROTOCOL_FEATURES = bits(P_MQ, P_LOG_SHMFD, P_REPLY_ACK, P_BACKEND_REQ, P_CONFIG, P_INFLIGHT_SHMFD,
                         P_RESET_DEVICE, P_CONFIGURE_MEM_SLOTS, P_STATUS)

Message = collections.namedtuple("Message", "request flags payload fds")


class Closed(Exception):
    """The daemon closed the connection."""


class NoReply(Exception):
    """Nothing came before the deadline."""


def u64(value):
    return struct.pack("=Q", value)


def state(index, num=0):
    return struct.pack("=II", index, num)


def vring_addr(index, desc, used, avail, log=0, flags=0):
    return struct.pack("=IIQQQQ", index, flags, desc, used, avail, log)


def region_entry(gpa, size, user_addr, offset):
    return struct.pack("=QQQQ", gpa, size, user_addr, offset)


def mem_table(entries):
    return struct.pack("=II", len(entries), 0) + b"".join(region_entry(*e) for e in entries)


def mem_reg(gpa, size, user_addr, offset=0):
    return u64(0) + region_entry(gpa, size, user_addr, offset)


def config(offset, size, flags=0, data=None):
    return struct.pack("=III", offset, size, flags) + (bytes(size) if data is None else data)


def inflight(mmap_size, mmap_offset, num_queues, queue_size):
    return struct.pack("=QQHHI", mmap_size, mmap_offset, num_queues, queue_size, 0)


def header(request, size, flags=VERSION):
    return struct.pack("=III", request, flags, size)


def memfd(size=4096, name="guest"):
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    return fd


def eventfd():
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


def readable(fd, seconds):
    """select() has no room for many fds."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def connect(unix_socket, path, deadline):
    """A full backlog (EAGAIN, as a socket with a time-out does not block) may empty before the deadline."""
    end = time.monotonic() + deadline
    while True:
        try:
            unix_socket.connect(path)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise NoReply("backlog full") from None
            time.sleep(0.002)


class Connection:
    """One connection to a vhost-user socket. `fds` are lent to a message, never closed by it."""

    def __init__(self, path, deadline=DEADLINE):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(deadline)
        self.deadline = deadline
        try:
            connect(self.socket, path, deadline)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def send_bytes(self, data, fds=()):
        """The fds travel with the first byte."""
        try:
            if fds:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                done = self.socket.sendmsg([data], rights)
                data = data[done:]
            if data:
                self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed() from None

    def send(self, request, payload=b"", fds=(), flags=VERSION):
        self.send_bytes(header(request, len(payload), flags) + payload, fds)

    def receive_bytes(self, size):
        data, fds = b"", []
        while len(data) < size:
            try:
                more, rights, _, _ = self.socket.recvmsg(size - len(data), socket.CMSG_SPACE(64))
            except TimeoutError:
                raise NoReply() from None
            except ConnectionResetError:
                raise Closed() from None
            for level, kind, content in rights:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    numbers = array.array("i")
                    numbers.frombytes(content)
                    fds += numbers
            if not more:
                raise Closed()
            data += more
        return data, fds

    def receive(self):
        head, fds = self.receive_bytes(12)
        request, flags, size = struct.unpack("=III", head)
        assert size <= 4096, f"reply with size {size}"
        payload, more = self.receive_bytes(size)
        return Message(request, flags, payload, fds + more)

    def ask(self, request, payload=b"", fds=(), flags=VERSION):
        """The payload of a request's own reply, its frame checked (reply rule 1)."""
        self.send(request, payload, fds, flags)
        reply = self.receive()
        assert reply.request == request, f"reply to {reply.request}, asked {request}"
        assert reply.flags == VERSION | REPLY, f"reply flags {reply.flags:#x}"
        self.reply_fds = reply.fds
        return reply.payload

    def ask_u64(self, request, payload=b"", flags=VERSION):
        answer = self.ask(request, payload, flags=flags)
        assert len(answer) == 8, f"{request}: reply of {len(answer)} bytes"
        return struct.unpack("=Q", answer)[0]

    def ack(self, request, payload=b"", fds=()):
        """The number in the ack of a request with need_reply: 0 is success."""
        answer = self.ask(request, payload, fds, VERSION | NEED_REPLY)
        assert len(answer) == 8, f"ack of {len(answer)} bytes"
        return struct.unpack("=Q", answer)[0]

    def must(self, request, payload=b"", fds=()):
        number = self.ack(request, payload, fds)
        assert number == 0, f"request {request} refused with {number}"

    def try_ack(self, request, payload=b"", fds=()):
        """'ok', 'refused' or 'closed'; silence is an error."""
        try:
            return "refused" if self.ack(request, payload, fds) else "ok"
        except Closed:
            return "closed"

    def is_closed(self, deadline=DEADLINE):
        """True if the daemon closes the connection in time, sending nothing more."""
        self.socket.settimeout(deadline)
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        finally:
            self.socket.settimeout(self.deadline)

    def is_quiet(self, seconds=0.1):
        """True if nothing, not even a close, comes for so long."""
        return not readable(self.socket, seconds)

    def serves(self):
        """True if the daemon still answers here."""
        try:
            return self.ask_u64(GET_FEATURES) != 0
        except Closed:
            return False


def open_session(path, deadline=DEADLINE, patience=5.0):
    """(connection, offered features). While the session before us ends, the daemon may turn us away
    (one front-end per socket), so a connection that is closed at once is tried again for a while."""
    end = time.monotonic() + patience
    while True:
        connection = Connection(path, deadline)
        try:
            return connection, connection.ask_u64(GET_FEATURES)
        except Closed:
            connection.close()
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
        except BaseException:
            connection.close()
            raise


# -- guest memory ------------------------------------------------------------------------------


class Region:
    """A piece of guest memory: a memfd that we map and share."""

    def __init__(self, gpa, size, user_addr=None, offset=0, fd=None):
        self.gpa, self.size, self.offset = gpa, size, offset
        self.user_addr = 0x7F0000000000 + gpa if user_addr is None else user_addr
        self.fd = memfd(offset + size) if fd is None else os.dup(fd)
        self.map = mmap.mmap(self.fd, size, offset=offset)
        self.words = memoryview(self.map).cast("H")

    def entry(self):
        return self.gpa, self.size, self.user_addr, self.offset

    def close(self):
        self.words.release()
        self.map.close()
        os.close(self.fd)


class Memory:
    """Regions together; addresses are guest-physical."""

    def __init__(self, regions):
        self.regions = list(regions)

    def close(self):
        for region in self.regions:
            region.close()

    def find(self, gpa):
        for region in self.regions:
            if region.gpa <= gpa < region.gpa + region.size:
                return region, gpa - region.gpa
        raise ValueError(f"{gpa:#x} is in no region")

    def user_addr(self, gpa):
        region, offset = self.find(gpa)
        return region.user_addr + offset

    def write(self, gpa, data):
        """May cross from one region into the next."""
        while data:
            region, offset = self.find(gpa)
            part = data[:region.size - offset]
            region.map[offset:offset + len(part)] = part
            gpa, data = gpa + len(part), data[len(part):]

    def read(self, gpa, size):
        data = b""
        while len(data) < size:
            region, offset = self.find(gpa + len(data))
            data += region.map[offset:offset + min(size - len(data), region.size - offset)]
        return data

    def get16(self, gpa):
        region, offset = self.find(gpa)
        return region.words[offset // 2]

    def put16(self, gpa, value):
        """One store. struct.pack_into would not do: it clears its place first, and the daemon reads
        at the same time."""
        region, offset = self.find(gpa)
        region.words[offset // 2] = value

    def table(self):
        return mem_table([r.entry() for r in self.regions])

    def fds(self):
        return [r.fd for r in self.regions]


# -- the split ring ----------------------------------------------------------------------------

NEXT, WRITE, INDIRECT = 1, 2, 4
IN, OUT, FLUSH, GET_ID, DISCARD, WRITE_ZEROES = 0, 1, 4, 8, 11, 13
OK, IOERR, UNSUPP = 0, 1, 2
UNWRITTEN = 0xEE  # what a status byte holds until the daemon writes it


class Request:
    """A request in a ring; `done` and `written` are set when its head comes back."""

    def __init__(self, ring, head, data_gpa, length, status_gpa):
        self.ring, self.head = ring, head
        self.data_gpa, self.length, self.status_gpa = data_gpa, length, status_gpa
        self.done, self.written = False, None

    def status(self):
        return self.ring.memory.read(self.status_gpa, 1)[0]

    def data(self):
        return self.ring.memory.read(self.data_gpa, self.length)


class Ring:
    """A split virtqueue at a guest-physical address, with one buffer slot per request."""

    def __init__(self, memory, index, size, gpa, slot=8192):
        self.memory, self.index, self.size, self.slot = memory, index, size, slot
        self.desc = gpa
        self.avail = gpa + 16 * size
        self.used = (self.avail + 6 + 2 * size + 3) & ~3
        self.buffers = (self.used + 6 + 8 * size + 4095) & ~4095
        self.kick_fd, self.call_fd, self.err_fd = eventfd(), eventfd(), eventfd()
        self.free = list(range(0, size - size % 3, 3)) if size >= 3 else []
        self.avail_idx = self.used_idx = 0
        self.pending = {}  # head: Request
        self.surprises = []  # heads that came back without having been pending

    @staticmethod
    def bytes_needed(size, slot=8192):
        return 16 * size + 6 + 2 * size + 4 + 6 + 8 * size + 4096 + slot * max(1, size // 3)

    def close(self):
        for fd in (self.kick_fd, self.call_fd, self.err_fd):
            os.close(fd)

    def reset(self, index=0):
        """As a driver that starts afresh; `index` is where both rings begin."""
        self.avail_idx = self.used_idx = index
        for part in (self.avail, self.used):
            self.memory.put16(part, 0)
            self.memory.put16(part + 2, index)
        self.pending.clear()
        self.free = list(range(0, self.size - self.size % 3, 3))

    def set_desc(self, index, gpa, length, flags=0, next_index=0):
        self.memory.write(self.desc + 16 * index, struct.pack("<QIHH", gpa, length, flags, next_index))

    def publish(self, heads):
        """Make heads available with one store of avail.idx."""
        for head in heads:
            self.memory.put16(self.avail + 4 + 2 * (self.avail_idx % self.size), head)
            self.avail_idx = (self.avail_idx + 1) & 0xFFFF
        self.memory.put16(self.avail + 2, self.avail_idx)

    def kick(self):
        os.eventfd_write(self.kick_fd, 1)

    def prepare(self, kind, sector=0, out=b"", length=0):
        """Write a three-descriptor chain; publish() makes it visible."""
        assert self.free, "no free descriptors"
        head = self.free.pop()
        base = self.buffers + (head // 3) * self.slot
        data, status = base + 64, base + self.slot - 1
        length = len(out) or length
        assert length <= self.slot - 128, "slot too small"
        self.memory.write(base, struct.pack("<IIQ", kind, 0, sector))
        self.memory.write(data, out or b"\xdd" * length)
        self.memory.write(status, bytes([UNWRITTEN]))
        self.set_desc(head, base, 16, NEXT, head + 1 if length else head + 2)
        if length:
            self.set_desc(head + 1, data, length, NEXT | (0 if out else WRITE), head + 2)
        self.set_desc(head + 2, status, 1, WRITE)
        request = Request(self, head, data, length, status)
        self.pending[head] = request
        return request

    def submit(self, *arguments, **options):
        request = self.prepare(*arguments, **options)
        self.publish([request.head])
        self.kick()
        return request

    def track(self, head):
        """Expect a hand-made chain's head back."""
        self.pending[head] = Request(self, head, self.buffers, 0, self.buffers)
        return self.pending[head]

    def reap(self):
        """Take what is in the used ring now; the number of completions."""
        count = 0
        used_idx = self.memory.get16(self.used + 2)
        while self.used_idx != used_idx:
            element = self.used + 4 + 8 * (self.used_idx % self.size)
            head, written = struct.unpack("<II", self.memory.read(element, 8))
            self.used_idx = (self.used_idx + 1) & 0xFFFF
            count += 1
            request = self.pending.pop(head, None)
            if request is None:
                self.surprises.append(head)
                continue
            request.done, request.written = True, written
            if head % 3 == 0 and head not in self.free and head + 2 < self.size:
                self.free.append(head)
        assert not self.surprises, f"heads {self.surprises} completed without being pending"
        return count

    def wait(self, *requests, deadline=DEADLINE):
        """Until these requests (all that are pending, if none is named) are done."""
        wanted = requests or list(self.pending.values())
        end = time.monotonic() + deadline
        while True:
            self.reap()
            if all(r.done for r in wanted):
                return
            left = end - time.monotonic()
            assert left > 0, f"{sum(not r.done for r in wanted)} of {len(wanted)} requests not completed"
            # The call is only a hint here: a ring without a working call fd must be reaped too.
            if readable(self.call_fd, min(left, 0.02)):
                self.drain_call()

    def drain_call(self):
        try:
            return os.eventfd_read(self.call_fd)
        except BlockingIOError:
            return 0

    def run(self, kind, sector=0, out=b"", length=0, status=OK, deadline=DEADLINE):
        """One request to its end."""
        request = self.submit(kind, sector, out, length)
        self.wait(request, deadline=deadline)
        assert request.status() == status, f"status {request.status():#x}, not {status}"
        return request

    def read(self, sector, length=512, **options):
        request = self.run(IN, sector, length=length, **options)
        return request.data()

    def write(self, sector, data, **options):
        return self.run(OUT, sector, out=data, **options)

    def flush(self, **options):
        return self.run(FLUSH, **options)

    def get_id(self):
        request = self.run(GET_ID, length=20)
        return request.data()

    def discard(self, sector, count, kind=DISCARD, flags=0, **options):
        return self.run(kind, sector=0, out=struct.pack("<QII", sector, count, flags), **options)

    def check(self, sector=0, seed=None):
        """The ring works: what was written is read back."""
        pattern = (seed or os.urandom(16)) * 64
        self.write(sector, pattern)
        assert self.read(sector, len(pattern)) == pattern, "read back something else"


# -- a whole front-end ---------------------------------------------------------------------------


class Guest:
    """Negotiates like QEMU, shares `memory`, and runs `queues` rings.

    All of a guest's state (memory, rings) survives a reconnect(), as it does in QEMU.
    """

    def __init__(self, path, queues=1, size=64, slot=8192, features=DRIVER_FEATURES,
                 protocol=PROTOCOL_FEATURES, memory=None, ring_gpa=0, started=True, deadline=DEADLINE):
        self.path, self.deadline = path, deadline
        self.wanted_features, self.wanted_protocol = features, protocol
        step = (Ring.bytes_needed(size, slot) + 0xFFFF) & ~0xFFFF
        self.memory = memory or Memory([Region(0, step * queues)])
        self.rings = [Ring(self.memory, i, size, ring_gpa + i * step, slot) for i in range(queues)]
        self.ring = self.rings[0]
        self.connection = None
        try:
            self.connect()
            if started:
                self.start()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.disconnect()
        for ring in self.rings:
            ring.close()
        self.memory.close()

    def disconnect(self):
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def connect(self):
        """Up to SET_FEATURES; no memory, no rings."""
        self.connection, self.offered = open_session(self.path, self.deadline)
        c = self.connection
        self.features = self.offered & self.wanted_features
        self.offered_protocol = c.ask_u64(GET_PROTOCOL_FEATURES)
        self.protocol = self.offered_protocol & self.wanted_protocol
        c.send(SET_PROTOCOL_FEATURES, u64(self.protocol))
        c.send(SET_OWNER)
        self.set_features(self.features)

    def reconnect(self):
        self.disconnect()
        self.connect()

    def set_features(self, features):
        self.tell(SET_FEATURES, u64(features))

    def tell(self, request, payload=b"", fds=()):
        """With an ack if it was negotiated; success is required either way."""
        if self.protocol & bits(P_REPLY_ACK):
            self.connection.must(request, payload, fds)
        else:
            self.connection.send(request, payload, fds)

    def set_mem_table(self):
        self.tell(SET_MEM_TABLE, self.memory.table(), self.memory.fds())

    def ring_addr(self, ring, **changes):
        places = {"desc": ring.desc, "used": ring.used, "avail": ring.avail, **changes}
        user = {name: self.memory.user_addr(gpa) for name, gpa in places.items()}
        return vring_addr(ring.index, **user)

    def set_up_ring(self, ring, base=0):
        """In QEMU's order: NUM, BASE, ADDR, KICK, CALL; the ring is not enabled yet."""
        self.tell(SET_VRING_NUM, state(ring.index, ring.size))
        self.tell(SET_VRING_BASE, state(ring.index, base))
        self.tell(SET_VRING_ADDR, self.ring_addr(ring))
        self.tell(SET_VRING_KICK, u64(ring.index), [ring.kick_fd])
        self.tell(SET_VRING_CALL, u64(ring.index), [ring.call_fd])

    def enable(self, ring, on=1):
        self.tell(SET_VRING_ENABLE, state(ring.index, on))

    def start(self):
        self.set_mem_table()
        for ring in self.rings:
            self.set_up_ring(ring)
        for ring in self.rings:
            self.enable(ring)
            ring.kick()  # real front-ends put one kick in immediately

    def get_vring_base(self, ring):
        """Stops the ring; its next avail index."""
        answer = self.connection.ask(GET_VRING_BASE, state(ring.index))
        index, num = struct.unpack("=II", answer)
        assert index == ring.index
        return num

    def get_config(self, offset=0, size=60):
        answer = self.connection.ask(GET_CONFIG, config(offset, size))
        assert len(answer) == 12 + size, f"config reply of {len(answer)} bytes"
        return answer[12:]

    def capacity(self):
        return struct.unpack("<Q", self.get_config(0, 8))[0]

    def get_inflight_fd(self, queues=None, size=None):
        """(payload, fd) as the daemon gave them."""
        payload = self.connection.ask(GET_INFLIGHT_FD, inflight(0, 0, queues or len(self.rings),
                                                                size or self.ring.size))
        fds = self.connection.reply_fds
        assert len(payload) == 24 and len(fds) == 1, (len(payload), fds)
        return payload, fds[0]


# -- every message of the reference, for tests that go through all of them -------------------------

Legal = collections.namedtuple("Legal", "name request payload fds reply")
# reply: "own" (the message has a reply of its own), "ack" (only with need_reply)


def legal_messages(guest):
    """Legal messages for a guest whose rings are stopped, in an order that is legal too, as far as the
    daemon offers them. Their fds are the guest's, or in the second list, which the caller closes."""
    g, ring, region = guest, guest.ring, guest.memory.regions[0]
    ours, theirs = socket.socketpair()
    lent = [memfd(8192, "extra"), eventfd(), ours.detach(), theirs.detach()]
    offer = g.offered_protocol
    slots, log_shm = offer & bits(P_CONFIGURE_MEM_SLOTS), offer & bits(P_LOG_SHMFD)
    extra = (1 << 40, 8192, 1 << 46)  # far from the guest's own memory
    out = [
        Legal("GET_FEATURES", GET_FEATURES, b"", [], "own"),
        Legal("SET_FEATURES", SET_FEATURES, u64(g.features), [], "ack"),
        Legal("SET_OWNER", SET_OWNER, b"", [], "ack"),
        Legal("RESET_OWNER", RESET_OWNER, b"", [], "ack"),
        Legal("GET_INFLIGHT_FD", GET_INFLIGHT_FD, inflight(0, 0, 1, ring.size), [], "own"),
        Legal("SET_MEM_TABLE", SET_MEM_TABLE, g.memory.table(), [region.fd], "ack"),
        Legal("SET_VRING_NUM", SET_VRING_NUM, state(0, ring.size), [], "ack"),
        Legal("SET_VRING_ADDR", SET_VRING_ADDR, g.ring_addr(ring), [], "ack"),
        Legal("SET_VRING_BASE", SET_VRING_BASE, state(0, 0), [], "ack"),
        Legal("SET_VRING_KICK", SET_VRING_KICK, u64(0), [ring.kick_fd], "ack"),
        Legal("SET_VRING_CALL", SET_VRING_CALL, u64(0), [ring.call_fd], "ack"),
        Legal("SET_VRING_ERR", SET_VRING_ERR, u64(0), [ring.err_fd], "ack"),
        Legal("GET_PROTOCOL_FEATURES", GET_PROTOCOL_FEATURES, b"", [], "own"),
        Legal("SET_PROTOCOL_FEATURES", SET_PROTOCOL_FEATURES, u64(g.protocol), [], "ack"),
        Legal("GET_QUEUE_NUM", GET_QUEUE_NUM, b"", [], "own"),
        Legal("SET_VRING_ENABLE", SET_VRING_ENABLE, state(0, 1), [], "ack"),
        Legal("SET_BACKEND_REQ_FD", SET_BACKEND_REQ_FD, b"", [lent[3]], "ack"),
        Legal("GET_CONFIG", GET_CONFIG, config(0, 60, data=b"\xaa" * 60), [], "own"),
        Legal("SET_CONFIG", SET_CONFIG, config(32, 1, data=b"\x01"), [], "ack"),
        Legal("GET_VRING_BASE", GET_VRING_BASE, state(0), [], "own"),
    ]
    if slots:
        out += [Legal("GET_MAX_MEM_SLOTS", GET_MAX_MEM_SLOTS, b"", [], "own"),
                Legal("ADD_MEM_REG", ADD_MEM_REG, mem_reg(*extra), [lent[0]], "ack"),
                Legal("REM_MEM_REG", REM_MEM_REG, mem_reg(*extra), [], "ack")]
    if log_shm:
        out += [Legal("SET_LOG_BASE", SET_LOG_BASE, struct.pack("=QQ", 8192, 0), [lent[0]], "own"),
                Legal("SET_LOG_FD", SET_LOG_FD, b"", [lent[1]], "ack")]
    if offer & bits(P_STATUS):
        out += [Legal("SET_STATUS", SET_STATUS, u64(15), [], "ack"),
                Legal("GET_STATUS", GET_STATUS, b"", [], "own")]
    if offer & bits(P_RESET_DEVICE):
        out += [Legal("RESET_DEVICE", RESET_DEVICE, b"", [], "ack")]
    return out, lent


def close_all(fds):
    for fd in fds:
        os.close(fd)
