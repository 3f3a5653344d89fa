"""Which reactor serves which ring, when it sleeps, and what is told of that."""

import contextlib
import os
import signal
import subprocess
import threading
import time

import vhost_user as vu
from daemon import RIFFLE, Daemon, RpcError, cpu_mask, scaled, two_cpus
from tap import SLOWER, Skip, deadline
from vhost_user import Guest

FIRST = hex(1 << two_cpus()[0])
LAST = hex(1 << two_cpus()[-1])


def need_two_cpus():
    if len(two_cpus()) < 2:
        raise Skip("needs two CPUs")


def stats(daemon, ctrlr="disk"):
    (found,) = [c for c in daemon.rpc("riffle_get_stats")["controllers"] if c["ctrlr"] == ctrlr]
    return found


def cpus_of(daemon, ctrlr="disk"):
    return [ring["lcore"] for ring in stats(daemon, ctrlr)["rings"]]


def wait_until(what, seconds=5.0):
    end = time.monotonic() + seconds * SLOWER
    while not what():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


@contextlib.contextmanager
def load(*words):
    """`riffle perf` beside what the test does. It must find nothing wrong."""
    process = subprocess.Popen([RIFFLE, "perf", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    try:
        yield process
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, out + errors
    finally:
        process.kill()
        process.wait()


# -- polled or armed ------------------------------------------------------------------------------------------


def test_an_idle_daemon_sleeps():
    with Daemon() as daemon, Guest(daemon.malloc_disk(), queues=4) as guest:
        for ring in guest.rings:
            ring.check()
        wait_until(lambda: not any(ring["polled"] for ring in stats(daemon)["rings"]))
        time.sleep(0.1)
        before = daemon.rpc("riffle_get_stats")
        time.sleep(0.5)
        after = daemon.rpc("riffle_get_stats")
        for old, new in zip(before["reactors"], after["reactors"]):
            assert new["turns"] - old["turns"] < 20, (old, new)
            assert new["in_interrupt"] is True, new
        for ring in guest.rings:
            ring.check()


def test_poll_us_always():
    with Daemon(mask=FIRST) as daemon, Guest(daemon.malloc_disk(poll_us="always")) as guest:
        guest.ring.check()
        time.sleep(0.3)
        before = daemon.rpc("riffle_get_stats")
        time.sleep(0.2)
        after = daemon.rpc("riffle_get_stats")
        assert stats(daemon)["poll_us"] == "always"
        assert all(ring["polled"] for ring in stats(daemon)["rings"])
        assert after["reactors"][0]["sleeps"] == before["reactors"][0]["sleeps"]
        assert after["reactors"][0]["turns"] > before["reactors"][0]["turns"] + 100
        saved = daemon.rpc("save_config")["subsystems"][1]["config"]
        assert saved[0]["params"]["poll_us"] == "always", saved


def test_poll_us_of_the_daemon():
    for words, said in ((["--poll-us", "0"], 0), (["--poll-us", "always"], "always"), ([], 200)):
        with Daemon(mask=FIRST, arguments=words) as daemon, Guest(daemon.malloc_disk()) as guest:
            assert daemon.rpc("riffle_get_stats")["poll_us"] == said
            assert stats(daemon)["poll_us"] == said
            for _ in range(20):
                guest.ring.check()
            (ring,) = stats(daemon)["rings"]
            if said == 0:
                # Each request finds it asleep and wakes it; a turn or two later it sleeps again.
                assert not ring["polled"] and ring["polled_turns"] < 20 * 20, ring
            assert ring["patience_us"] == "always" if said == "always" else ring["patience_us"] <= 200


def test_balance_is_checked():
    for word in ("0", "101", "x", ""):
        done = subprocess.run([RIFFLE, "serve", f"--balance={word}"], capture_output=True, text=True, timeout=10, check=False)
        assert done.returncode == 2 and "--balance takes 1 to 100" in done.stderr, done


def test_poll_us_is_checked():
    with Daemon(mask=FIRST) as daemon:
        daemon.rpc("bdev_null_create", name="N", num_blocks=64, block_size=512)
        for value in (-1, 1000001, "sometimes", 2**63 - 1, 1.5, [], True):
            error = daemon.rpc_error("vhost_create_blk_controller", ctrlr="x", dev_name="N", poll_us=value)
            assert error.code == -32602 and error.data["field"] == "poll_us", (value, error)
        daemon.rpc("vhost_create_blk_controller", ctrlr="x", dev_name="N", poll_us=0)
        assert stats(daemon, "x")["poll_us"] == 0
    for word in ("-1", "1000001", "sometimes", ""):
        done = subprocess.run([RIFFLE, "serve", "--poll-us", word], capture_output=True, text=True, timeout=10, check=False)
        assert done.returncode == 2 and "--poll-us takes" in done.stderr, done


def test_patience_follows_the_load():
    """Lone requests make a ring impatient, those that come soon after it has armed make it patient."""
    with Daemon(mask=FIRST) as daemon, Guest(daemon.malloc_disk(poll_us=50000)) as guest:
        def patience():
            return stats(daemon)["rings"][0]["patience_us"]

        for _ in range(4):
            time.sleep(0.08)
            guest.ring.run(vu.IN, 0, length=512)
        assert 24990 <= patience() <= 25000, patience()

        def come_a_little_late():
            time.sleep(0.03)
            guest.ring.run(vu.IN, 0, length=512)
            return patience() >= 49990

        wait_until(come_a_little_late)


# -- placement ------------------------------------------------------------------------------------------------


def test_queues_are_spread():
    need_two_cpus()
    with Daemon() as daemon:
        with Guest(daemon.malloc_disk(), queues=5) as guest:
            cpus = cpus_of(daemon)
            assert sorted(cpus.count(cpu) for cpu in two_cpus()) == [2, 3], cpus
            for ring in guest.rings:
                ring.check()
        only = daemon.malloc_disk("one", bdev="M1", cpumask=LAST)
        with Guest(only, queues=3):
            assert cpus_of(daemon, "one") == [two_cpus()[-1]] * 3


def test_disks_are_spread():
    """Disks of one queue do not all land on the same reactor."""
    need_two_cpus()
    with Daemon() as daemon, contextlib.ExitStack() as stack:
        cpus = []
        for i in range(4):
            stack.enter_context(Guest(daemon.malloc_disk(f"d{i}", bdev=f"M{i}", blocks=64)))
            cpus += cpus_of(daemon, f"d{i}")
        assert sorted(cpus.count(cpu) for cpu in two_cpus()) == [2, 2], cpus


def test_a_cpumask_moves_the_rings():
    need_two_cpus()
    with Daemon() as daemon, Guest(daemon.malloc_disk(), queues=4) as guest:
        for mask, cpus in ((FIRST, two_cpus()[:1]), (LAST, two_cpus()[1:]), (cpu_mask(), two_cpus()),
                           (f"[{two_cpus()[0]}]", two_cpus()[:1]), ("", two_cpus())):
            assert daemon.rpc("vhost_controller_set_cpumask", ctrlr="disk", cpumask=mask) is True
            assert set(cpus_of(daemon)) == set(cpus), mask
            assert max(cpus_of(daemon).count(cpu) for cpu in cpus) == 4 // len(cpus)
            for ring in guest.rings:
                ring.check()
        daemon.rpc("vhost_controller_set_cpumask", ctrlr="disk", cpumask=LAST)
        assert daemon.rpc("vhost_get_controllers")[0]["cpumask"] == LAST
        assert daemon.rpc("save_config")["subsystems"][1]["config"][0]["params"]["cpumask"] == LAST
        guest.disconnect()
        wait_until(lambda: not stats(daemon)["connected"])
        guest.reconnect()
        for ring in guest.rings:
            ring.reset()
        guest.start()
        assert cpus_of(daemon) == [two_cpus()[1]] * 4, "the mask is for rings to come, too"


def test_a_ring_that_nobody_has_kicked_moves():
    need_two_cpus()
    with Daemon() as daemon, Guest(daemon.malloc_disk(), started=False) as guest:
        guest.set_mem_table()
        guest.set_up_ring(guest.ring)
        guest.enable(guest.ring)
        for mask in (FIRST, LAST, FIRST):
            daemon.rpc("vhost_controller_set_cpumask", ctrlr="disk", cpumask=mask)
        guest.ring.check()


def test_a_disabled_ring_moves():
    need_two_cpus()
    with Daemon() as daemon, Guest(daemon.malloc_disk()) as guest:
        guest.ring.check()
        guest.enable(guest.ring, 0)
        request = guest.ring.submit(vu.IN, 0, length=512)
        for mask in (FIRST, LAST, FIRST):
            daemon.rpc("vhost_controller_set_cpumask", ctrlr="disk", cpumask=mask)
        time.sleep(0.1)
        guest.ring.reap()
        assert not request.done, "served while it is disabled"
        guest.enable(guest.ring)
        guest.ring.wait(request)
        guest.ring.check()


def test_what_is_in_flight_ends_where_it_began():
    need_two_cpus()
    with Daemon() as daemon, Guest(daemon.delayed_disk("disk", read_us=200000, write_us=200000)) as guest:
        requests = [guest.ring.submit(vu.IN, i, length=512) for i in range(8)]
        before = cpus_of(daemon)
        mask = LAST if before == [two_cpus()[0]] else FIRST
        daemon.rpc("vhost_controller_set_cpumask", ctrlr="disk", cpumask=mask)
        assert cpus_of(daemon) != before
        guest.ring.wait(*requests)
        guest.ring.check()


def test_a_ring_with_stuck_io_stays():
    need_two_cpus()
    with Daemon() as daemon, Guest(daemon.delayed_disk("disk", read_us=3000000)) as guest:
        request = guest.ring.submit(vu.IN, 0, length=512)
        before = cpus_of(daemon)
        mask = LAST if before == [two_cpus()[0]] else FIRST
        error = daemon.rpc_error("vhost_controller_set_cpumask", ctrlr="disk", cpumask=mask)
        assert error.message == "Device or resource busy" and "has not ended" in error.data["hint"], error.data
        assert cpus_of(daemon) == before
        guest.ring.run(vu.OUT, 5, out=b"x" * 512)  # it goes on where it is
        guest.ring.wait(request)
        daemon.rpc("vhost_controller_set_cpumask", ctrlr="disk", cpumask=mask)
        assert cpus_of(daemon) != before
        guest.ring.run(vu.OUT, 5, out=b"y" * 512)


def test_errors_of_moving():
    with Daemon() as daemon:
        daemon.malloc_disk()
        none = daemon.rpc_error("vhost_controller_set_cpumask", ctrlr="nobody", cpumask=FIRST)
        assert none.message == "No such device" and none.data["field"] == "ctrlr", none
        for mask in ("0x0", "[", "[99999]", "0xf0000000", "nonsense"):
            error = daemon.rpc_error("vhost_controller_set_cpumask", ctrlr="disk", cpumask=mask)
            assert error.data["field"] == "cpumask" and error.data["hint"], (mask, error.data)
        assert stats(daemon)["cpumask"] == cpu_mask()
        reactor = daemon.rpc_error("thread_set_cpumask", id=1, cpumask=FIRST)
        assert "is a reactor" in reactor.data["hint"], reactor.data
        for thread in (0, 4000):
            error = daemon.rpc_error("thread_set_cpumask", id=thread, cpumask=FIRST)
            assert error.data["field"] == "id", error.data


@deadline(170)
def test_moves_under_verify():
    """Two queues change their reactors all the time, and not one block is lost, stale or torn."""
    need_two_cpus()
    moves = 10000 // SLOWER
    with Daemon() as daemon:
        path = daemon.malloc_disk(blocks=1 << 17)
        job = ["-w", "verify", "-q", "16", "-t", "600", f"vhost:{path}", "-c", f"[{two_cpus()[0]},{two_cpus()[-1]}]"]
        with load(*job) as perf, daemon.rpc_client() as client:
            wait_until(lambda: len(stats(daemon)["rings"]) == 2)
            masks = [FIRST, LAST, cpu_mask()]
            step = 0
            while stats(daemon)["moves"] < moves:
                assert perf.poll() is None, perf.communicate()
                for _ in range(50):
                    try:
                        client.call("vhost_controller_set_cpumask", {"ctrlr": "disk", "cpumask": masks[step % 3]})
                    except RpcError as error:  # a machine that stood still for a second
                        assert error.message == "Device or resource busy", error
                    step += 1
            assert stats(daemon)["requests"] > 1000
            perf.send_signal(signal.SIGINT)  # perf reads everything back before it ends


def test_rings_come_and_go_while_they_are_moved():
    need_two_cpus()
    over = threading.Event()
    with Daemon() as daemon:
        path = daemon.malloc_disk()

        def move():
            with daemon.rpc_client() as client:
                while not over.is_set():
                    for mask in (FIRST, LAST, cpu_mask()):
                        try:
                            client.call("vhost_controller_set_cpumask", {"ctrlr": "disk", "cpumask": mask})
                        except RpcError as error:
                            assert error.message == "Device or resource busy", error

        mover = threading.Thread(target=move)
        mover.start()
        try:
            for _ in range(scaled(300, 60)):
                with Guest(path, queues=3) as guest:
                    for ring in guest.rings:
                        ring.check()
                    guest.get_vring_base(guest.rings[1])
            with Guest(path, queues=8):
                over.set()
                mover.join()
                # Whatever mask came last, they are where it says.
                allowed = int(stats(daemon)["cpumask"], 16)
                assert all(allowed >> cpu & 1 for cpu in cpus_of(daemon)), (allowed, cpus_of(daemon))
        finally:
            over.set()
            mover.join()
        assert "shared" not in daemon.log(), "a ring that moves is no driver that kicks in vain"


def test_rings_start_while_the_mask_changes():
    """None is overlooked: each ends up where the last mask says."""
    need_two_cpus()
    with Daemon() as daemon:
        path = daemon.malloc_disk(blocks=64)
        for i in range(scaled(1000, 120)):
            mask = (FIRST, LAST)[i % 2]
            mover = threading.Thread(target=daemon.rpc, args=("vhost_controller_set_cpumask",),
                                     kwargs={"ctrlr": "disk", "cpumask": mask})
            with Guest(path, queues=8, started=False) as guest:
                mover.start()
                guest.start()
                mover.join()
                assert {hex(1 << cpu) for cpu in cpus_of(daemon)} == {mask}, (mask, cpus_of(daemon))


def test_the_end_of_a_daemon_that_moves_rings():
    """Controllers that are made while others are moved do not keep it from ending."""
    need_two_cpus()
    with Daemon() as daemon:
        path = daemon.delayed_disk("disk", read_us=1500000)
        daemon.rpc("bdev_null_create", name="N", num_blocks=64, block_size=512)
        with Guest(path) as guest:
            guest.ring.submit(vu.IN, 0, length=512)
            time.sleep(0.1)

            def quietly(method, **params):
                with contextlib.suppress(RpcError, AssertionError, OSError):
                    daemon.rpc(method, **params)

            calls = [("vhost_controller_set_cpumask", {"ctrlr": "disk", "cpumask": mask}) for mask in (FIRST, LAST)]
            calls += [("vhost_create_blk_controller", {"ctrlr": f"new{i}", "dev_name": "N"}) for i in range(5)]
            threads = [threading.Thread(target=quietly, args=(method,), kwargs=params) for method, params in calls]
            for thread in threads:
                thread.start()
                time.sleep(0.02)
            daemon.stop()
            for thread in threads:
                thread.join()
        assert "has not returned" not in daemon.log(), daemon.log()


@deadline(150)
def test_balance():
    """Two busy disks on one reactor, of which one may go elsewhere: it does."""
    need_two_cpus()
    # perf, which has a whole disk to write, is the limit on a small machine: half of a reactor is much then.
    with Daemon(arguments=["--balance=30"]) as daemon:
        first = daemon.malloc_disk("stays", bdev="M0", cpumask=FIRST)
        second = daemon.malloc_disk("goes", bdev="M1", cpumask=FIRST)
        job = ["-w", "write", "-o", "120k", "-q", "32", "-t", "90", "-c", f"[{two_cpus()[-1]}]", f"vhost:{first}", f"vhost:{second}"]
        with load(*job) as perf:
            wait_until(lambda: stats(daemon, "stays")["requests"] and stats(daemon, "goes")["requests"])
            time.sleep(2)
            assert stats(daemon, "goes")["moves"] == 0, "the mask forbids it"
            daemon.rpc("vhost_controller_set_cpumask", ctrlr="goes", cpumask=cpu_mask())
            assert cpus_of(daemon, "goes") == [two_cpus()[0]], "a mask that allows where it is moves nothing"
            wait_until(lambda: cpus_of(daemon, "goes") == [two_cpus()[1]], 40)
            perf.send_signal(signal.SIGINT)
        assert stats(daemon, "stays")["moves"] == 0 and stats(daemon, "goes")["moves"] >= 1
        assert "balance: ring 0 of goes" in daemon.log()


# -- accounting -----------------------------------------------------------------------------------------------


def test_threads_as_spdk_tells_them():
    with Daemon() as daemon, Guest(daemon.malloc_disk(), queues=2) as guest:
        for ring in guest.rings:
            ring.check()
        threads = daemon.rpc("thread_get_stats")
        assert threads["tick_rate"] == daemon.rpc("framework_get_reactors")["tick_rate"]
        for thread in threads["threads"]:
            assert set(thread) == {"name", "id", "cpumask", "busy", "idle", "active_pollers_count",
                                   "timed_pollers_count", "paused_pollers_count"}, thread
        disk = threads["threads"][-1]
        assert disk["name"] == "disk" and disk["busy"] > 0 and disk["idle"] > 0
        assert disk["active_pollers_count"] + disk["paused_pollers_count"] == 2
        assert int(disk["cpumask"], 16) == int(cpu_mask(), 16) and not disk["cpumask"].startswith("0x")
        pollers = daemon.rpc("thread_get_pollers")["threads"]
        assert [t["id"] for t in pollers] == [t["id"] for t in threads["threads"]]
        for thread in pollers:
            assert set(thread) == {"name", "id", "active_pollers", "timed_pollers", "paused_pollers"}
        found = pollers[-1]["active_pollers"] + pollers[-1]["paused_pollers"]
        assert {p["name"] for p in found} == {"ring 0", "ring 1"}
        for poller in found:
            assert set(poller) == {"name", "id", "state", "run_count", "busy_count"}
            assert poller["run_count"] >= poller["busy_count"] > 0, poller
        named = [t for r in daemon.rpc("framework_get_reactors")["reactors"] for t in r["lw_threads"]]
        assert sorted(t["id"] for t in named) == sorted(t["id"] for t in threads["threads"])
        daemon.rpc("thread_set_cpumask", id=disk["id"], cpumask=FIRST)
        assert set(cpus_of(daemon)) == {two_cpus()[0]}


def test_what_rings_have_done():
    with Daemon(mask=FIRST) as daemon, Guest(daemon.malloc_disk(), queues=2) as guest:
        for _ in range(10):
            guest.rings[0].run(vu.IN, 0, length=512)
        heads = [guest.rings[1].prepare(vu.IN, i, length=512).head for i in range(8)]
        guest.rings[1].publish(heads)
        guest.rings[1].kick()
        guest.rings[1].wait()
        wait_until(lambda: not any(ring["polled"] for ring in stats(daemon)["rings"]))  # and so all turns are billed
        everything = daemon.rpc("riffle_get_stats")
        (totals,), (reactor,) = everything["controllers"], everything["reactors"]
        first, second = totals["rings"]
        assert first["requests"] == 10 and first["batches"] == 10 and first["kicks"] >= 1
        assert second["requests"] == 8 and second["batches"] == 1, second
        assert first["interrupts"] >= 1 and first["busy"] > 0 and second["busy"] > 0
        assert totals["requests"] == 18 and totals["busy"] == first["busy"] + second["busy"]
        assert totals["busy"] <= reactor["busy"], "disks cannot have used more than the reactor"
        guest.disconnect()
        wait_until(lambda: not stats(daemon)["connected"])
        left = stats(daemon)
        assert left["rings"] == [] and left["requests"] == 18 and left["busy"] == totals["busy"]


# -- pinning --------------------------------------------------------------------------------------------------


def threads_of(daemon):
    for thread in os.listdir(f"/proc/{daemon.process.pid}/task"):
        with open(f"/proc/{daemon.process.pid}/task/{thread}/comm", encoding="utf-8") as file:
            yield file.read().strip(), os.sched_getaffinity(int(thread))


def test_control_threads_leave_the_reactors_alone():
    need_two_cpus()
    first, last = two_cpus()
    with Daemon(mask=FIRST, arguments=["--balance"]) as daemon, Guest(daemon.malloc_disk()) as guest:
        guest.ring.check()
        for name, cpus in threads_of(daemon):
            if name.startswith("reactor"):
                assert cpus == {first}, (name, cpus)
            elif name != "riffle" or "tsan" not in RIFFLE:  # TSan has a thread of its own, as old as the process
                assert first not in cpus and last in cpus, (name, cpus)


def test_cpus_that_may_not_be_used():
    allowed = sorted(os.sched_getaffinity(0))
    for mask, words in (("[4000]", "of CPUs 0 to"), (hex(1 << (allowed[-1] + 1)), "this process may use"),
                        (f"[{allowed[0]},{allowed[-1] + 1}]", "this process may use"), ("0", "names no CPU")):
        with Daemon(start=False, mask=mask) as daemon:
            daemon.spawn()
            assert daemon.wait(10) != 0
            assert words in daemon.log(), (mask, daemon.log())
    need_two_cpus()
    with Daemon(start=False, wrapper=["taskset", "-c", str(allowed[0])], mask=LAST) as daemon:
        daemon.spawn()
        assert daemon.wait(10) != 0
        assert f"this process may use {allowed[0]}" in daemon.log(), daemon.log()


def test_isolate_says_what_shares_the_cpus():
    with open("/sys/devices/system/cpu/isolated", encoding="utf-8") as file:
        isolated = file.read().strip()
    with Daemon(arguments=["--isolate"]) as daemon:
        assert daemon.rpc("spdk_get_version")  # answered when all that is said at the start has been
        assert "the scheduler may put other threads on CPUs" in daemon.log() or isolated, daemon.log()
    with Daemon() as daemon:
        assert daemon.rpc("spdk_get_version")
        assert "isolate:" not in daemon.log()
