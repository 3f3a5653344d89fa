"""Configuration files, save_config and load_config, and how the daemon starts and ends."""

import json
import os
import random
import signal
import socket
import subprocess
import threading
import time

import vhost_user as vu
from daemon import RIFFLE, Daemon, RpcError, cpu_mask, scaled, two_cpus
from tap import deadline


def bdev_config(*methods):
    return {"subsystem": "bdev", "config": [{"method": m, "params": p} for m, p in methods]}


def vhost_config(*controllers):
    return {"subsystem": "vhost_blk",
            "config": [{"method": "vhost_create_blk_controller", "params": c} for c in controllers]}


NULL = ("bdev_null_create", {"name": "Null0", "num_blocks": 1024, "block_size": 512})
MALLOC = ("bdev_malloc_create", {"name": "Malloc0", "num_blocks": 2048, "block_size": 512})


def spdk_config(filename):
    """What SPDK 26.09 saves, cut down: its own subsystems and options around things that we have."""
    return {"subsystems": [
        {"subsystem": "scheduler", "config": [{"method": "framework_set_scheduler", "params": {"name": "static"}}]},
        {"subsystem": "sock", "config": [
            {"method": "sock_set_default_impl", "params": {"impl_name": "posix"}},
            {"method": "sock_impl_set_options", "params": {"impl_name": "uring", "recv_buf_size": 2097152}}]},
        {"subsystem": "iobuf", "config": [
            {"method": "iobuf_set_options", "params": {"small_pool_count": 8192, "enable_numa": False}}]},
        {"subsystem": "keyring", "config": []},
        {"subsystem": "accel", "config": [{"method": "accel_set_options", "params": {"task_count": 2048}}]},
        {"subsystem": "bdev", "config": [
            {"method": "bdev_set_options", "params": {"bdev_io_pool_size": 65535, "bdev_auto_examine": True}},
            {"method": "bdev_raid_set_options", "params": {"process_window_size_kb": 1024}},
            {"method": "bdev_malloc_create", "params": {
                "name": "Malloc0", "num_blocks": 131072, "block_size": 512, "physical_block_size": 512,
                "uuid": "4ccbbc5a-26af-4e02-8bd5-86fe1cb14577", "optimal_io_boundary": 0, "md_size": 0,
                "dif_type": 0, "dif_is_head_of_md": False, "dif_pi_format": 0, "numa_id": -1}},
            {"method": "bdev_null_create", "params": {
                "name": "Null0", "num_blocks": 1048576, "block_size": 512, "physical_block_size": 512,
                "md_size": 0, "dif_type": 0, "dif_is_head_of_md": False, "dif_pi_format": 0,
                "uuid": "940d2eb0-20b5-4b0f-9129-fdb6c863fb5e", "preferred_write_granularity": 0,
                "preferred_write_alignment": 0, "optimal_write_size": 0, "preferred_unmap_granularity": 0,
                "preferred_unmap_alignment": 0}},
            {"method": "bdev_nvme_set_options", "params": {"action_on_timeout": "none", "timeout_us": 0}},
            {"method": "bdev_nvme_set_hotplug", "params": {"period_us": 100000, "enable": False}},
            {"method": "bdev_aio_create", "params": {
                "name": "Aio0", "block_size": 4096, "filename": filename, "readonly": False, "fallocate": False,
                "uuid": "5077dc91-499a-4459-9a26-7a5828ca26c0", "nowait": False}},
            {"method": "bdev_uring_create", "params": {
                "name": "Uring0", "block_size": 4096, "filename": filename,
                "uuid": "e12b57fc-92e6-42a9-9b17-f9c283a5b072"}},
            {"method": "bdev_wait_for_examine"}]},
        {"subsystem": "nvmf", "config": [
            {"method": "nvmf_create_transport", "params": {"trtype": "TCP", "max_queue_depth": 128}}]},
        {"subsystem": "nbd", "config": []},
        {"subsystem": "vhost_blk", "config": [
            {"method": "vhost_create_blk_controller", "params": {
                "ctrlr": "vhost.0", "dev_name": "Malloc0", "cpumask": cpu_mask(two_cpus()[:1])[2:],
                "readonly": False, "transport": "vhost_user_blk"}},
            {"method": "vhost_create_blk_controller", "params": {
                "ctrlr": "vhost.1", "dev_name": "Null0", "cpumask": cpu_mask(two_cpus()[:1])[2:],
                "readonly": True, "transport": "vhost_user_blk"}}]},
        {"subsystem": "scsi", "config": None},
        {"subsystem": "iscsi", "config": [{"method": "iscsi_set_options", "params": {"max_sessions": 128}}]},
        {"subsystem": "vhost_scsi", "config": []}]}


# -- save and load -------------------------------------------------------------------------------------


def make_everything(daemon):
    with open(daemon.path("disk"), "wb") as file:
        file.truncate(4 << 20)
    daemon.rpc("bdev_malloc_create", name="Malloc0", num_blocks=2048, block_size=512)
    daemon.rpc("bdev_null_create", name='Null "\\\U0001F600', num_blocks=1024, block_size=4096)
    daemon.rpc("bdev_aio_create", name="Aio0", filename=daemon.path("disk"), block_size=512, readonly=True)
    daemon.rpc("bdev_uring_create", name="Uring0", filename=daemon.path("disk"), block_size=4096)
    daemon.rpc("bdev_delay_create", base_bdev_name="Malloc0", name="Delay0", avg_read_latency=5,
               p99_read_latency=6, avg_write_latency=7, p99_write_latency=8)
    daemon.rpc("vhost_create_blk_controller", ctrlr="c0", dev_name="Delay0", serial="serial 0", num_queues=2)
    daemon.rpc("vhost_create_blk_controller", ctrlr="c1", dev_name="Uring0", readonly=True,
               cpumask=cpu_mask(two_cpus()[:1]))


def picture(daemon):
    """Everything that a configuration must bring back."""
    bdevs = daemon.rpc("bdev_get_bdevs")
    return [{key: b[key] for key in ("name", "uuid", "block_size", "num_blocks", "product_name")} for b in bdevs], \
        sorted(((c["ctrlr"], c["cpumask"], c["backend_specific"]) for c in daemon.rpc("vhost_get_controllers")),
               key=lambda c: c[0])


def subsystem(config, name):
    (found,) = [s["config"] for s in config["subsystems"] if s["subsystem"] == name]
    return found


def test_save_and_load():
    """save, load into an empty daemon, save again: the same."""
    with Daemon() as daemon:
        make_everything(daemon)
        saved, before = daemon.rpc("save_config"), picture(daemon)
        assert [m["method"] for m in subsystem(saved, "bdev") if m["method"].endswith("_create")].index(
            "bdev_delay_create") > 0, "a filter before its base"
        assert subsystem(saved, "bdev") == daemon.rpc("framework_get_config", name="bdev")
        daemon.stop()
        daemon.start()
        assert daemon.call("load_config", saved) is True
        assert picture(daemon) == before
        assert daemon.rpc("save_config") == saved
        with vu.Guest(daemon.vhost_path("c0"), queues=2) as guest:
            assert guest.ring.get_id() == b"serial 0".ljust(20, b"\0")
            guest.ring.check()


def test_config_option_loads_what_was_saved():
    with Daemon() as daemon:
        make_everything(daemon)
        saved, before = daemon.rpc("save_config"), picture(daemon)
        daemon.stop()
        daemon.write_config(saved)
        daemon.start()
        assert picture(daemon) == before
        assert daemon.rpc("save_config") == saved


def test_delete_is_saved_too():
    with Daemon() as daemon:
        empty = daemon.rpc("save_config")
        make_everything(daemon)
        for ctrlr in ("c0", "c1"):
            daemon.rpc("vhost_delete_controller", ctrlr=ctrlr)
        for name, kind in (("Delay0", "delay"), ("Malloc0", "malloc"), ("Aio0", "aio"), ("Uring0", "uring"),
                           ('Null "\\\U0001F600', "null")):
            daemon.rpc(f"bdev_{kind}_delete", name=name)
        assert daemon.rpc("save_config") == empty


def test_load_config_errors():
    """What fails is named; the daemon lives."""
    broken = [5, {"subsystems": 5}, {"subsystems": [5]}, {"subsystems": [{"subsystem": "bdev", "config": 5}]},
              {"subsystems": [{"config": []}]}, {"subsystems": [bdev_config(("bdev_null_create", {"name": "X"}))]},
              {"subsystems": [vhost_config({"ctrlr": "c", "dev_name": "nope"})]},
              {"subsystems": [{"subsystem": "bdev", "config": [{"params": {}}]}]}]
    with Daemon() as daemon:
        for config in broken:
            try:
                result = daemon.call("load_config", config)
                raise AssertionError(f"{config} loaded with {result!r}")
            except RpcError as error:
                assert error.data and error.data.get("hint"), error
        assert daemon.alive() and daemon.rpc("bdev_get_bdevs") == []


def test_spdk_config():
    """A file written by SPDK: what we do not have is skipped with a warning."""
    with Daemon(start=False) as daemon:
        with open(daemon.path("disk"), "wb") as file:
            file.truncate(4 << 20)
        daemon.write_config(spdk_config(daemon.path("disk")))
        daemon.start()
        assert sorted(b["name"] for b in daemon.rpc("bdev_get_bdevs")) == ["Aio0", "Malloc0", "Null0", "Uring0"]
        assert [c["ctrlr"] for c in daemon.rpc("vhost_get_controllers")] == ["vhost.0", "vhost.1"]
        assert daemon.rpc("bdev_get_bdevs", name="Null0")[0]["uuid"] == "940d2eb0-20b5-4b0f-9129-fdb6c863fb5e"
        for name in ("scheduler", "sock", "nvmf", "iscsi"):
            assert name in daemon.log(), f"no warning about {name}"
        with vu.Guest(daemon.vhost_path("vhost.0")) as guest:
            guest.ring.check()


# -- bad files (CFG 165) ------------------------------------------------------------------------------------


def refused_start(daemon, place=None):
    """Exit status != 0 and a line that names the place; nothing left behind."""
    daemon.spawn()
    status = daemon.wait(15)
    assert status > 0, f"exit status {status}"
    log = daemon.log()
    assert os.path.basename(daemon.config_path) in log, f"the file is not named: {log!r}"
    assert place is None or place in log, f"{place!r} is not named: {log!r}"
    assert not os.path.exists(daemon.rpc_path), "RPC socket left behind"
    assert not os.listdir(daemon.vhost_directory), "vhost socket left behind"
    daemon.check_log()


def test_cfg_165_bad_files():
    good = json.dumps({"subsystems": [bdev_config(NULL)]})
    bad = {"subsystems is a number": (b'{"subsystems":1111}', "subsystems"),
           "subsystems is a string": (b'{"subsystems":"123"}', "subsystems"),
           "no braces": (b'"subsystems":[]', None), "two documents": ((good + good).encode(), None),
           "empty": (b"", None), "only a brace": (b"{", None), "white space": (b" \n\t", None),
           "duplicate keys": (b'{"subsystems":[],"subsystems":[]}', "subsystems"),
           "duplicate keys below": (b'{"subsystems":[{"subsystem":"bdev","subsystem":"bdev","config":[]}]}', None),
           "an array": (b"[]", None), "no subsystems": (b"{}", "subsystems"), "cut off": (good[:-3].encode(), None),
           "NUL": (b'{"subsystems":[]}\0', None), "bad UTF-8": (b'{"subsystems":[],"\xff":1}', None),
           "deep": (b'{"subsystems":' + b"[" * 100000, None)}
    for name, (text, place) in bad.items():
        with Daemon(start=False, config=text) as daemon:
            try:
                refused_start(daemon, place)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error


def test_cfg_165_bad_requests_in_a_file():
    bad = {"unknown parameter": ([bdev_config(("bdev_null_create", {**NULL[1], "bogus": 1}))], "bogus"),
           "wrong type": ([bdev_config(("bdev_null_create", {**NULL[1], "num_blocks": "x"}))], "num_blocks"),
           "missing file": ([bdev_config(("bdev_aio_create", {"name": "A", "filename": "/nonexistent/x",
                                                              "block_size": 512}))], "/nonexistent/x"),
           "twice the name": ([bdev_config(NULL, NULL)], "Null0"),
           "no such bdev": ([bdev_config(NULL), vhost_config({"ctrlr": "ok", "dev_name": "Null0"},
                                                             {"ctrlr": "c", "dev_name": "nope"})], "nope"),
           "config is a string": ([{"subsystem": "bdev", "config": "x"}], "config"),
           "no method": ([{"subsystem": "bdev", "config": [{"params": {}}]}], "method")}
    for name, (subsystems, place) in bad.items():
        with Daemon(start=False, config={"subsystems": subsystems}) as daemon:
            try:
                refused_start(daemon, place)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error


def test_config_file_missing_or_unreadable():
    with Daemon(start=False) as daemon:
        for path in (daemon.path("nope.json"), daemon.vhost_directory):
            daemon.config_path = path
            refused_start(daemon)


# -- instances and sockets --------------------------------------------------------------------------------------


def start_beside(daemon, folder):
    """A second instance on the RPC socket of the first."""
    return subprocess.run([RIFFLE, "serve", "-r", daemon.rpc_path, "-S", folder, "-m", cpu_mask()],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False)


def test_second_instance_is_refused():
    with Daemon() as daemon:
        path = daemon.malloc_disk()
        os.mkdir(daemon.path("other"))
        for folder in (daemon.vhost_directory, daemon.path("other")):
            done = start_beside(daemon, folder)
            assert done.returncode > 0, done
            assert daemon.rpc_path in done.stderr and " " in done.stderr.strip(), done.stderr
            assert daemon.rpc("spdk_get_version")["version"], "the first one is disturbed"
            with vu.Guest(path) as guest:
                guest.ring.check()


def test_stale_sockets_are_taken_over():
    with Daemon() as daemon:
        for _ in range(3):
            path = daemon.malloc_disk()
            with vu.Guest(path) as guest:
                guest.ring.check()
            daemon.kill()
            assert os.path.exists(daemon.rpc_path) and os.path.exists(path)
            daemon.start()
        daemon.malloc_disk()


def test_vhost_socket_of_another_daemon_is_not_taken():
    """Two daemons in one folder: the second may not steal a socket that is served."""
    with Daemon() as first, Daemon() as second:
        path = first.malloc_disk()
        with vu.Guest(path) as guest:
            second.stop()
            second.vhost_directory = first.vhost_directory
            second.start()
            second.rpc("bdev_null_create", name="N", num_blocks=64, block_size=512)
            error = second.rpc_error("vhost_create_blk_controller", ctrlr="disk", dev_name="N")
            assert error.code == -32602, error
            guest.ring.check()
        assert os.path.exists(path)
        second.kill()


def test_a_file_in_the_place_of_the_rpc_socket_is_not_removed():
    with Daemon(start=False) as daemon:
        with open(daemon.rpc_path, "w", encoding="utf-8") as file:
            file.write("precious")
        daemon.spawn()
        assert daemon.wait(15) > 0
        with open(daemon.rpc_path, encoding="utf-8") as file:
            assert file.read() == "precious"
        assert daemon.rpc_path in daemon.log()


def test_folders_missing_or_names_too_long():
    with Daemon(start=False) as daemon:
        for words in (["-r", daemon.path("nope/rpc.sock"), "-S", daemon.vhost_directory],
                      ["-r", daemon.path("x" * 150), "-S", daemon.vhost_directory],
                      ["-r", daemon.rpc_path, "-S", daemon.path("nope")]):
            done = subprocess.run(["timeout", "-s", "TERM", "3", RIFFLE, "serve", "-m", cpu_mask(), *words],
                                  stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False)
            if words[3] == daemon.path("nope") and done.returncode == 124:
                continue  # a folder for vhost sockets may come later
            assert done.returncode not in (0, 124) and done.returncode > 0, (words, done)
            assert done.stderr.strip(), words


def test_cpu_lists_and_masks():
    first = two_cpus()[0]
    for mask, wanted in ((hex(1 << first), [first]), (f"[{first}]", [first]), (cpu_mask(), two_cpus()),
                         ("[" + ",".join(map(str, two_cpus())) + "]", two_cpus()), (None, None)):
        with Daemon(mask=mask) as daemon:
            reactors = daemon.rpc("framework_get_reactors")["reactors"]
            assert wanted is None or [r["lcore"] for r in reactors] == wanted, (mask, reactors)
            assert reactors


def test_idle_daemon_sleeps():
    """A reactor with nothing to poll sleeps, with an idle session as well."""
    with Daemon() as daemon:
        with vu.Guest(daemon.malloc_disk()) as guest:
            guest.ring.check()
            time.sleep(0.5)
            before = daemon.cpu_seconds()
            time.sleep(1.5)
            used = daemon.cpu_seconds() - before
            assert used < 0.3, f"{used:.2f} s of CPU in 1.5 s of idleness"
            guest.ring.check()


# -- the end ------------------------------------------------------------------------------------------------------


def load(guest, stop):
    """Reads and writes at depth 8 until the daemon goes."""
    ring, i = guest.ring, 0
    try:
        while not stop.is_set():
            while len(ring.pending) < 8:
                i += 1
                ring.submit(vu.OUT if i % 3 == 0 else vu.IN, i % 64 * 8, length=4096,
                            out=b"L" * 4096 if i % 3 == 0 else b"")
            ring.wait(next(iter(ring.pending.values())), deadline=0.3)
    except AssertionError:
        pass


def end_under_load(sig, clients=4):
    with Daemon() as daemon:
        paths = [daemon.malloc_disk(ctrlr=f"c{i}", bdev=f"M{i}", blocks=2048) for i in range(clients)]
        guests = [vu.Guest(path) for path in paths]
        stop = threading.Event()
        threads = [threading.Thread(target=load, args=(g, stop)) for g in guests]
        for thread in threads:
            thread.start()
        try:
            time.sleep(random.uniform(0.02, 0.25))
            daemon.stop(sig)  # status 0 within 5 s, sockets unlinked, sanitizers silent
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            for guest in guests:
                guest.close()


@deadline(150)
def test_vu_31_sigterm_under_load():
    for _ in range(20):  # as often as in the report
        end_under_load(signal.SIGTERM)


def test_sigterm_while_idle_and_twice():
    for sig in (signal.SIGTERM, signal.SIGINT):
        with Daemon() as daemon:
            daemon.malloc_disk()
            daemon.stop(sig)
    with Daemon() as daemon:
        os.kill(daemon.process.pid, signal.SIGTERM)
        try:
            os.kill(daemon.process.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        assert daemon.wait() in (0, -signal.SIGTERM)


def test_sigterm_during_everything():
    """RPC clients in the middle of requests, half-open vhost connections, requests that take long."""
    for _ in range(scaled(20, 5)):
        with Daemon() as daemon:
            path = daemon.delayed_disk(read_us=1000000)
            with vu.Guest(path) as guest, daemon.rpc_client() as client:
                for _ in range(8):
                    guest.ring.submit(vu.IN, 0, length=512)
                half = socket.socket(socket.AF_UNIX)
                try:
                    half.connect(path)
                    half.send(b"\1\0\0")
                except OSError:
                    pass  # turned away at once: one front-end per socket
                client.send('{"id":1,"method":"bdev_get_')
                time.sleep(random.uniform(0, 0.1))
                daemon.stop()
                half.close()


def test_sigterm_during_start():
    """Whenever it comes: an end in time, not a half-started daemon."""
    for _ in range(scaled(50, 15)):
        with Daemon(start=False, config={"subsystems": [bdev_config(NULL, MALLOC), vhost_config(
                {"ctrlr": "c", "dev_name": "Null0"})]}) as daemon:
            daemon.spawn()
            time.sleep(random.uniform(0, 0.08))
            os.kill(daemon.process.pid, signal.SIGTERM)
            status = daemon.wait()
            assert status in (0, -signal.SIGTERM), status  # -15: before the handler was in place
            if status == 0:
                assert not os.path.exists(daemon.rpc_path) and not os.listdir(daemon.vhost_directory)
