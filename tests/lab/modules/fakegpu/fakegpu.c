// Test only, for the lab's guest: a PCI function that QEMU shows as a 3D controller gets NVIDIA's ids.
//
// QEMU has no device whose vendor can be chosen, but virtio-blk-pci takes a class. The configuration reads
// of the bus such a device sits on go through give_ids(), and the function is scanned again, so that every
// file below /sys/bus/pci/devices (vendor, class, numa_node, local_cpulist ...) is the real kernel's own.
// The lab puts one function on a bus, so a bus stands for its function.
#include <linux/module.h>
#include <linux/pci.h>

#define VENDOR_NVIDIA 0x10de
#define DEVICE_H100 0x2330
#define CLASS_3D_REVISION_A1 0x030200a1
#define MOST 64

struct disguise {
	struct pci_bus *bus;
	struct pci_ops *original;
	struct pci_ops wrapped;
};

static struct disguise disguises[MOST];
static unsigned int num_disguises;

static struct pci_ops *original_of(struct pci_bus *bus)
{
	for (unsigned int i = 0; i < num_disguises; i++)
		if (disguises[i].bus == bus)
			return disguises[i].original;
	return NULL;
}

static int give_ids(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 *value)
{
	struct pci_ops *original = original_of(bus);
	u32 word;
	int failed = original ? original->read(bus, devfn, where, size, value) : PCIBIOS_DEVICE_NOT_FOUND;

	if (failed || PCI_SLOT(devfn) || PCI_FUNC(devfn))
		return failed;
	switch (where & ~3) {
	case PCI_VENDOR_ID:
	case PCI_SUBSYSTEM_VENDOR_ID:
		word = DEVICE_H100 << 16 | VENDOR_NVIDIA;
		break;
	case PCI_CLASS_REVISION:
		word = CLASS_3D_REVISION_A1;
		break;
	default:
		return 0;
	}
	word >>= 8 * (where & 3);
	*value = size == 4 ? word : word & ((1u << 8 * size) - 1);
	return 0;
}

static void disguise(struct pci_dev *device)
{
	struct disguise *made = &disguises[num_disguises];
	struct pci_bus *bus = device->bus;

	made->bus = bus;
	made->original = bus->ops;
	made->wrapped = *bus->ops;
	made->wrapped.read = give_ids;
	num_disguises++;
	pci_bus_set_ops(bus, &made->wrapped);
	pci_lock_rescan_remove();
	pci_stop_and_remove_bus_device(device);
	pci_rescan_bus(bus);
	pci_unlock_rescan_remove();
}

static int __init fakegpu_init(void)
{
	struct pci_dev *found[MOST], *device = NULL;
	unsigned int num_found = 0;

	for_each_pci_dev(device)
		if (device->vendor == PCI_VENDOR_ID_REDHAT_QUMRANET &&
		    device->class >> 8 == PCI_CLASS_DISPLAY_3D && num_found < MOST)
			found[num_found++] = pci_dev_get(device);
	for (unsigned int i = 0; i < num_found; i++) {
		disguise(found[i]);
		pci_dev_put(found[i]);
	}
	return 0;
}

module_init(fakegpu_init);
MODULE_DESCRIPTION("Test only: gives 3D controllers of a QEMU guest NVIDIA's PCI ids");
MODULE_LICENSE("Dual MIT/GPL");
