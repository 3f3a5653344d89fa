"""JSON-RPC: framing, results and errors as SPDK's clients know them, and the bug log's RPC entries."""

import json
import os
import select
import signal
import socket
import subprocess
import time

import vhost_user as vu
from daemon import RIFFLE, ABSENT, Daemon, RpcError, cpu_mask, hostile_disk, run_riffle, scaled, two_cpus
from tap import deadline

DECODE_FAILED = (-32603, "spdk_json_decode_object failed")
NO_DEVICE, EXISTS, INVALID = "No such device", "File exists", "Invalid argument"
DATA_KEYS = {"field", "given", "allowed", "hint"}


def check_error(error, code, message=None):
    """SPDK's code and message untouched; `data` of our own with a sentence that helps."""
    assert error.code == code, f"code {error.code}, not {code}: {error}"
    assert message is None or error.message == message, f"message {error.message!r}, not {message!r}"
    assert isinstance(error.message, str) and error.message
    check_data(error.data)


def check_data(data):
    assert isinstance(data, dict), f"error without data: {data!r}"
    assert set(data) <= DATA_KEYS, f"data has {sorted(data)}"
    hint = data.get("hint")
    assert isinstance(hint, str) and len(hint) >= 12 and " " in hint and hint.rstrip()[-1] in ".!?", \
        f"hint is no sentence: {hint!r}"


def request(method="spdk_get_version", number=1, params=ABSENT, **more):
    out = {"jsonrpc": "2.0", "id": number, "method": method, **more}
    if params is not ABSENT:
        out["params"] = params
    return out


def assert_alive(daemon):
    assert daemon.alive(), "daemon died"
    assert daemon.rpc("spdk_get_version")["version"]


# -- framing (E.1) ---------------------------------------------------------------------------------


def test_reply_is_one_compact_line():
    with Daemon() as daemon, daemon.rpc_client() as client:
        for method in ("spdk_get_version", "rpc_get_methods", "framework_get_reactors", "bdev_get_bdevs"):
            client.send(json.dumps(request(method)))
            assert select.select([client.socket], [], [], 10)[0]
            data = client.socket.recv(1 << 20)  # one write: a client may call read() just once
            assert data.endswith(b"\n") and data.count(b"\n") == 1, data[-40:]
            reply = json.loads(data)
            assert reply["jsonrpc"] == "2.0" and reply["id"] == 1
            compact = json.dumps(reply, separators=(",", ":"), ensure_ascii=False)
            assert len(data.decode()) <= len(compact) + 1, f"{method}: reply not compact"


def test_concatenated_requests_with_any_white_space():
    with Daemon() as daemon, daemon.rpc_client() as client:
        texts = [json.dumps(request(number=i), separators=(",", ":")) for i in range(5)]
        texts += [json.dumps(request(number=i), indent="\t") for i in range(5, 10)]
        client.send("".join(texts))
        client.send(" \t\r\n\n ".join(json.dumps(request(number=i), indent=2) for i in range(10, 15)))
        client.send("\n\n\n   ")
        numbers = sorted(client.receive()["id"] for _ in range(15))
        assert numbers == list(range(15)), numbers
        assert client.quiet()


def test_request_in_single_bytes():
    with Daemon() as daemon, daemon.rpc_client() as client:
        for byte in json.dumps(request(), indent="\t").encode():
            client.send(bytes([byte]))
        assert client.receive()["result"]["version"]


def test_pipelining():
    with Daemon() as daemon, daemon.rpc_client() as client:
        count = 1024
        client.send("".join(json.dumps(request("bdev_get_bdevs", i)) for i in range(count)))
        numbers = sorted(client.receive()["id"] for _ in range(count))
        assert numbers == list(range(count))


def test_client_that_half_closes_gets_its_replies():
    """`echo request | nc -U` shuts its side down first."""
    with Daemon() as daemon, daemon.rpc_client() as client:
        client.send(json.dumps(request(number=1)) + json.dumps(request(number=2)))
        client.socket.shutdown(socket.SHUT_WR)
        assert {client.receive()["id"], client.receive()["id"]} == {1, 2}
        assert client.receive() is None


def test_rpc_159_params_forms():
    with Daemon() as daemon, daemon.rpc_client() as client:
        for method in ("spdk_get_version", "framework_get_subsystems", "framework_get_reactors"):
            for params in (ABSENT, None, [], {}):
                reply = client.exchange(json.dumps(request(method, params=params)))
                assert "result" in reply, (method, params, reply)
        for method in ("bdev_get_bdevs", "vhost_get_controllers", "bdev_get_iostat", "rpc_get_methods"):
            for params in (ABSENT, None, {}):
                reply = client.exchange(json.dumps(request(method, params=params)))
                assert "result" in reply, (method, params, reply)


def test_params_of_a_wrong_kind():
    with Daemon() as daemon, daemon.rpc_client() as client:
        for params in (1, "x", True, 1.5):
            reply = client.exchange(json.dumps(request("bdev_null_create", params=params)))
            assert reply["error"]["code"] in (-32600, -32602, -32603), reply
            reply = client.exchange(json.dumps(request("bdev_get_bdevs", params=params)))
            assert "error" in reply, reply


def test_jsonrpc_may_be_missing():
    with Daemon() as daemon, daemon.rpc_client() as client:
        assert client.exchange('{"id":7,"method":"spdk_get_version","params":null}')["id"] == 7
        assert client.exchange('{"id":7,"method":"spdk_get_version","jsonrpc":"1.0"}')["error"]["code"] == -32600
        assert client.exchange('{"id":7,"method":"spdk_get_version","jsonrpc":2}')["error"]["code"] == -32600


def test_ids_come_back_as_they_went():
    with Daemon() as daemon, daemon.rpc_client() as client:
        for number in (0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, "", "s", "a\u0001\"\\\U0001F600", None):
            reply = client.exchange(json.dumps(request(number=number)))
            assert reply["id"] == number and type(reply["id"]) is type(number), (number, reply["id"])
            assert "result" in reply


def test_notifications_get_no_reply():
    with Daemon() as daemon, daemon.rpc_client() as client:
        client.send('{"jsonrpc":"2.0","method":"bdev_null_create","params":'
                    '{"name":"N","num_blocks":8,"block_size":512}}')
        client.send('{"jsonrpc":"2.0","method":"no_such_method"}')
        assert client.quiet()
        reply = client.exchange(json.dumps(request("bdev_get_bdevs", 5)))
        assert reply["id"] == 5 and reply["result"][0]["name"] == "N", "the notification was not done"


# -- batches and malformed requests (RPC 163) ------------------------------------------------------------


def test_rpc_163_batches():
    with Daemon() as daemon, daemon.rpc_client() as client:
        reply = client.exchange("[]")
        assert reply["error"]["code"] == -32600 and reply["id"] is None, reply
        reply = client.exchange("[1]")
        assert isinstance(reply, list) and len(reply) == 1, reply
        assert reply[0]["error"]["code"] == -32600 and reply[0]["id"] is None
        notification = request()
        del notification["id"]
        reply = client.exchange(json.dumps([request(number=1), notification, request("nope", 2)]))
        by_id = {r["id"]: r for r in reply}
        assert set(by_id) == {1, 2} and len(reply) == 2, reply
        assert "result" in by_id[1] and by_id[2]["error"]["code"] == -32601
        client.send(json.dumps([notification, notification]))
        assert client.quiet(), "a batch of notifications is answered"
        batch = [request("bdev_get_bdevs", i) for i in range(100)]
        client.send(json.dumps(batch, indent=1))
        assert sorted(r["id"] for r in json.loads(client.receive_line())) == list(range(100))


def test_rpc_163_bad_ids():
    with Daemon() as daemon, daemon.rpc_client() as client:
        for number in ({}, [], [1], True):
            reply = client.exchange(json.dumps(request(number=number)))
            assert reply["error"]["code"] == -32600 and reply["id"] is None, (number, reply)
        reply = client.exchange('{"jsonrpc":"2.0","id":1.5,"method":"spdk_get_version"}')
        assert reply["id"] in (1.5, None), reply  # SHOULD NOT be a fraction: echoed or refused
        assert client.exchange(json.dumps(request(number=3)))["id"] == 3


def test_rpc_163_bad_requests():
    with Daemon() as daemon, daemon.rpc_client() as client:
        for text in ('1', '"x"', 'null', 'true', '{"jsonrpc":"2.0","id":1}', '{"id":1,"method":5}',
                     '{"id":1,"method":null}', '{"id":1}'):
            client.send(text + " ")
            reply = client.receive()
            assert reply["error"]["code"] in (-32600, -32700), (text, reply)
            check_data(reply["error"].get("data"))
            if reply["error"]["code"] == -32700:
                client.close()
                client.__init__(daemon.rpc_path)


def one_error_or_close(daemon, data, codes=(-32700, -32600)):
    """Bytes that are no request: an error object or a close; the next connection is served."""
    with daemon.rpc_client() as client:
        try:
            client.send(data)
            reply = client.receive()
        except (BrokenPipeError, ConnectionResetError):
            reply = None
        if reply is not None:
            assert "error" in reply and reply["error"]["code"] in codes, (data[:60], reply)
            assert reply["id"] is None or reply["error"]["code"] != -32700
    assert_alive(daemon)
    return reply


def test_rpc_163_bytes_that_are_no_json():
    head = b'{"jsonrpc":"2.0","id":1,"method":"spdk_get_version","params":{"x":"'
    with Daemon() as daemon:
        for data in (b"\0\n", b"}", b"]", b'{"a"}', b"{,}", b"nul ", b"{'a':1}", b'{"a":01}', b"\x80\n",
                     head + b"\xc0\x80\"}}", head + b"\xed\xa0\x80\"}}", head + b"\xff\"}}",
                     head + b"\xf4\x90\x80\x80\"}}", head + b"\n\"}}", head + b"\\x\"}}", head + b"\0\"}}",
                     b"[1,]", b"hello world\n", b"GET / HTTP/1.1\r\n\r\n", b'{"id":1e999,"method":"x"}'):
            one_error_or_close(daemon, data, codes=(-32700, -32600, -32602, -32603, -32601))
        with daemon.rpc_client() as client:  # a byte order mark: skipped or refused
            client.send(b"\xef\xbb\xbf" + json.dumps(request()).encode())
            reply = client.receive()
            assert reply is None or "result" in reply or reply["error"]["code"] == -32700
        assert_alive(daemon)


def test_rpc_163_duplicate_keys():
    with Daemon() as daemon, daemon.rpc_client() as client:
        client.send('{"jsonrpc":"2.0","id":1,"method":"spdk_get_version","method":"no_such_method"}')
        reply = client.receive()
        assert reply is None or "result" in reply or "error" in reply
        if reply is not None:
            assert client.quiet(), "two replies to one request"
        assert_alive(daemon)


@deadline(120)
def test_rpc_162_deep_nesting_and_huge_requests():
    with Daemon() as daemon:
        one_error_or_close(daemon, b"[" * 10000 + b"]" * 10000)
        one_error_or_close(daemon, b'{"a":' * 100000 + b"1" + b"}" * 100000)
        one_error_or_close(daemon, b"[" * 10000 + b"garbage")
        one_error_or_close(daemon, b'{"a":' * 10000 + b"garbage")
        one_error_or_close(daemon, b'{"id":1,"method":"' + b"x" * (64 << 20) + b'"}', (-32700, -32600, -32601))
        before = daemon.counters().rss_kib
        with daemon.rpc_client() as client:
            try:
                client.send(b"[" + b",".join([b"1"] * 1000000) + b"]")
                reply = client.receive()
                # More than 256 KiB: refused; were it served, the reply might have 32 MiB at most.
                assert reply is None or isinstance(reply, list) or reply["error"]["code"] in (-32700, -32600)
            except (BrokenPipeError, ConnectionResetError):
                pass
        assert_alive(daemon)
        if not daemon.sanitized():
            assert daemon.counters().rss_kib < before + 200 * 1024, "memory kept"


@deadline(120)
def test_rpc_164_large_requests():
    """Served, or refused with an error object; never a silent close in the middle of a reply."""
    with Daemon() as daemon:
        for size in (200 << 10, 4 << 20):
            big = json.dumps(request(params={"x": "y" * size})).encode()
            with daemon.rpc_client() as client:
                try:
                    client.send(big)
                except (BrokenPipeError, ConnectionResetError):
                    pass
                reply = client.receive()
                assert reply is not None and "error" in reply, "closed without an error object"
        with daemon.rpc_client() as client:  # up to 256 KiB are served, however they arrive
            small = json.dumps(request(params={})).encode()
            for _ in range(scaled(4 << 20, 200 << 10) // len(small)):
                for byte in small:
                    client.socket.send(bytes([byte]))
                assert client.receive()["id"] == 1
        padded = b'{"jsonrpc":"2.0",' + b" " * (200 << 10) + b'"id":1,"method":"spdk_get_version"}'
        with daemon.rpc_client() as client:
            client.send(padded)
            assert "result" in client.receive(), "a request of 200 KiB is refused"


def test_rpc_164_pipeline_without_reading():
    with Daemon() as daemon:
        for i in range(100):
            daemon.rpc("bdev_null_create", name=f"Null{i}", num_blocks=8, block_size=512)
        with daemon.rpc_client() as client:
            # 300 replies of some 100 KiB fit into no socket buffer; the requests do.
            client.send("".join(json.dumps(request("bdev_get_bdevs", i)) for i in range(300)))
            time.sleep(0.5)
            assert_alive(daemon)  # others are served meanwhile
            for _ in range(300):
                assert len(client.receive()["result"]) == 100


# -- connections (RPC 153 to 155) ------------------------------------------------------------------------


def test_rpc_153_unexpected_params():
    with Daemon() as daemon, daemon.rpc_client() as client:
        reply = client.exchange('{"jsonrpc":"2.0","id":1,"method":"spdk_get_version","params":{"x":1}}')
        assert reply["error"]["code"] == -32602, reply
        check_data(reply["error"].get("data"))
        assert client.quiet(), "a second reply"
        assert client.exchange(json.dumps(request()))["result"]["version"]


@deadline(90)
def test_rpc_154_client_leaves_before_the_reply():
    with Daemon() as daemon:
        create = json.dumps(request("bdev_malloc_create", 1, {"name": "M", "num_blocks": 64, "block_size": 512}))
        delete = json.dumps(request("bdev_malloc_delete", 2, {"name": "M"}))
        for _ in range(50):
            daemon.rpc_client().close()
        with daemon.no_leak(rss_kib=4096):
            for _ in range(scaled(5000, 500)):
                with daemon.rpc_client() as client:
                    client.send(create + delete)
            assert_alive(daemon)


@deadline(90)
def test_rpc_155_killed_client_with_requests():
    with Daemon() as daemon:
        daemon.rpc("bdev_null_create", name="Null0", num_blocks=8, block_size=512)
        text = "".join(json.dumps(request("bdev_get_bdevs", i)) for i in range(50)).encode()
        for _ in range(50):
            daemon.rpc_client().close()
        with daemon.no_leak(rss_kib=4096):
            for i in range(scaled(1000, 200)):
                with daemon.rpc_client() as client:
                    # As after kill -9: closed with unread replies, and now and then half a request.
                    client.send(text[:len(text) - i % 30])
            assert_alive(daemon)


def test_64_connections_at_once():
    with Daemon() as daemon:
        for client in [daemon.rpc_client() for _ in range(64)]:
            client.close()  # stacks and arenas of 64 threads are kept for the next ones
        with daemon.no_leak():
            clients = [daemon.rpc_client() for _ in range(64)]
            text = json.dumps(request("bdev_get_bdevs", 9))
            for client in clients[::2]:
                client.send(text[:20])  # half of them sit on half a request
            for client in clients[1::2]:
                assert client.exchange(text)["id"] == 9
            for client in clients[::2]:
                client.send(text[20:])
            for client in clients[::2]:
                assert client.receive()["id"] == 9
            for client in clients:
                client.close()


def test_slow_create_does_not_block_others():
    """A connection waits only for its own requests."""
    with Daemon() as daemon:
        clients = [daemon.rpc_client() for _ in range(4)]
        for i, client in enumerate(clients):
            client.send_request("bdev_malloc_create", {"name": f"M{i}", "num_blocks": 1 << 17, "block_size": 512})
        begin = time.monotonic()
        assert_alive(daemon)
        assert time.monotonic() - begin < 5
        for client in clients:
            assert "result" in client.receive()
            client.close()


def test_rpc_158_names_with_odd_characters():
    """Every reply parses, and names come back as they went."""
    names = ['quote"', "back\\slash", "\u0001", "\u001f", "\u007f", "tab\t", "new\nline", "\U0001F600", "\u00e9",
             "\u2028", "sp ace", "a/b", "%s%n", "\ud7ff", "\uffff", "x" * 200]
    with Daemon() as daemon:
        taken = []
        for name in names:
            try:
                created = daemon.rpc("bdev_null_create", name=name, num_blocks=8, block_size=512)
            except RpcError as error:
                check_data(error.data)  # refused is fine, broken JSON is not
                continue
            assert created == name, (created, name)
            taken.append(name)
        listed = [bdev["name"] for bdev in daemon.rpc("bdev_get_bdevs")]
        assert sorted(listed) == sorted(taken), listed
        for name in taken:
            assert daemon.rpc("bdev_get_bdevs", name=name)[0]["name"] == name
            assert daemon.rpc("bdev_get_iostat", names=[name])["bdevs"][0]["name"] == name
        json.dumps(daemon.rpc("save_config"))
        for name in ("", "\0", "a\0b"):
            error = daemon.rpc_error("bdev_null_create", name=name, num_blocks=8, block_size=512)
            check_data(error.data)
        for name in ('no"such\u0001', "\U0001F600?", "y" * 5000):
            check_error(daemon.rpc_error("bdev_get_bdevs", name=name), -19, NO_DEVICE)
        for name in taken:
            assert daemon.rpc("bdev_null_delete", name=name) is True


# -- results ---------------------------------------------------------------------------------------------


def test_methods_are_listed():
    wanted = {"rpc_get_methods", "spdk_get_version", "bdev_get_bdevs", "bdev_get_iostat", "bdev_null_create",
              "bdev_null_delete", "bdev_malloc_create", "bdev_malloc_delete", "bdev_aio_create",
              "bdev_aio_delete", "bdev_uring_create", "bdev_uring_delete", "bdev_delay_create",
              "bdev_delay_delete", "vhost_create_blk_controller", "vhost_get_controllers",
              "vhost_delete_controller", "framework_get_reactors", "framework_get_subsystems",
              "framework_get_config", "save_config", "load_config", "spdk_kill_instance"}
    with Daemon() as daemon:
        methods = daemon.rpc("rpc_get_methods")
        assert wanted <= set(methods), f"missing {sorted(wanted - set(methods))}"
        assert len(methods) == len(set(methods)), "listed twice"
        for method in methods:  # every listed method exists
            if method in ("spdk_kill_instance",):
                continue
            try:
                daemon.call(method, {"no_such_key": 1})
            except RpcError as error:
                assert error.code != -32601, method


def test_version():
    with Daemon() as daemon:
        version = daemon.rpc("spdk_get_version")
        assert isinstance(version["version"], str) and version["version"]
        fields = version["fields"]
        assert all(isinstance(fields[key], int) for key in ("major", "minor", "patch"))
        assert isinstance(fields["suffix"], str)


def test_create_results_are_names():
    with Daemon() as daemon:
        with open(daemon.path("disk"), "wb") as file:
            file.truncate(1 << 20)
        for kind, params in (("null", {"num_blocks": 64, "block_size": 4096}),
                             ("malloc", {"num_blocks": 64, "block_size": 512}),
                             ("aio", {"filename": daemon.path("disk"), "block_size": 512}),
                             ("uring", {"filename": daemon.path("disk"), "block_size": 4096})):
            assert daemon.rpc(f"bdev_{kind}_create", name=f"{kind}0", **params) == f"{kind}0"
        assert daemon.rpc("bdev_delay_create", base_bdev_name="null0", name="delay0", avg_read_latency=1,
                          p99_read_latency=1, avg_write_latency=1, p99_write_latency=1) == "delay0"
        products = {b["name"]: (b["product_name"], b["block_size"], b["num_blocks"])
                    for b in daemon.rpc("bdev_get_bdevs")}
        assert products["null0"] == ("Null disk", 4096, 64)
        assert products["malloc0"] == ("Malloc disk", 512, 64)
        assert products["aio0"] == ("AIO disk", 512, 2048)
        assert products["uring0"] == ("URING bdev", 4096, 256)
        assert products["delay0"][1:] == (4096, 64)
        for name in ("delay0", "null0", "malloc0", "aio0", "uring0"):
            assert daemon.rpc(f"bdev_{name[:-1]}_delete", name=name) is True
        assert daemon.rpc("bdev_get_bdevs") == []


def test_bdev_get_bdevs_fields():
    uuid = "4ccbbc5a-26af-4e02-8bd5-86fe1cb14577"
    with Daemon() as daemon:
        daemon.rpc("bdev_malloc_create", name="Malloc0", num_blocks=131072, block_size=512, uuid=uuid)
        (bdev,) = daemon.rpc("bdev_get_bdevs", name="Malloc0")
        assert bdev["aliases"] == [uuid] and bdev["uuid"] == uuid
        assert (bdev["product_name"], bdev["block_size"], bdev["num_blocks"]) == ("Malloc disk", 512, 131072)
        assert bdev["claimed"] is False and bdev["zoned"] is False
        assert bdev["assigned_rate_limits"] == dict.fromkeys(
            ("rw_ios_per_sec", "rw_mbytes_per_sec", "r_mbytes_per_sec", "w_mbytes_per_sec"), 0)
        supported = bdev["supported_io_types"]
        assert all(supported[kind] is True for kind in ("read", "write", "flush", "unmap", "write_zeroes"))
        assert isinstance(bdev["driver_specific"], dict)
        assert daemon.rpc("bdev_get_bdevs", name=uuid)[0]["name"] == "Malloc0", "a uuid is an alias"


def test_bdev_get_iostat_counts():
    keys = {"name", "bytes_read", "num_read_ops", "bytes_written", "num_write_ops", "bytes_unmapped",
            "num_unmap_ops", "read_latency_ticks", "max_read_latency_ticks", "min_read_latency_ticks",
            "write_latency_ticks", "io_error"}
    with Daemon() as daemon, vu.Guest(daemon.malloc_disk()) as guest:
        for i in range(3):
            guest.ring.read(i, 4096)
        guest.ring.write(0, b"z" * 1024)
        stat = daemon.rpc("bdev_get_iostat", names=["Malloc0"])
        assert isinstance(stat["tick_rate"], int) and isinstance(stat["ticks"], int)
        (bdev,) = stat["bdevs"]
        assert keys <= set(bdev), f"missing {sorted(keys - set(bdev))}"
        assert (bdev["num_read_ops"], bdev["bytes_read"]) == (3, 12288)
        assert (bdev["num_write_ops"], bdev["bytes_written"]) == (1, 1024)
        assert all(isinstance(v, int) for k, v in bdev.items() if k not in ("name", "io_error"))
        assert [b["name"] for b in daemon.rpc("bdev_get_iostat")["bdevs"]] == ["Malloc0"]
        old = daemon.rpc("bdev_get_iostat", name="Malloc0")  # old clients send name
        assert [b["name"] for b in old["bdevs"]] == ["Malloc0"]


def test_vhost_get_controllers():
    with Daemon() as daemon:
        path = daemon.malloc_disk(ctrlr="vhost.0")
        daemon.rpc("vhost_create_blk_controller", ctrlr="vhost.1", dev_name="Malloc0", readonly=True,
                   cpumask=cpu_mask(two_cpus()[:1]))
        listed = {c["ctrlr"]: c for c in daemon.rpc("vhost_get_controllers")}
        assert set(listed) == {"vhost.0", "vhost.1"}
        first, second = listed["vhost.0"], listed["vhost.1"]
        assert first["socket"] == path and first["sessions"] == []
        assert isinstance(first["delay_base_us"], int) and isinstance(first["iops_threshold"], int)
        assert int(first["cpumask"], 16) > 0
        assert int(second["cpumask"], 16) == 1 << two_cpus()[0]
        block = second["backend_specific"]["block"]
        assert block == {"readonly": True, "bdev": "Malloc0", "transport": "vhost_user_blk"}
        with vu.Guest(path) as guest:
            guest.ring.check()
            (session,) = daemon.rpc("vhost_get_controllers", name="vhost.0")[0]["sessions"]
            assert session["started"] is True
            assert isinstance(session["max_queues"], int) and isinstance(session["inflight_task_cnt"], int)


def test_reactors_and_subsystems():
    with Daemon() as daemon:
        reactors = daemon.rpc("framework_get_reactors")
        assert reactors["pid"] == daemon.process.pid and reactors["tick_rate"] > 0
        assert [r["lcore"] for r in reactors["reactors"]] == two_cpus()
        for reactor in reactors["reactors"]:
            assert all(isinstance(reactor[key], int) for key in ("busy", "idle"))
            assert isinstance(reactor["lw_threads"], list)
        names = [s["subsystem"] for s in daemon.rpc("framework_get_subsystems")]
        assert {"bdev", "vhost_blk"} <= set(names), names
        for name in names:
            config = daemon.rpc("framework_get_config", name=name)
            assert config is None or isinstance(config, list), (name, config)
        check_data(daemon.rpc_error("framework_get_config", name="no_such_subsystem").data)


def test_serial_and_queues():
    with Daemon() as daemon:
        daemon.rpc("bdev_null_create", name="N", num_blocks=64, block_size=512)
        for serial in ("", "S", "nineteen-characters", "exactly-20-character"):
            daemon.rpc("vhost_create_blk_controller", ctrlr="s", dev_name="N", serial=serial, num_queues=3)
            with vu.Guest(daemon.vhost_path("s")) as guest:
                assert guest.connection.ask_u64(vu.GET_QUEUE_NUM) == 3
                if serial:
                    assert guest.ring.get_id() == serial.encode().ljust(20, b"\0")
                else:
                    guest.ring.get_id()
            daemon.delete_controller("s")
        for params in ({"serial": "x" * 21}, {"serial": 5}, {"num_queues": 0}, {"num_queues": 1 << 20},
                       {"num_queues": -1}, {"num_queues": "two"}):
            error = daemon.rpc_error("vhost_create_blk_controller", ctrlr="s", dev_name="N", **params)
            check_data(error.data)
            assert not os.path.exists(daemon.vhost_path("s"))


# -- errors ------------------------------------------------------------------------------------------------


def test_errors_of_decoding():
    """Unknown method, unknown key, missing key, wrong type: SPDK's words, our data."""
    null = {"name": "X", "num_blocks": 8, "block_size": 512}
    with Daemon() as daemon:
        check_error(daemon.rpc_error("no_such_method"), -32601, "Method not found")
        check_error(daemon.rpc_error("bdev_null_create", **null, bogus=1), *DECODE_FAILED)
        check_error(daemon.rpc_error("bdev_malloc_create", name="X"), *DECODE_FAILED)
        for wrong in ({"num_blocks": "eight"}, {"num_blocks": -1}, {"num_blocks": 1.5}, {"num_blocks": None}, {"block_size": 2**32}, {"block_size": {}}, {"name": 5},
                      {"name": ["X"]}, {"num_blocks": True}):
            check_error(daemon.rpc_error("bdev_null_create", **{**null, **wrong}), *DECODE_FAILED)
        error = daemon.rpc_error("bdev_null_create", **null, bogus=1)
        assert error.data["field"] == "bogus", error.data
        error = daemon.rpc_error("bdev_null_create", **{**null, "num_blocks": "eight"})
        assert error.data["field"] == "num_blocks" and error.data["given"], error.data
        assert daemon.rpc("bdev_get_bdevs") == []


def test_integers_beyond_64_bits():
    """Refused: as a wrong value, or as JSON that this implementation does not read (RFC 8259, 9)."""
    with Daemon() as daemon, daemon.rpc_client() as client:
        for number in (2**64, 10**30, -2**70):
            reply = client.exchange(json.dumps(request("bdev_null_create", params={
                "name": "X", "num_blocks": number, "block_size": 512})))
            assert reply["error"]["code"] in (-32603, -32700), reply
            check_data(reply["error"].get("data"))
            client.close()
            client.__init__(daemon.rpc_path)
        assert daemon.rpc("bdev_get_bdevs") == []


def test_relaxed_decoder_ignores_unknown_keys():
    """vhost_create_blk_controller has SPDK's relaxed decoder: clients send it keys of other versions."""
    with Daemon() as daemon:
        daemon.rpc("bdev_null_create", name="N", num_blocks=64, block_size=512)
        assert daemon.rpc("vhost_create_blk_controller", ctrlr="c", dev_name="N", no_such_key=1) is True


def test_errors_of_bdevs():
    with Daemon() as daemon:
        daemon.rpc("bdev_null_create", name="Null0", num_blocks=8, block_size=512)
        check_error(daemon.rpc_error("bdev_get_bdevs", name="nope"), -19, NO_DEVICE)
        check_error(daemon.rpc_error("bdev_get_iostat", names=["nope"]), -19)
        check_error(daemon.rpc_error("bdev_null_create", name="Null0", num_blocks=8, block_size=512), -17, EXISTS)
        check_error(daemon.rpc_error("bdev_malloc_create", name="Null0", num_blocks=8, block_size=512), -17,
                    EXISTS)
        for size in (513, 0, 1, 511):
            check_error(daemon.rpc_error("bdev_malloc_create", name="X", num_blocks=8, block_size=size), -22,
                        INVALID)
        check_error(daemon.rpc_error("bdev_malloc_create", name="X", num_blocks=0, block_size=512), -22, INVALID)
        for kind in ("null", "malloc", "aio", "uring", "delay"):
            check_error(daemon.rpc_error(f"bdev_{kind}_delete", name="nope"), -19, NO_DEVICE)
        check_data(daemon.rpc_error("bdev_malloc_delete", name="Null0").data)
        assert daemon.rpc("bdev_get_bdevs")[0]["name"] == "Null0", "deleted by another driver's method"
        check_error(daemon.rpc_error("bdev_delay_create", name="D", base_bdev_name="nope", avg_read_latency=1,
                                     p99_read_latency=1, avg_write_latency=1, p99_write_latency=1), -19, NO_DEVICE)


def test_huge_malloc_is_refused():
    """More memory than there is: an error, not the kernel's out-of-memory killer."""
    with Daemon() as daemon:
        for blocks in (1 << 50, (1 << 63) - 1, 1 << 55):
            error = daemon.rpc_error("bdev_malloc_create", name="X", num_blocks=blocks, block_size=512)
            assert error.code in (-12, -22, -32603), error
            check_data(error.data)
        assert_alive(daemon)


def test_bdev_in_use():
    with Daemon() as daemon:
        path = daemon.malloc_disk()
        check_error(daemon.rpc_error("bdev_malloc_delete", name="Malloc0"), -16, "Device or resource busy")
        with vu.Guest(path) as guest:
            guest.ring.check()
            check_error(daemon.rpc_error("bdev_malloc_delete", name="Malloc0"), -16, "Device or resource busy")
            check_error(daemon.rpc_error("vhost_delete_controller", ctrlr="disk"), -32602,
                        "Device or resource busy")
            guest.ring.check()
        daemon.delete_controller("disk")
        assert not os.path.exists(path), "socket left behind"
        assert daemon.rpc("bdev_malloc_delete", name="Malloc0") is True


def test_base_bdev_in_use():
    with Daemon() as daemon:
        daemon.delayed_disk()
        check_error(daemon.rpc_error("bdev_malloc_delete", name="Base0"), -16, "Device or resource busy")
        check_error(daemon.rpc_error("bdev_delay_delete", name="Base0-delay"), -16, "Device or resource busy")
        daemon.delete_controller("slow")
        assert daemon.rpc("bdev_delay_delete", name="Base0-delay") is True
        assert daemon.rpc("bdev_malloc_delete", name="Base0") is True


def test_errors_of_files():
    with Daemon() as daemon:
        with open(daemon.path("short"), "wb") as file:
            file.write(b"x" * 100)
        for kind in ("aio", "uring"):
            create = f"bdev_{kind}_create"
            check_error(daemon.rpc_error(create, name="X", filename="/nonexistent", block_size=512), -2,
                        "No such file or directory")
            check_error(daemon.rpc_error(create, name="X", filename=daemon.path("short"), block_size=512), -22,
                        INVALID)
            for filename in ("", daemon.directory, "/dev/zero", daemon.rpc_path, "x" * 5000):
                error = daemon.rpc_error(create, name="X", filename=filename, block_size=512)
                assert error.code < 0
                check_data(error.data)
        assert daemon.rpc("bdev_get_bdevs") == []


def test_errors_of_controllers():
    with Daemon() as daemon:
        daemon.malloc_disk(ctrlr="c")
        create = "vhost_create_blk_controller"
        check_error(daemon.rpc_error(create, ctrlr="vhost.9", dev_name="nope"), -32602, NO_DEVICE)
        check_error(daemon.rpc_error(create, ctrlr="c", dev_name="Malloc0"), -32602, EXISTS)
        check_error(daemon.rpc_error("vhost_delete_controller", ctrlr="nope"), -32602, NO_DEVICE)
        check_error(daemon.rpc_error("vhost_get_controllers", name="nope"), -32603, NO_DEVICE)
        absent = max(two_cpus()) + 40
        for mask in (hex(1 << absent), "0x0", f"[{absent}]", "nonsense", "0xg", "0x" + "f" * 400):
            error = daemon.rpc_error(create, ctrlr="d", dev_name="Malloc0", cpumask=mask)
            check_error(error, -32602, INVALID)
        check_data(daemon.rpc_error(create, ctrlr="d").data)
        for name in ("", ".", "..", "../evil", "a/b", "/tmp/evil", "x" * 120, "x" * 5000):
            error = daemon.rpc_error(create, ctrlr=name, dev_name="Malloc0")
            check_data(error.data)
        assert os.listdir(daemon.vhost_directory) == ["c"]
        assert not os.path.exists(daemon.path("evil")) and not os.path.exists("/tmp/evil")


def test_vhost_folder_missing():
    with Daemon() as daemon:
        daemon.rpc("bdev_null_create", name="N", num_blocks=64, block_size=512)
        os.rmdir(daemon.vhost_directory)
        error = daemon.rpc_error("vhost_create_blk_controller", ctrlr="c", dev_name="N")
        assert error.code == -32602, error
        check_data(error.data)
        os.mkdir(daemon.vhost_directory)
        assert daemon.rpc("vhost_create_blk_controller", ctrlr="c", dev_name="N") is True


def test_vhost_folder_not_writable():
    # Root may write to any folder, so it needs another user for this.
    with Daemon(user=65534 if os.geteuid() == 0 else None) as daemon:
        daemon.rpc("bdev_null_create", name="N", num_blocks=64, block_size=512)
        os.chmod(daemon.vhost_directory, 0o555)
        error = daemon.rpc_error("vhost_create_blk_controller", ctrlr="c", dev_name="N")
        check_error(error, -32602, "Permission denied")
        os.chmod(daemon.vhost_directory, 0o755)
        assert daemon.rpc("vhost_create_blk_controller", ctrlr="c", dev_name="N") is True


def test_a_file_in_the_place_of_a_socket_is_not_removed():
    with Daemon() as daemon:
        daemon.rpc("bdev_null_create", name="N", num_blocks=64, block_size=512)
        precious = daemon.vhost_path("c")
        with open(precious, "w", encoding="utf-8") as file:
            file.write("precious")
        check_data(daemon.rpc_error("vhost_create_blk_controller", ctrlr="c", dev_name="N").data)
        with open(precious, encoding="utf-8") as file:
            assert file.read() == "precious"
        os.unlink(precious)
        assert daemon.rpc("vhost_create_blk_controller", ctrlr="c", dev_name="N") is True


def test_create_and_delete_many():
    """Names are free again at once; nothing is kept."""
    with Daemon() as daemon, daemon.rpc_client() as client:
        def cycle():
            client.call("bdev_malloc_create", {"name": "M", "num_blocks": 64, "block_size": 512})
            client.call("vhost_create_blk_controller", {"ctrlr": "c", "dev_name": "M"})
            client.call("vhost_delete_controller", {"ctrlr": "c"})
            client.call("bdev_malloc_delete", {"name": "M"})
        for _ in range(10):
            cycle()
        with daemon.no_leak(rss_kib=2048):
            for _ in range(200):
                cycle()


# -- spdk_kill_instance and the command line ------------------------------------------------------------------


def test_kill_instance():
    for name in ("SIGTERM", "SIGINT"):
        with Daemon() as daemon:
            check_data(daemon.rpc_error("spdk_kill_instance", sig_name="NONSENSE").data)
            assert daemon.rpc("spdk_kill_instance", sig_name=name) is True
            assert daemon.wait() == 0
            assert not os.path.exists(daemon.rpc_path)


def rpc_command(daemon, *words):
    return run_riffle("rpc", "-s", daemon.rpc_path, *words)


def test_command_line():
    with Daemon() as daemon:
        done = rpc_command(daemon, "bdev_malloc_create", "name=M0", "num_blocks=64", "block_size=512")
        assert done.returncode == 0 and json.loads(done.stdout) == "M0", done
        done = rpc_command(daemon, "bdev_malloc_create", '{"name":"M1","num_blocks":64,"block_size":512}')
        assert done.returncode == 0 and json.loads(done.stdout) == "M1", done
        done = rpc_command(daemon, "bdev_get_bdevs")
        assert [b["name"] for b in json.loads(done.stdout)] == ["M0", "M1"]
        done = rpc_command(daemon, "vhost_create_blk_controller", "ctrlr=c", "dev_name=M0", "readonly=true")
        assert done.returncode == 0 and json.loads(done.stdout) is True, done
        done = rpc_command(daemon, "bdev_get_iostat", '{"names":["M0"]}')
        assert json.loads(done.stdout)["bdevs"][0]["name"] == "M0"


def test_command_line_errors():
    with Daemon() as daemon:
        for words in (("bdev_get_bdevs", "name=nope"), ("no_such_method",), ("bdev_null_create", "name=X"),
                      ("bdev_null_create", "{broken"), ()):
            done = rpc_command(daemon, *words)
            assert done.returncode != 0, words
            assert done.stderr.strip() and " " in done.stderr.strip(), (words, done.stderr)
            assert not done.stdout.strip() or words == (), done.stdout
        assert rpc_command(daemon, "bdev_get_bdevs", "name=nope").returncode == 1
    done = run_riffle("rpc", "-s", "/nonexistent/socket", "bdev_get_bdevs")
    assert done.returncode == 1 and "/nonexistent/socket" in done.stderr, done


def test_unknown_options():
    for words in (("serve", "--no-such-option"), ("serve", "-m", "nonsense"), ("no_such_command",), ("serve", "x")):
        done = subprocess.run([RIFFLE, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=20, check=False)
        assert done.returncode not in (0, -signal.SIGSEGV, -signal.SIGABRT), (words, done.returncode)
        assert done.stderr.strip(), words


def test_rpc_and_io_together():
    """Control work on other objects does not disturb a running disk."""
    with hostile_disk() as (daemon, path), vu.Guest(path) as guest, daemon.rpc_client() as client:
        for i in range(100):
            client.send_request("bdev_malloc_create", {"name": f"T{i}", "num_blocks": 2048, "block_size": 512})
            client.send_request("bdev_get_iostat")
            guest.ring.check(i)
            client.send_request("bdev_malloc_delete", {"name": f"T{i}"})
            for _ in range(3):
                assert "result" in client.receive()


def test_nvme_without_a_device():
    """What is asked of NVMe controllers that are not there, or in a way that cannot be."""
    with Daemon() as daemon:
        assert daemon.rpc("bdev_nvme_get_controllers") == []
        assert daemon.rpc("bdev_nvme_set_options", timeout_us=0, transport_retry_count=4, enable_flush=True) is True
        for method, params, code in (
                ("bdev_nvme_attach_controller", {"name": "N", "trtype": "TCP", "traddr": "192.0.2.1"}, -22),
                ("bdev_nvme_attach_controller", {"name": "N", "trtype": "PCIe", "traddr": "0000:0l:00.0"}, -22),
                ("bdev_nvme_attach_controller", {"name": "N", "trtype": "pcie", "traddr": "0000:7f:1f.7"}, -19),
                ("bdev_nvme_detach_controller", {"name": "N"}, -19),
                ("bdev_nvme_reset_controller", {"name": "N"}, -19),
                ("bdev_nvme_get_controllers", {"name": "N"}, -19),
                ("bdev_nvme_set_options", {"timeout_us": 2**62}, -22),  # ticks would overflow
                ("bdev_nvme_set_options", {"io_queue_entries": 1}, -22),
                ("bdev_nvme_send_cmd", {"name": "N", "cmd_type": "admin", "data_direction": "c2h", "cmdbuf": "BgA="}, -22),
                ("bdev_nvme_send_cmd", {"name": "N", "cmd_type": "both", "data_direction": "c2h", "cmdbuf": "BgA="}, -22)):
            error = daemon.rpc_error(method, **params)
            assert error.code == code, (method, params, error)
