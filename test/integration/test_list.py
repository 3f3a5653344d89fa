"""`riffle list` on a machine made of files."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile

from daemon import RIFFLE


class Machine:
    """/sys and /proc of a machine, in a folder."""

    def __init__(self):
        self.root = tempfile.mkdtemp(prefix="riffle-list-")
        self.write("proc/self/mountinfo", "")
        self.write("proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n")
        os.makedirs(self.path("sys/bus/pci/devices"))

    def path(self, *parts):
        return os.path.join(self.root, *parts)

    def write(self, name, text, mode="w"):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), mode, encoding="utf-8") as file:
            file.write(text)

    def link(self, name, target):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        os.symlink(target, self.path(name))

    def device(self, bdf, driver=None, pci_class="0x010802", **attributes):
        folder = f"sys/bus/pci/devices/{bdf}"
        for name, value in {"class": pci_class, "vendor": "0x144d", "device": "0xa80a", "numa_node": "0",
                            "current_link_speed": "8.0 GT/s PCIe", "current_link_width": "4",
                            "max_link_speed": "16.0 GT/s PCIe", "max_link_width": "4", **attributes}.items():
            if value is not None:
                self.write(f"{folder}/{name}", value + "\n")
        if driver:
            self.link(f"{folder}/driver", f"../../../bus/pci/drivers/{driver}")
        return folder

    def nvme(self, bdf, number, namespaces=(1,), multipath=False, **attributes):
        folder = self.device(bdf, "nvme", **attributes) + f"/nvme/nvme{number}"
        self.write(f"{folder}/model", "Samsung SSD 980 PRO 1TB                 \n")
        self.write(f"{folder}/serial", f"S5GXNF0R12345{number}  \n")
        self.write(f"{folder}/firmware_rev", "5B2QGXA7\n")
        for nsid in namespaces:
            name = f"nvme{number}c{number}n{nsid}" if multipath else f"nvme{number}n{nsid}"
            self.write(f"{folder}/{name}/size", "0\n")
            self.block(f"nvme{number}n{nsid}", f"259:{number * 10 + nsid}")

    def block(self, name, number, sectors=1953525168, whole=None):
        folder = f"sys/block/{whole}/{name}" if whole else f"sys/block/{name}"
        self.write(f"{folder}/dev", number + "\n")
        self.write(f"{folder}/size", f"{sectors}\n")
        if whole:
            self.write(f"{folder}/partition", "1\n")
        else:
            self.write(f"{folder}/queue/logical_block_size", "512\n")
        os.makedirs(self.path(folder, "holders"), exist_ok=True)
        return folder

    def mount(self, number, where, source):
        self.write("proc/self/mountinfo", f"36 35 {number} / {where} rw,relatime shared:1 - ext4 {source} rw\n", "a")

    def list(self, *words):
        done = subprocess.run([RIFFLE, "list", "--root", self.root, *words], capture_output=True, text=True, timeout=10, check=False)
        assert done.returncode == 0 and not done.stderr, done
        return json.loads(done.stdout) if "--json" in words else done.stdout


@contextlib.contextmanager
def machine():
    made = Machine()
    try:
        yield made
    finally:
        shutil.rmtree(made.root)


def test_no_device():
    with machine() as m:
        m.device("0000:00:1f.2", "ahci", pci_class="0x010601")
        assert "no NVMe device" in m.list()
        assert m.list("--json") == []
        shutil.rmtree(m.path("sys"))
        assert m.list("--json") == []


def test_devices_in_order():
    with machine() as m:
        m.nvme("10000:e1:00.0", 2)
        m.device("0000:81:00.0", "vfio-pci", current_link_width="255", numa_node="-1")
        m.nvme("0000:01:00.0", 0, namespaces=(10, 1, 7))
        m.link("sys/bus/pci/devices/0000:01:00.0/iommu_group", "../../../kernel/iommu_groups/14")
        first, second, third = m.list("--json")
        assert [d["bdf"] for d in (first, second, third)] == ["0000:01:00.0", "0000:81:00.0", "10000:e1:00.0"]
        assert first["model"] == "Samsung SSD 980 PRO 1TB" and first["serial"] == "S5GXNF0R123450"
        assert first["driver"] == "nvme" and first["iommu_group"] == 14 and first["pci_ids"] == "144d:a80a"
        assert first["link"] == {"gt_per_s": 8.0, "width": 4} and first["link_possible"] == {"gt_per_s": 16.0, "width": 4}
        assert [n["name"] for n in first["namespaces"]] == ["nvme0n1", "nvme0n7", "nvme0n10"]
        assert all(n["size"] == 1953525168 * 512 and n["used_by"] == [] for n in first["namespaces"])
        assert second["driver"] == "vfio-pci" and second["link"] is None and second["numa_node"] == -1
        assert "model" not in second and "namespaces" not in second
        table = m.list().splitlines()
        assert "8x4 of 16x4" in table[1] and "3.0 TB" in table[1] and table[1].endswith("Samsung SSD 980 PRO 1TB"), table
        assert len(table) == 4 and " - " in table[2]


def test_who_uses_it():
    with machine() as m:
        m.nvme("0000:01:00.0", 0)
        m.block("nvme0n1p1", "259:101", whole="nvme0n1")
        m.block("nvme0n1p2", "259:102", whole="nvme0n1")
        m.block("nvme0n1p3", "259:103", whole="nvme0n1")
        for holder, attributes in (("dm-3", {"dm/name": "vg0-root", "dm/uuid": "LVM-abcdef"}), ("dm-4", {"dm/name": "secret", "dm/uuid": "CRYPT-1"}),
                                   ("md127", {})):
            os.makedirs(m.path("sys/block/nvme0n1/nvme0n1p2/holders", holder))
            for name, value in attributes.items():
                m.write(f"sys/block/{holder}/{name}", value + "\n")
        m.mount("259:101", r"/srv/my\040files", "/dev/nvme0n1p1")
        m.mount("0:45", "/btrfs", "/dev/nvme0n1p3")  # a number of its own
        m.mount("8:1", "/", "/dev/sda1")
        m.write("proc/swaps", "/dev/nvme0n1p3   partition\t8388604\t\t0\t\t-2\n", "a")
        (namespace,) = m.list("--json")[0]["namespaces"]
        assert sorted(namespace["used_by"]) == sorted([
            "mounted on /srv/my files", "mounted on /btrfs", "swap on /dev/nvme0n1p3", "part of LVM volume vg0-root",
            "below device mapping secret", "member of MD array md127"]), namespace
        assert m.list().count("is in use:") == 6


def test_multipath_names():
    with machine() as m:
        m.nvme("0000:01:00.0", 3, namespaces=(1, 2), multipath=True)
        m.mount("259:32", "/data", "/dev/nvme3n2")
        found = {n["name"]: n["used_by"] for n in m.list("--json")[0]["namespaces"]}
        assert found == {"nvme3n1": [], "nvme3n2": ["mounted on /data"]}, found


def test_a_kernel_that_tells_odd_things():
    with machine() as m:
        m.device("0000:01:00.0", "nvme", vendor=None, device="", numa_node=None, current_link_speed="Unknown", max_link_width="x" * 500)
        m.nvme("0000:02:00.0", 1, namespaces=())
        m.write("sys/bus/pci/devices/0000:02:00.0/nvme/nvme1/nvme1n1_bad/size", "1\n")
        m.write("sys/bus/pci/devices/0000:02:00.0/nvme/nvme1/" + "n" * 200 + "/size", "1\n")
        m.write("proc/self/mountinfo", "\n36\n36 35 259:1\n" + "x" * 9000 + "\n", "a")
        m.nvme("0000:03:00.0", 4)
        first, second, third = m.list("--json")
        assert first["link"] is None and first["numa_node"] == -1 and first["pci_ids"] == "0000:0000"
        assert second["namespaces"] == [] and third["namespaces"][0]["used_by"] == []
        assert len(m.list().splitlines()) == 4


def test_the_command_line():
    for words, status, text in ((["--jsno"], 2, "--help"), (["nvme0"], 2, "not an option"), (["--help"], 0, "usage")):
        done = subprocess.run([RIFFLE, "list", *words], capture_output=True, text=True, timeout=10, check=False)
        assert done.returncode == status and text in done.stdout + done.stderr, done
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([RIFFLE, "list"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=10, check=False)
        assert done.returncode == 1 and "not complete" in done.stderr, done
