"""Does a recording name nobody, and still say everything that is judged?"""

from __future__ import annotations

import pytest

from wellfed.host.identifiers import collect, replace_identifiers, replace_names
from wellfed.host.recorded_tree import RecordedTree
from wellfed.host.redact import redact, redact_answer, redact_recording
from wellfed.model.tree import Unreadable

GPU = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
FIRST = "GPU-00000001-0000-0000-0000-000000000001"
MIG = "MIG-377e0049-554c-540b-93c6-d0976f8426cb"
CONTAINER = "3f2a9c4b5d6e7f80112233445566778899aabbccddeeff00a1b2c3d4e5f60718"


def hidden(text, *, hosts=(), people=()):
    """Replace the identifiers and names of one text."""
    known = collect([text], hosts=hosts, people=people)
    return replace_names(replace_identifiers(text, known), known)


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        (GPU, FIRST),
        (f"{GPU},{MIG}", f"{FIRST},MIG-00000002-0000-0000-0000-000000000002"),
        (f"{GPU} GPU-8932f937 GPU-89", f"{FIRST} GPU-00000001 GPU-00000001"),
        (f"MIG-{GPU}/1/0", f"MIG-{FIRST}/1/0"),
        ("GPU-18f3a1b2c3d4e5f6", "GPU-0000000000000001"),
        ("unique_id 1797858364402169334", "unique_id 1"),
        (
            "GPU-18f3a1b2c3d4e5f6\nunique_id 1797958465412720118",
            "GPU-0000000000000001\nunique_id 1",
        ),
        ("pod8932f937_d72c_4106_c12f_20bd9faed9f6", "pod00000001_0000_0000_0000_000000000001"),
        (f"/docker/{CONTAINER}", "/docker/" + "1".zfill(64)),
        ("link/ether 3c:ec:ef:12:34:56", "link/ether 00:00:00:00:00:01"),
        ("3C-EC-EF-12-34-56 3c:ec:ef:12:34:56", "00-00-00-00-00-01 00:00:00:00:00:01"),
        ("80:00:02:08:fe:80:00:00:00:00:00:00:50:6b:4b:03:00:ab:cd:ef", "00:" * 19 + "01"),
        ("enx3cecef123456 3c:ec:ef:12:34:56", "enx000000000001 00:00:00:00:00:01"),
        ("506b:4b03:00ab:cdef", "0000:0000:0000:0001"),
        ("fe80:0000:0000:0000:506b:4b03:00ab:cdef", "0000:" * 7 + "0001"),
        ("192.168.7.21:2049", "10.0.0.1:2049"),
        ("2001:db8::42", "fd00::1"),
        ("2001:db8:7::/48", "fd00::1/48"),
    ],
)
def test_identifiers_keep_their_form(text, instead):
    """A pseudonym looks like what it replaces, and joins what was joined."""
    assert hidden(text) == instead


@pytest.mark.parametrize(
    "text",
    [
        "0000:3b:00.0 0000:3b:00.1",
        "00010000:3b:00.0",
        "0::/user.slice",
        "12:pids:/",
        "ffffffff,ffffffff,00000000,0000ffff",
        "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
        "0x" + "f" * 40,
        "00000000-0000-0000-0000-000000000000x"[:8],
        "535.104.05 570.86.15 96.00.74.00.01 G520.0200.00.05",
        "v5.8.1.1",
        "127.0.0.1 0.0.0.0 255.255.255.0",
        "00:00:00:00:00:00 ff:ff:ff:ff:ff:ff",
        "PCI-MSIX-0000:3b:00.0   12-edge      mlx5_comp3@pci:0000:3b:00.0",
        "0-3,8-11 10 21",
        "Linux 6.1.0 1.2.3",
        "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00",
        "cpu  1234567 12 3456789 123456789 12345 0 12345 0 0 0",
    ],
)
def test_what_is_judged_stays(text):
    """Addresses of PCI devices, masks, versions and counters are no identity."""
    assert hidden(text) == text


def test_an_unknown_identifier_becomes_zeros():
    """What was not collected is hidden all the same."""
    known = collect([GPU])

    assert replace_identifiers("8932f937-0000-1111-2222-20bd9faed9f6", known).startswith(
        "00000000-0000"
    )


def test_hiding_twice_changes_nothing():
    """A recording without names is a recording like any other."""
    once = hidden(f"{GPU} {MIG} {CONTAINER} 3c:ec:ef:12:34:56 192.168.1.9 unique_id 77")

    assert hidden(once) == once


def test_large_texts_are_looked_at_too():
    """A text of megabytes is looked at word by word, and says the same otherwise."""
    table = "\n".join(
        f"{irq}: {irq * 7} {irq * 11} PCI-MSIX-0000:3b:00.0 eth0" for irq in range(5000)
    )

    assert hidden(f"{table} {GPU} enx3cecef123456") == f"{table} {FIRST} enx000000000001"
    assert hidden(table) == table


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("gpu-a17 said", "host said"),
        ("gpu-a17.cluster.example.com:29500", "host:29500"),
        ("nfs@gpu-a17:/export", "nfs@host:/export"),
        ("/home/alice/x", "/home/user/x"),
        ("user-alice.slice", "user-user.slice"),
        ("gpu-a171 malice alice2", "gpu-a171 malice alice2"),
    ],
)
def test_names_are_hidden_as_words(text, instead):
    """A name inside another word is another word."""
    assert hidden(text, hosts=["gpu-a17.cluster.example.com"], people=["alice"]) == instead


@pytest.mark.parametrize("name", ["node", "node0", "cpu", "vm", "root", "localhost", "ab", ""])
def test_names_of_everybody_stay(name):
    """A host called node0 is not found by its name, and /sys is full of that word."""
    assert hidden(f"/sys/devices/system/{name}/x", hosts=[name]) == f"/sys/devices/system/{name}/x"


KNOWN = collect([GPU], hosts=["gpu-a17"], people=["alice"])


@pytest.mark.parametrize(
    ("path", "text", "instead"),
    [
        (
            "/proc/version",
            "Linux version 5.15.0-91-generic (builder@lcy02-amd64-045) (gcc (Ubuntu) 11.4.0) #101 SMP",
            "Linux version 5.15.0 (hidden) (gcc (Ubuntu) 11.4.0) #101 SMP",
        ),
        ("/proc/sys/kernel/osrelease", "6.1.0.custom-alice\n", "6.1.0\n"),
        ("/proc/sys/kernel/hostname", "gpu-a17\n", "hidden\n"),
        ("/sys/class/dmi/id/product_serial", "A123456X\n", "hidden\n"),
        ("/sys/class/nvme/nvme0/serial", "S6EUNA0R\n", "hidden\n"),
        ("/sys/class/infiniband/mlx5_0/node_desc", "gpu-a17 HCA-1\n", "hidden\n"),
        ("/proc/1/cmdline", "python\0train.py\0--token=x", "hidden\n"),
        ("/proc/net/tcp", "0: 0100007F:0CEA 00000000:0000 0A\n", "hidden\n"),
        (
            "/proc/driver/nvidia/gpus/0000:3b:00.0/information",
            f"GPU UUID: {GPU}\n",
            f"GPU UUID: {FIRST}\n",
        ),
        ("/proc/cpuinfo", "Serial\t\t: 10000000abcdef01\n", "Serial\t\t: hidden\n"),
        (
            "/proc/cmdline",
            "BOOT_IMAGE=/boot/vmlinuz-6.8-acme root=UUID=8932f937-d72c-4106-c12f-20bd9faed9f6 ro quiet isolcpus=2-7"
            " iommu.passthrough=1 ip=10.1.2.3::10.1.2.1:255.255.255.0:gpu-a17 systemd.unified_cgroup_hierarchy=1"
            " intel_iommu=on,sm_on ds=nocloud;s=http://x/ /init console=ttyS0,115200n8\n",
            "BOOT_IMAGE=hidden root=hidden ro quiet isolcpus=2-7 iommu.passthrough=1 ip=hidden"
            " systemd.unified_cgroup_hierarchy=1 intel_iommu=on,sm_on ds=hidden hidden console=ttyS0,115200n8\n",
        ),
        (
            "/proc/mounts",
            "/dev/nvme0n1p2 / ext4 rw,relatime 0 0\n"
            "filer7:/vol/alice /home/alice/data nfs4 rw,vers=4.2,addr=10.9.8.7,username=alice 0 0\n"
            "overlay / overlay rw,lowerdir=/var/lib/docker/x:/y,index=off 0 0\n"
            "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n"
            "cgroup /cg/acme cgroup rw,name=acme 0 0\n",
            "/dev/nvme0n1p2 / ext4 rw,relatime 0 0\n"
            "hidden /home/hidden/data nfs4 rw,vers=4.2,addr=10.0.0.0,username=hidden 0 0\n"
            "overlay / overlay rw,lowerdir=hidden,index=off 0 0\n"
            "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n"
            "cgroup /cg/acme cgroup rw,name=acme 0 0\n",
        ),
        (
            "/proc/self/mountinfo",
            "36 35 0:31 /alice/sub /mnt/projects rw shared:1 - nfs filer7:/vol rw,vers=3\n"
            "24 23 0:22 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
            "36 35 0:31 /hidden/hidden /mnt/hidden rw shared:1 - nfs hidden rw,vers=3\n"
            "24 23 0:22 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
        ),
        (
            "/proc/swaps",
            "Filename\tType\n/dev/dm-1 partition 8 0 -2\n/home/alice/swap file 8 0 -3\n",
            "Filename\tType\n/dev/dm-1 partition 8 0 -2\n/hidden file 8 0 -3\n",
        ),
        (
            "/etc/nccl.conf",
            "# by alice\nNCCL_IB_HCA=mlx5_0\nNCCL_TOPO_FILE=/home/alice/t.xml\n",
            "# hidden\nNCCL_IB_HCA=mlx5_0\nNCCL_TOPO_FILE=/hidden\n",
        ),
        ("/etc/hosts", "10.0.0.1 gpu-a17\n", "hidden\n"),
        ("/sys/devices/system/node/node0/cpulist", "0-3\n", "0-3\n"),
    ],
)
def test_files_by_what_they_hold(path, text, instead):
    """Each kind of file loses what names somebody, and keeps what is judged."""
    assert redact(path, text, KNOWN) == instead


def test_environment_keeps_what_decides_a_launch():
    """Libraries keep their names, GPUs their order, addresses and folders go."""
    text = "\n".join(
        (
            f"CUDA_VISIBLE_DEVICES={GPU},GPU-8932f937",
            "JAX_COORDINATOR_ADDRESS=gpu-a17:1234",
            "LD_PRELOAD=/home/alice/lib/libjemalloc.so.2 /usr/lib/libgomp.so.1 lib-alice.so",
            "MASTER_ADDR=gpu-a17.example.com",
            "MASTER_PORT=29500",
            "NCCL_SOCKET_IFNAME=eth0",
            "NCCL_TOPO_FILE=/home/alice/topo.xml",
            "OMP_NUM_THREADS=8",
            "SLURM_CPU_BIND=quiet,mask_cpu:0x000000000000000000000000000000FF",
            "SLURM_JOB_NAME=secret-project",
            "CUDA_HOME=/usr/local/cuda-12.4",
            "CUDA_CACHE_PATH=/usr/local/secret-project",
            "NCCL_DEBUG_FILE=secret-project/log",
            "NCCL_NET_PLUGIN=/lib/../home/secret-project/libnet.so",
            "TORCH_HOME=",
            "UCX_LOG_FILE=/dev/shm/secret-project",
        )
    )

    assert redact_answer("environ", text, KNOWN).split("\n") == [
        "CUDA_CACHE_PATH=/hidden",
        "CUDA_HOME=/usr/local/cuda-12.4",
        f"CUDA_VISIBLE_DEVICES={FIRST},GPU-00000001",
        "JAX_COORDINATOR_ADDRESS=hidden",
        "LD_PRELOAD=libjemalloc.so.2:libgomp.so.1:lib-user.so",
        "MASTER_ADDR=hidden",
        "MASTER_PORT=29500",
        "NCCL_DEBUG_FILE=hidden",
        "NCCL_NET_PLUGIN=/hidden",
        "NCCL_SOCKET_IFNAME=eth0",
        "NCCL_TOPO_FILE=/hidden",
        "OMP_NUM_THREADS=8",
        "SLURM_CPU_BIND=quiet,mask_cpu:0x000000000000000000000000000000FF",
        "TORCH_HOME=",
        "UCX_LOG_FILE=/hidden",
    ]


def test_one_process_alone_keeps_its_address():
    """127.0.0.1 is nobody's address."""
    assert redact_answer("environ", "MASTER_ADDR=127.0.0.1", KNOWN) == "MASTER_ADDR=127.0.0.1"


def test_nvml_loses_serial_numbers_and_stays_readable():
    """The answers of NVML keep their form, so that whoever reads them still can."""
    from wellfed.gpus.nvml_log import parse_calls

    text = (
        f'nvmlDeviceGetUUID gpu0 = "{GPU}"\n'
        'nvmlDeviceGetSerial gpu0 = "1652322010757"\n'
        "nvmlDeviceGetBoardId gpu0 = 6912\n"
        "nvmlDeviceGetSerial gpu1 = !NVML_ERROR_NOT_SUPPORTED\n"
        'nvmlDeviceGetPlatformInfo gpu0 = {"chassisSerialNumber": "1820523190123", "slotNumber": 3, "ibGuid": [1, 2]}\n'
        'nvmlDeviceGetGpuFabricInfoV gpu0 = {"clusterUuid": "8932f937d72c4106c12f20bd9faed9f6", "state": 3}\n'
        'nvmlDeviceGetPciInfo_v3 gpu0 = {"busId": "00000000:1B:00.0", "domain": 0}\n'
    )

    said = redact_answer("nvml", text, KNOWN)

    calls = {(call.function, *map(str, call.arguments)): call.answer for call in parse_calls(said)}
    answers = list(calls.values())
    assert answers[:3] == [FIRST, "hidden", 0]
    assert answers[4] == {"chassisSerialNumber": "hidden", "slotNumber": 3, "ibGuid": ()}
    assert answers[5] == {"clusterUuid": "hidden", "state": 3}
    assert answers[6] == {"busId": "00000000:1B:00.0", "domain": 0}


def test_recording_stays_joined():
    """A cgroup is found under the name that /proc/self/cgroup gives it, a GPU under the UUID of its driver."""
    recording = RecordedTree(
        "host",
        {
            "/proc/self/cgroup": f"0::/docker/{CONTAINER}\n".encode(),
            f"/sys/fs/cgroup/docker/{CONTAINER}/cpu.max": b"max 100000\n",
            "/sys/class/kfd/kfd/topology/nodes/1/properties": b"simd_count 4\nunique_id 1797958465412720118\n",
            "/sys/devices/pci0000:00/0000:01:00.0/unique_id": b"18f3a1b2c3d4e5f6\n",
        },
        links={f"/sys/devices/{GPU[4:]}/a": "../b"},
        errnos={f"/sys/fs/cgroup/docker/{CONTAINER}/memory.max": "EACCES"},
        directories={"/sys/fs/cgroup/docker": (CONTAINER,)},
        answers={"environ": f"CUDA_VISIBLE_DEVICES={GPU}", "fifo": Unreadable("EPERM")},
        second={f"/sys/fs/cgroup/docker/{CONTAINER}/cpu.stat": b"usage 1\n"},
        complete=False,
    )

    done = redact_recording(recording)

    made = done.recording
    cgroup = made.read("/proc/self/cgroup").removeprefix("0::")
    assert CONTAINER not in cgroup
    assert made.list("/sys/fs/cgroup/docker") == (cgroup.rpartition("/")[2],)
    assert made.read(f"/sys/fs/cgroup{cgroup}/cpu.max") == "max 100000"
    assert made.read(f"/sys/fs/cgroup{cgroup}/memory.max") == Unreadable("EACCES")
    assert made.second == {f"/sys/fs/cgroup{cgroup}/cpu.stat": b"usage 1\n"}
    assert made.answer("fifo") == Unreadable("EPERM")
    assert made.read("/sys/class/kfd/kfd/topology/nodes/1/properties").endswith("unique_id 1")
    assert made.read("/sys/devices/pci0000:00/0000:01:00.0/unique_id") == "0000000000000001"
    assert dict(done.hidden)["id"] == 3
    assert not made.complete


def test_a_cgroup_tells_nothing_of_its_children():
    """Slices, containers and jobs beside the one that was recorded have names, and are only said to be there."""
    recording = RecordedTree(
        "host",
        {"/sys/fs/cgroup/alice.slice/cpu.max": b"max 100000\n"},
        directories={
            "/sys/fs/cgroup": ("alice.slice", "cgroup.procs", "bob.slice", "cpu.stat", "moonshot")
        },
        complete=False,
    )

    made = redact_recording(recording, people=["alice"]).recording

    assert made.list("/sys/fs/cgroup") == ("cgroup.procs", "cpu.stat", "hidden", "user.slice")
    assert made.read("/sys/fs/cgroup/user.slice/cpu.max") == "max 100000"


def test_cgroups_lose_the_names_of_people():
    """Whose slice it is nobody needs to know; that it is the same slice everybody does."""
    recording = RecordedTree(
        "host",
        {
            "/proc/self/cgroup": b"0::/user.slice/user-alice.slice\n",
            "/sys/fs/cgroup/user.slice/user-alice.slice/cpu.max": b"max 100000\n",
        },
    )

    made = redact_recording(recording, people=["alice"]).recording

    assert made.read("/proc/self/cgroup") == "0::/user.slice/user-user.slice"
    assert made.read("/sys/fs/cgroup/user.slice/user-user.slice/cpu.max") == "max 100000"
