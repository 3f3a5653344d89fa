#include "pci/vfio_parse.h"

#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <string.h>

#include "util/bytes.h"
#include "util/compiler.h"

/* --- chains of capabilities --- */

size_t vfio_cap_find(const void *info, size_t size, uint32_t first, unsigned id, void *head,
		     size_t head_len)
{
	struct vfio_info_cap_header header;
	size_t at = first;

	while (at && range_fits(at, sizeof(header), size)) {
		memcpy(&header, (const char *)info + at, sizeof(header));
		if (header.id == id && range_fits(at, head_len, size)) {
			memcpy(head, (const char *)info + at, head_len);
			return at + head_len;
		}
		if (header.next <= at) /* the kernel's chains only go up, so that they end */
			break;
		at = header.next;
	}
	return 0;
}

/* --- the I/O address space --- */

#define SMALLEST_IOMMU_LAST (((uint64_t)1 << 39) - 1)
#define MSI_WINDOW	    0xfee00000
#define MSI_WINDOW_LAST	    0xfeefffff

static struct vfio_iommu_type1_info iommu_info(const void *info, size_t size)
{
	struct vfio_iommu_type1_info i = { 0 };

	memcpy(&i, info, MIN(size, sizeof(i)));
	if (!(i.flags & VFIO_IOMMU_INFO_CAPS))
		i.cap_offset = 0;
	return i;
}

/* Of too many ranges the smallest is left out. */
static void drop_smallest(struct iommu *m)
{
	unsigned smallest = 0;

	for (unsigned i = 1; i < m->ranges_n; i++)
		if (m->usable[i].last - m->usable[i].first <
		    m->usable[smallest].last - m->usable[smallest].first)
			smallest = i;
	m->ranges_n--;
	memmove(&m->usable[smallest], &m->usable[smallest + 1],
		(m->ranges_n - smallest) * sizeof(m->usable[0]));
}

void vfio_iommu_add_range(struct iommu *m, uint64_t first, uint64_t last)
{
	uint64_t page = m->page, start, end;

	if (first > UINT64_MAX - page || (last != UINT64_MAX && last < page))
		return;
	start = ROUND_UP(first, page);
	end = last == UINT64_MAX ? last : ROUND_DOWN(last + 1, page) - 1;
	if (start >= end || (m->ranges_n && start <= m->usable[m->ranges_n - 1].last))
		return;
	if (m->ranges_n == IOVA_RANGES_MAX)
		drop_smallest(m);
	m->usable[m->ranges_n++] = (struct iova_range){ start, end };
}

void vfio_iommu_describe(const void *info, size_t size, size_t page, struct iommu *m)
{
	struct vfio_iommu_type1_info i = iommu_info(info, size);
	struct vfio_iommu_type1_info_cap_iova_range cap = { 0 };
	uint64_t smallest = i.iova_pgsizes & -i.iova_pgsizes;
	struct vfio_iova_range range;
	size_t at;

	m->page = page;
	if (i.flags & VFIO_IOMMU_INFO_PGSIZES && smallest > page)
		m->page = smallest;
	m->ranges_n = 0;
	at = vfio_cap_find(info, size, i.cap_offset, VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, &cap,
			   sizeof(cap));
	for (uint32_t n = 0; n < cap.nr_iovas && range_fits(at, sizeof(range), size); n++) {
		memcpy(&range, (const char *)info + at, sizeof(range));
		vfio_iommu_add_range(m, range.start, range.end);
		at += sizeof(range);
	}
	if (m->ranges_n)
		return;
	vfio_iommu_add_range(m, 0, MSI_WINDOW - 1);
	vfio_iommu_add_range(m, MSI_WINDOW_LAST + 1, SMALLEST_IOMMU_LAST);
}

uint32_t vfio_iommu_dma_avail(const void *info, size_t size)
{
	struct vfio_iommu_type1_info i = iommu_info(info, size);
	struct vfio_iommu_type1_info_dma_avail cap;

	return vfio_cap_find(info, size, i.cap_offset, VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL, &cap,
			     sizeof(cap))
		       ? cap.avail
		       : UINT32_MAX;
}

/* --- regions --- */

/* Areas are kept in order, whatever order they come in; what overlaps is left out. */
static unsigned add_area(struct vfio_area *areas, unsigned n, uint64_t offset, uint64_t len)
{
	unsigned at = n;

	while (at > 0 && areas[at - 1].offset > offset)
		at--;
	if (n == VFIO_AREAS_MAX || len == 0 ||
	    (at > 0 && areas[at - 1].offset + areas[at - 1].len > offset) ||
	    (at < n && areas[at].offset < offset + len))
		return n;
	memmove(&areas[at + 1], &areas[at], (n - at) * sizeof(areas[0]));
	areas[at] = (struct vfio_area){ offset, len };
	return n + 1;
}

unsigned vfio_region_areas(const void *info, size_t size, size_t page,
			   struct vfio_area areas[VFIO_AREAS_MAX])
{
	struct vfio_region_info_cap_sparse_mmap cap = { 0 };
	struct vfio_region_sparse_mmap_area area;
	struct vfio_region_info r = { 0 };
	unsigned n = 0;
	size_t at = 0;

	memcpy(&r, info, MIN(size, sizeof(r)));
	if (!(r.flags & VFIO_REGION_INFO_FLAG_MMAP))
		return 0;
	if (r.flags & VFIO_REGION_INFO_FLAG_CAPS)
		at = vfio_cap_find(info, size, r.cap_offset, VFIO_REGION_INFO_CAP_SPARSE_MMAP, &cap,
				   sizeof(cap));
	if (!at)
		return add_area(areas, 0, 0, r.size);
	for (uint32_t i = 0; i < cap.nr_areas && range_fits(at, sizeof(area), size); i++) {
		memcpy(&area, (const char *)info + at, sizeof(area));
		if (range_fits(area.offset, area.size, r.size) && IS_ALIGNED(area.offset, page))
			n = add_area(areas, n, area.offset, area.size);
		at += sizeof(area);
	}
	return n;
}

const struct vfio_area *vfio_area_find(const struct vfio_area *areas, unsigned n, uint64_t offset,
				       uint64_t len)
{
	for (unsigned i = 0; i < n; i++)
		if (offset >= areas[i].offset &&
		    range_fits(offset - areas[i].offset, len, areas[i].len))
			return &areas[i];
	return NULL;
}

/* --- configuration space --- */

static uint16_t config16(const uint8_t *config, unsigned at)
{
	return (uint16_t)(config[at] | config[at + 1] << 8);
}

bool pci_msix_find(const uint8_t config[PCI_CONFIG_SIZE], struct pci_msix *m)
{
	unsigned at = config[PCI_CAPABILITY_LIST] & ~3u, steps;
	uint32_t table;

	if (!(config16(config, PCI_STATUS) & PCI_STATUS_CAP_LIST))
		return false;
	/* Capabilities lie behind the header, 4 bytes at least each: a longer chain is a loop. */
	for (steps = 0; steps < (PCI_CONFIG_SIZE - PCI_STD_HEADER_SIZEOF) / 4; steps++) {
		if (at < PCI_STD_HEADER_SIZEOF)
			return false;
		if (config[at] == PCI_CAP_ID_MSIX && at + PCI_CAP_MSIX_SIZEOF <= PCI_CONFIG_SIZE)
			break;
		at = config[at + PCI_CAP_LIST_NEXT] & ~3u;
	}
	if (steps == (PCI_CONFIG_SIZE - PCI_STD_HEADER_SIZEOF) / 4)
		return false;
	table = config16(config, at + PCI_MSIX_TABLE) |
		(uint32_t)config16(config, at + PCI_MSIX_TABLE + 2) << 16;
	m->vectors = (config16(config, at + PCI_MSIX_FLAGS) & PCI_MSIX_FLAGS_QSIZE) + 1;
	m->bar = table & PCI_MSIX_TABLE_BIR;
	m->offset = table & PCI_MSIX_TABLE_OFFSET;
	return m->bar <= 5;
}
