"""A client that dies at any byte of any message leaves a daemon that serves the next client."""

import os
import signal
import struct
import time

import vhost_user as vu
from daemon import Daemon, hostile_disk
from tap import deadline
from vhost_user import Closed, Guest, close_all, legal_messages, memfd

# A message's fds come with its first byte, so each cut is made with the message's own fds, without
# them, and with one too many: partial messages must not keep any of these.


def cut(guest, message, offset, fds):
    """Send the message up to offset, with I/O in flight, and be gone."""
    data = vu.header(message.request, len(message.payload), vu.VERSION | vu.NEED_REPLY) + message.payload
    guest.ring.submit(vu.OUT, 1, out=b"c" * 512)
    try:
        if offset:
            guest.connection.send_bytes(data[:offset], fds)
    except Closed:
        pass
    guest.disconnect()


def new_session(guest):
    """The next client: the same memory, set up from the start; it must be served."""
    guest.connect()
    guest.ring.reset()
    guest.start()
    guest.ring.read(0)


def cut_everywhere(daemon, path, choose_fds):
    with Guest(path, size=16, slot=2048) as guest:
        messages, lent = legal_messages(guest)
        spare = memfd()
        guest.disconnect()
        for message in messages:
            fds = choose_fds(message, spare)
            if fds is None:
                continue
            for offset in range(0 if message.request == vu.GET_FEATURES else 1, 13 + len(message.payload)):
                try:
                    new_session(guest)
                except Exception as error:
                    raise AssertionError(f"before {message.name} was cut at {offset}: {error!r}") from error
                cut(guest, message, offset, fds)
            assert daemon.alive(), f"died of {message.name}"
        close_all(lent + [spare])


@deadline(120)
def test_cut_every_message_with_its_fds():
    with hostile_disk() as (daemon, path):
        cut_everywhere(daemon, path, lambda message, _: message.fds)


@deadline(120)
def test_cut_messages_without_their_fds():
    with hostile_disk() as (daemon, path):
        cut_everywhere(daemon, path, lambda message, _: [] if message.fds else None)


@deadline(120)
def test_cut_every_message_with_a_surplus_fd():
    with hostile_disk() as (daemon, path):
        cut_everywhere(daemon, path, lambda message, spare: message.fds + [spare])


def test_cut_during_set_up():
    """The connection ends after each step of a set-up, or in the middle of it."""
    with hostile_disk() as (_, path), Guest(path, started=False) as guest:
        ring = guest.ring
        inflight_payload, inflight_fd = guest.get_inflight_fd()
        steps = [(vu.SET_INFLIGHT_FD, inflight_payload, [inflight_fd]),
                 (vu.SET_MEM_TABLE, guest.memory.table(), guest.memory.fds()),
                 (vu.SET_VRING_NUM, vu.state(0, ring.size), []), (vu.SET_VRING_BASE, vu.state(0, 0), []),
                 (vu.SET_VRING_ADDR, guest.ring_addr(ring), []),
                 (vu.SET_VRING_KICK, vu.u64(0), [ring.kick_fd]),
                 (vu.SET_VRING_CALL, vu.u64(0), [ring.call_fd]), (vu.SET_VRING_ENABLE, vu.state(0, 1), [])]
        for count in range(len(steps) + 1):
            for offset in (0, 5, 12, 15):
                guest.reconnect()
                for step in steps[:count]:
                    guest.tell(*step)
                ring.kick()
                if count < len(steps) and offset:
                    request, payload, fds = steps[count]
                    guest.connection.send_bytes((vu.header(request, len(payload)) + payload)[:offset], fds)
                guest.disconnect()
        os.close(inflight_fd)


def test_cut_without_reading_replies():
    """A client that asks a lot, reads nothing and goes: the replies have nowhere to go."""
    with hostile_disk() as (_, path):
        for count in (1, 10, 1000):
            for _ in range(10):
                with Guest(path) as guest:
                    ask = vu.header(vu.GET_FEATURES, 0) + vu.header(vu.GET_CONFIG, 72) + vu.config(0, 60)
                    guest.connection.socket.settimeout(0.2)
                    try:
                        guest.connection.send_bytes(ask * count)
                    except (Closed, TimeoutError):
                        pass


def test_connect_and_leave():
    with hostile_disk() as (_, path):
        for _ in range(300):
            vu.Connection(path).close()


def test_half_closed_connection():
    """shutdown(SHUT_WR) is an end too."""
    with hostile_disk() as (_, path):
        for _ in range(10):
            with Guest(path) as guest:
                guest.connection.socket.shutdown(1)
                assert guest.connection.is_closed()


@deadline(90)
def test_killed_client_with_requests_in_flight():
    """A real process with SIGKILL: its memory and fds go in whatever order the kernel likes."""
    with Daemon() as daemon:
        path = daemon.delayed_disk(read_us=20000, write_us=20000)
        with Guest(path) as guest:
            guest.ring.read(0)
        with daemon.no_leak():
            for i in range(20):
                child = os.fork()
                if child == 0:
                    try:
                        signal.alarm(30)
                        guest = Guest(path)
                        while True:
                            while guest.ring.free:
                                guest.ring.submit(vu.IN if i % 2 else vu.OUT, 1, length=512,
                                                  out=b"" if i % 2 else b"k" * 512)
                            guest.ring.wait(next(iter(guest.ring.pending.values())))
                    finally:
                        os._exit(1)
                time.sleep(0.05)
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            with Guest(path) as guest:
                guest.ring.read(0)


def test_guest_memory_untouched_after_the_end():
    """A session that has ended writes nothing more: its late completions go nowhere."""
    with Daemon() as daemon:
        path = daemon.delayed_disk(read_us=300000)
        with Guest(path) as guest:
            for _ in range(8):
                guest.ring.submit(vu.IN, 0, length=512)
            time.sleep(0.05)
            guest.disconnect()
            # In-flight requests of the session may finish first; then the daemon listens again.
            guest.connect()
            region = guest.memory.regions[0].map
            before = region[:]
            time.sleep(0.5)
            assert region[:] == before, "guest memory written after the session's end"
            used, = struct.unpack_from("@H", before, guest.ring.used + 2)
            assert used in range(9)
