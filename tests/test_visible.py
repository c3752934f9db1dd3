"""Which GPUs does a process see, by the variables of its vendor's runtime?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.machines import device, gpu, machine, mig, uuid
from wellfed.model.machine import Machine
from wellfed.model.value import replace
from wellfed.placement.visible import main_vendor, visible_devices, with_visibility
from wellfed.placement.visible_cuda import parse_number, parse_uuid
from wellfed.placement.visible_rocm import parse_base_0

# What the driver itself answered (CUDA 13.0, one H200, cuInit and cuDeviceGetCount in a fresh process for each value):
# how many devices it showed for CUDA_VISIBLE_DEVICES. § stands for the UUID's digits, ¶ for its first four.
DRIVER_SAYS = {
    "": 0, " ": 0, "0": 1, " 0": 1, "0 ": 1, "\t0": 1, "00": 1, "+0": 1, "-0": 1, "0x0": 1, "0abc": 1, "0.5": 1,
    "abc": 0, "0,0": 0, "0,00": 0, "0,1": 1, "1,0": 0, "0,-1": 1, "-1,0": 0, "-1": 0, "0,abc,0": 1, "0,1,0": 1,
    "0,-1,0": 1, ",0": 0, "0,": 1, "0,,0": 1, "NoDevFiles": 0, "none": 0, "all": 0, "GPU-§": 1, "GPU-¶": 1, "GPU-": 0,
    "GPU": 0, "§": 0, "Gpu-§": 0, " GPU-§": 0, "GPU-§ ": 1, "GPU-§,GPU-§": 0, "GPU-§,0": 1, "0,GPU-§": 1,
    "GPU-¶,GPU-§": 0, "GPU-§,GPU-dead": 1, "GPU-dead,GPU-§": 0, "GPU-§,": 1,
    "4294967296": 1, "4294967295": 0, "18446744073709551616": 0, '"0"': 0, "0;0": 1, "0 0": 1,
    "0:0": 1, "{0}": 0, "0x1": 1, "08": 0, "010": 0, "-4294967296": 1, "-18446744073709551616": 0,
    "9223372036854775808": 1, "18446744073709551615": 0, "\v0": 1, "\n0": 1, "\r0": 1, "0\n": 1, "- 0": 0, "+-0": 0,
    "++0": 0, "GPU-¶zz": 0, "GPU-¶ x": 0, "GPU- §": 0, "GPU-§extra": 1, "GPU-§ab": 1, "GPU-§-": 1, "GPU--§": 1,
    "GPU-¶;GPU-§": 0, "GPU-¶, GPU-§": 1, "GPU-§, 0": 1, "0, GPU-§": 1, "GPU-0x§": 0,
    "GPU-§,MIG-GPU-§/1/0": 1, "0,MIG-§": 1, "0,+0": 0, "0,-0": 0, " 0 , 0 ": 0, " , 0": 0, "0 ,-1,0": 1,
    "GPU-¶ ,GPU-§": 0,
}  # fmt: skip
DIGITS = "47c30d10-b47f-008f-8e03-d63fe8935a36"

FIRST, SECOND = (
    "MIG-377e0049-554c-540b-93c6-d0976f8426cb",
    "MIG-c7384736-a75d-5afc-978f-d2f1294409fd",
)


def eight(**fields: object) -> Machine:
    """Eight GPUs of one model with known UUIDs."""
    return machine({0: "0-3"}, gpus=[gpu(i, 0, **({"uuid": uuid(i)} | fields)) for i in range(8)])


def sliced(known: bool = True) -> Machine:
    """Two GPUs, the second cut into two MIG slices, recorded or not."""
    slices = (mig(FIRST, 1, 0), mig(SECOND, 2, 0)) if known else ()
    return machine({0: "0-3"}, gpus=[gpu(0, 0, uuid=uuid(0)), gpu(1, 0, uuid=uuid(1), mig=slices)])


def seen(host: Machine, vendor: str = "nvidia", **environment: str) -> list[int]:
    """Give the indices of the visible GPUs, in the process's order."""
    found = visible_devices(host, environment, vendor)
    return [host.gpu_at(address).index for address in found.gpus]


@pytest.mark.parametrize("text", DRIVER_SAYS)
def test_a_list_shows_what_the_driver_shows(text):
    """The reading of CUDA_VISIBLE_DEVICES agrees with the driver on every value it was asked about."""
    host = machine({0: "0-3"}, gpus=[gpu(0, 0, uuid=f"GPU-{DIGITS}")])
    spelled = text.replace("§", DIGITS).replace("¶", DIGITS[:4])

    found = visible_devices(host, {"CUDA_VISIBLE_DEVICES": spelled})

    assert found.order_known
    assert len(found.gpus) == DRIVER_SAYS[text]


@pytest.mark.parametrize("text", ["MIG-GPU-§/0/0", "MIG-GPU-§/1/0", "MIG-GPU-§", "MIG-0", "MIG-"])
def test_a_gpu_that_is_not_cut_has_no_slices(text):
    """The driver shows nothing for a slice of a GPU that is not in MIG mode, by whatever form."""
    gpus = [gpu(0, 0, uuid=f"GPU-{DIGITS}"), gpu(1, 0, uuid=uuid(1), mig=(mig(FIRST, 1, 0),))]
    host = machine({0: "0-3"}, gpus=gpus)

    found = visible_devices(host, {"CUDA_VISIBLE_DEVICES": text.replace("§", DIGITS)})

    assert found.order_known
    assert found.gpus == ()


def test_unset_shows_everything():
    """Without a variable every GPU is visible, in PCI order."""
    found = visible_devices(eight(), {})

    assert found.variable is None
    assert len(found.gpus) == 8
    assert found.order_known


def test_order_is_the_lists_order():
    """``3,1`` makes GPU 3 device 0."""
    assert seen(eight(), CUDA_VISIBLE_DEVICES="3,1") == [3, 1]


def test_reading_stops_at_the_first_invalid_entry():
    """``0,2,-1,1`` shows 0 and 2, as the CUDA Programming Guide says."""
    found = visible_devices(eight(), {"CUDA_VISIBLE_DEVICES": "0,2,-1,1"})

    assert len(found.gpus) == 2
    assert any("not read: 1" in note for note in found.notes)


def test_a_gpu_named_twice_hides_all():
    """CUDA fails on a repeated device, by number or by two beginnings of its UUID."""
    by_number = visible_devices(eight(), {"CUDA_VISIBLE_DEVICES": "1,2,1"})
    by_uuid = visible_devices(eight(), {"CUDA_VISIBLE_DEVICES": f"GPU-00000002,{uuid(2)}"})

    assert by_number.gpus == by_uuid.gpus == ()
    assert "twice" in by_number.notes[0]


def test_uuids_may_be_shortened_while_they_are_unique():
    """Enough digits choose a GPU; digits that fit several choose none and end the list."""
    assert seen(eight(), CUDA_VISIBLE_DEVICES="GPU-00000005,GPU-00000003") == [5, 3]
    assert seen(eight(), CUDA_VISIBLE_DEVICES="GPU-00000005,GPU-0000000,GPU-00000003") == [5]


def test_uuids_that_are_not_known_leave_it_open():
    """Without recorded UUIDs a list of them is not an empty list: which GPUs are meant is unknown."""
    found = visible_devices(eight(uuid=None), {"CUDA_VISIBLE_DEVICES": "GPU-8932f937,GPU-11111111"})

    assert not found.order_known
    assert len(found.gpus) == 8
    assert found.num_devices == 2


@pytest.mark.parametrize("text", [SECOND, SECOND[:9], f"MIG-{uuid(1)}/2/0"])
def test_a_slice_appears_under_its_gpu(text):
    """MIG by UUID, by its beginning, and in the form of drivers before 470."""
    found = visible_devices(sliced(), {"CUDA_VISIBLE_DEVICES": text})

    assert found.gpus == ("0000:02:00.0",)
    assert found.mig_uuids == (SECOND,)


def test_the_old_form_names_the_gpu_even_where_slices_are_not_recorded():
    """``MIG-GPU-<uuid>/1/0`` tells whose slice it is without asking the driver."""
    found = visible_devices(sliced(known=False), {"CUDA_VISIBLE_DEVICES": f"MIG-{uuid(1)}/1/0"})

    assert found.gpus == ("0000:02:00.0",)
    assert found.order_known


def test_a_slice_nobody_recorded_is_not_no_gpu():
    """A MIG UUID on a host whose slices are unknown leaves open which GPU it is of."""
    found = visible_devices(sliced(known=False), {"CUDA_VISIBLE_DEVICES": SECOND})

    assert not found.order_known
    assert found.num_devices == 1


def test_a_slice_that_is_not_there_shows_nothing():
    """Where the slices are known, another UUID is invalid."""
    other = "MIG-00000000-0000-5000-8000-000000000000"

    assert seen(sliced(), CUDA_VISIBLE_DEVICES=other) == []
    assert seen(sliced(), CUDA_VISIBLE_DEVICES=f"MIG-{uuid(1)}/7/0") == []


def test_a_gpu_in_mig_mode_stands_for_its_first_slice():
    """Named by number, a GPU that is cut gives CUDA its first slice."""
    found = visible_devices(sliced(), {"CUDA_VISIBLE_DEVICES": "1"})

    assert found.mig_uuids == (FIRST,)


def test_a_process_gets_one_slice_of_its_list():
    """Of two listed slices CUDA shows one; the list stays, for ranks that are given one each."""
    found = visible_devices(sliced(), {"CUDA_VISIBLE_DEVICES": f"{FIRST},{SECOND}"})

    assert found.mig_uuids == (FIRST, SECOND)
    assert found.num_devices == 1
    assert any("one process per slice" in note for note in found.notes)


def test_mixed_gpus_have_no_known_order():
    """On different models the default order is only the driver's to know: candidates, no order, and what to set."""
    host = machine({0: "0-3"}, gpus=[gpu(0, 0, name="RTX 3060"), gpu(1, 0, name="RTX 4090")])

    found = visible_devices(host, {"CUDA_VISIBLE_DEVICES": "0"})

    assert not found.order_known
    assert len(found.gpus) == 2
    assert found.num_devices == 1
    assert any("CUDA_DEVICE_ORDER=PCI_BUS_ID" in note for note in found.notes)


@pytest.mark.parametrize("environment", [
    {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"},
    {"CUDA_VISIBLE_DEVICES": uuid(1)},
])  # fmt: skip
def test_mixed_gpus_are_known_by_pci_order_or_uuid(environment):
    """PCI_BUS_ID and UUIDs need no driver."""
    host = machine(
        {0: "0-3"},
        gpus=[gpu(0, 0, name="RTX 3060", uuid=uuid(0)), gpu(1, 0, name="RTX 4090", uuid=uuid(1))],
    )

    found = visible_devices(host, environment)

    assert found.order_known
    assert found.gpus == ("0000:02:00.0",)


def test_models_are_told_apart_by_pci_device_too():
    """Without names, two PCI device numbers are two models."""
    host = machine(
        {0: "0-3"},
        pci=[device("0000:01:00.0", 0, device="2503"), device("0000:02:00.0", 0, device="2684")],
        gpus=[gpu(0, 0, name=None), gpu(1, 0, name=None)],
    )

    assert not visible_devices(host, {}).order_known


def test_no_order_is_in_doubt_where_nothing_is_visible():
    """An empty list on a mixed host is an empty list."""
    host = machine({0: "0-3"}, gpus=[gpu(0, 0, name="RTX 3060"), gpu(1, 0, name="RTX 4090")])

    found = visible_devices(host, {"CUDA_VISIBLE_DEVICES": ""})

    assert found.gpus == ()
    assert found.order_known


def test_numbers_count_the_gpus_that_can_be_opened():
    """In a container with GPU 4 of eight, device 0 is GPU 4: CUDA numbers what the driver shows."""
    host = eight()
    host = replace(host, gpus=tuple(replace(g, accessible=g.index == 4) for g in host.gpus))

    found = visible_devices(host, {"CUDA_VISIBLE_DEVICES": "0"})

    assert found.gpus == (host.gpus[4].pci_address,)
    assert any("7 GPUs of this host" in note for note in found.notes)


def test_gpus_without_a_uuid_beside_some_with_one_are_not_ours():
    """/proc/driver/nvidia in a container lists the GPUs that were handed in, and no others."""
    host = eight(uuid=None)
    gpus = tuple(replace(g, uuid=uuid(6)) if g.index == 6 else g for g in host.gpus)

    assert seen(replace(host, gpus=gpus)) == [6]


@pytest.mark.parametrize(("environment", "wanted"), [
    ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "4,6"}, [4, 6]),
    ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "5", "SLURM_JOB_GPUS": "4,5"}, [5]),
    ({"CUDA_VISIBLE_DEVICES": "4,6", "SLURM_JOB_GPUS": "4,6"}, [4, 6]),
    ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "0,1"}, [0, 1]),
    ({"CUDA_VISIBLE_DEVICES": "2", "SLURM_JOB_GPUS": "0-3", "SLURM_LOCALID": "2"}, [2]),
    ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "0-3", "SLURM_LOCALID": "0"}, [0]),
    ({"CUDA_VISIBLE_DEVICES": "1", "SLURM_JOB_GPUS": "nonsense"}, [1]),
])  # fmt: skip
def test_slurm_numbers_from_0_inside_its_device_cgroup(environment, wanted):
    """Numbers that Slurm counted inside the job's cgroup are turned back into the host's."""
    assert seen(eight(), **environment) == wanted


def test_slurm_with_a_cgroup_a_task_leaves_it_open():
    """Task 2 sees device 0 of four granted GPUs: which one only the driver knows."""
    environment = {"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "0-3", "SLURM_LOCALID": "2"}

    found = visible_devices(eight(), environment)

    assert not found.order_known
    assert len(found.gpus) == 4
    assert found.num_devices == 1


@pytest.mark.parametrize(("environment", "said"), [
    ({"NVIDIA_VISIBLE_DEVICES": "0,1"}, True),
    ({"NVIDIA_VISIBLE_DEVICES": "all"}, False),
    ({"NVIDIA_VISIBLE_DEVICES": "void"}, False),
    ({"NVIDIA_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "3"}, False),
    ({"NVIDIA_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "0,1"}, True),
])  # fmt: skip
def test_the_container_runtimes_variable_filters_nothing(environment, said):
    """NVIDIA_VISIBLE_DEVICES never hides a GPU; where it seems to, a note says so."""
    found = visible_devices(eight(), environment)

    assert len(found.gpus) == len(
        environment.get("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7").split(",")
    )
    assert any("container runtime" in note for note in found.notes) == said


def test_visible_index_follows_the_list():
    """`Gpu.visible_index` is the position under the variable, None outside it."""
    host = eight()

    found = with_visibility(host, visible_devices(host, {"CUDA_VISIBLE_DEVICES": "5,2"}))

    assert [each.visible_index for each in found.gpus] == [None, None, 1, None, None, 0, None, None]


def test_visible_index_is_none_where_the_order_is_unknown():
    """No number is claimed on a mixed host."""
    host = machine({0: "0-3"}, gpus=[gpu(0, 0, name="A"), gpu(1, 0, name="B")])

    found = with_visibility(host, visible_devices(host, {}))

    assert [each.visible_index for each in found.gpus] == [None, None]


def test_visible_index_ends_where_the_process_gets_no_more():
    """Of two slices only the first has a number in one process."""
    host = machine(
        {0: "0-3"},
        gpus=[gpu(i, 0, uuid=uuid(i), mig=(mig(f"MIG-{i}0000000", 1, 0),)) for i in range(2)],
    )

    found = with_visibility(host, visible_devices(host, {}))

    assert [each.visible_index for each in found.gpus] == [0, None]


def amd(count: int = 4) -> Machine:
    """AMD GPUs with the UUIDs of ROCm."""
    return machine(
        {0: "0-3"},
        gpus=[gpu(i, 0, vendor="amd", uuid=f"GPU-{i:08x}deadbeef") for i in range(count)],
    )


@pytest.mark.parametrize(("environment", "wanted"), [
    ({}, [0, 1, 2, 3]),
    ({"ROCR_VISIBLE_DEVICES": "2,1"}, [2, 1]),
    ({"ROCR_VISIBLE_DEVICES": ""}, []),
    ({"ROCR_VISIBLE_DEVICES": "2, GPU-00000001deadbeef"}, [2, 1]),
    ({"ROCR_VISIBLE_DEVICES": "GPU-00000003"}, [3]),
    ({"ROCR_VISIBLE_DEVICES": "gpu-00000003DEADBEEF"}, [3]),
    ({"ROCR_VISIBLE_DEVICES": "GPU-0000"}, []),
    ({"ROCR_VISIBLE_DEVICES": "0x2,01"}, [2, 1]),
    ({"ROCR_VISIBLE_DEVICES": "1,1,2"}, [1]),
    ({"ROCR_VISIBLE_DEVICES": "1,9,2"}, [1]),
    ({"ROCR_VISIBLE_DEVICES": "1abc,2"}, []),
    ({"HIP_VISIBLE_DEVICES": "3,0"}, [3, 0]),
    ({"HIP_VISIBLE_DEVICES": "3,3,0"}, [3, 0]),
    ({"HIP_VISIBLE_DEVICES": "-1"}, []),
    ({"HIP_VISIBLE_DEVICES": "01"}, []),
    ({"HIP_VISIBLE_DEVICES": " 1"}, []),
    ({"HIP_VISIBLE_DEVICES": ""}, [0, 1, 2, 3]),
    ({"CUDA_VISIBLE_DEVICES": "2"}, [2]),
    ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2"}, [1]),
    ({"ROCR_VISIBLE_DEVICES": "3,2", "HIP_VISIBLE_DEVICES": "1"}, [2]),
    ({"ROCR_VISIBLE_DEVICES": "3,2", "HIP_VISIBLE_DEVICES": "2"}, []),
    ({"HIP_VISIBLE_DEVICES": "GPU-00000003deadbeef,0"}, [3, 0]),
    ({"GPU_DEVICE_ORDINAL": "1"}, [0, 1, 2, 3]),
])  # fmt: skip
def test_rocm_filters_in_two_layers(environment, wanted):
    """ROCr filters first, HIP numbers what is left; each by its own rules."""
    assert seen(amd(), "amd", **environment) == wanted


def test_partitions_are_devices_of_their_own():
    """A GPU in CPX mode is as many HIP devices as it has partitions."""
    host = machine(
        {0: "0-3"},
        gpus=[gpu(0, 0, vendor="amd", mig=(mig("", 0), mig("", 1))), gpu(1, 0, vendor="amd")],
    )

    assert seen(host, "amd") == [0, 0, 1]
    assert seen(host, "amd", ROCR_VISIBLE_DEVICES="1,2") == [0, 1]


def intel(device_id: str = "56a0", count: int = 3) -> Machine:
    """Intel GPUs of one model."""
    addresses = [f"0000:{i + 1:02x}:00.0" for i in range(count)]
    return machine(
        {0: "0-3"},
        pci=[device(address, 0, vendor="8086", device=device_id) for address in addresses],
        gpus=[gpu(i, 0, vendor="intel") for i in range(count)],
    )


@pytest.mark.parametrize(("environment", "wanted"), [
    ({}, [0, 1, 2]),
    ({"ZE_AFFINITY_MASK": "2,0"}, [0, 2]),
    ({"ZE_AFFINITY_MASK": "1.0,2.1"}, [1, 2]),
    ({"ZE_AFFINITY_MASK": "0.0,0.1"}, [0]),
    ({"ZE_AFFINITY_MASK": "9"}, []),
    ({"ZE_AFFINITY_MASK": ""}, [0, 1, 2]),
])  # fmt: skip
def test_level_zeros_mask_selects_and_does_not_reorder(environment, wanted):
    """ZE_AFFINITY_MASK names devices, with or without tiles."""
    assert seen(intel(), "intel", **environment) == wanted


def test_tiles_counted_flat_leave_it_open():
    """On cards that may have several tiles, FLAT numbering needs the driver; COMPOSITE does not."""
    flat = visible_devices(intel("0bd5"), {"ZE_AFFINITY_MASK": "1"}, "intel")
    composite = {"ZE_AFFINITY_MASK": "1", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}

    assert not flat.order_known
    assert seen(intel("0bd5"), "intel", **composite) == [1]


def test_the_vendor_of_a_host_is_that_of_its_accelerators():
    """A display adapter does not hide the GPUs that jobs run on."""
    mixed = machine({0: "0-3"}, gpus=[gpu(0, 0, vendor="intel"), gpu(1, 0, vendor="amd")])

    assert main_vendor(mixed) == "amd"
    assert main_vendor(machine({0: "0-3"})) == "nvidia"


def test_an_unknown_vendor_shows_nothing():
    """A vendor without a runtime of its own has no numbering."""
    assert visible_devices(eight(), {}, "matrox").gpus == ()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("7", 7), (" 12x", 12), ("4294967297", 1), ("", None), ("x1", None), ("-1", -1)],
)
def test_numbers_are_read_by_strtoul(text, wanted):
    """Base 10, white space and sign first, junk after, 32 bits."""
    assert parse_number(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("AB-c", "abc"), ("", None), ("-", None), ("x", None), ("a" * 33, "a" * 32)],
)
def test_uuids_are_read_by_digits(text, wanted):
    """Dashes are skipped, case does not count, 32 digits are enough."""
    assert parse_uuid(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("10", 10), ("0x10", 16), ("010", 8), ("08", None), ("1_0", None), ("-1", -1), ("0", 0)],
)
def test_rocr_numbers_are_read_in_base_0(text, wanted):
    """Hexadecimal, octal, decimal, and nothing after."""
    assert parse_base_0(text) == wanted


@given(st.text(max_size=60), st.sampled_from(["nvidia", "amd", "intel"]))
def test_any_text_has_an_answer(text, vendor):
    """No text in a variable is an error, and none shows a GPU that is not there, or one twice."""
    host = eight(vendor=vendor)
    variables = (
        "CUDA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ZE_AFFINITY_MASK",
        "SLURM_JOB_GPUS",
    )

    found = visible_devices(host, dict.fromkeys(variables, text), vendor)

    assert set(found.gpus) <= {each.pci_address for each in host.gpus}
    assert len(set(found.gpus)) == len(found.gpus)


@given(st.lists(st.integers(-1, 9), min_size=1, max_size=6))
def test_lists_of_numbers_follow_the_programming_guide(numbers):
    """The valid beginning of the list, in its order; nothing where it repeats itself."""
    valid = []
    for number in numbers:
        if not 0 <= number < 8:
            break
        valid.append(number)

    found = seen(eight(), CUDA_VISIBLE_DEVICES=",".join(map(str, numbers)))

    assert found == (valid if len(set(valid)) == len(valid) else [])
