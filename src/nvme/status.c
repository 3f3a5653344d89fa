/* What a status says (Base 3.3.3.2.1, NVM Command Set 3.1), for people and as an errno. */
#include <errno.h>

#include "nvme/ctrl.h"

static const struct {
	uint16_t status;
	int error;
	const char *words;
} statuses[] = {
	{ 0x000, 0, "Success" },
	{ 0x001, -EOPNOTSUPP, "Invalid Command Opcode" },
	{ 0x002, -EINVAL, "Invalid Field in Command" },
	{ 0x003, -EIO, "Command ID Conflict" },
	{ 0x004, -EIO, "Data Transfer Error" },
	{ 0x005, -EIO, "Aborted due to Power Loss Notification" },
	{ 0x006, -EIO, "Internal Error" },
	{ 0x007, -ETIMEDOUT, "Command Abort Requested" },
	{ 0x008, -EIO, "Aborted due to SQ Deletion" },
	{ 0x009, -EIO, "Aborted due to Failed Fused Command" },
	{ 0x00a, -EIO, "Aborted due to Missing Fused Command" },
	{ 0x00b, -ENXIO, "Invalid Namespace or Format" },
	{ 0x00c, -EIO, "Command Sequence Error" },
	{ 0x00d, -EIO, "Invalid SGL Segment Descriptor" },
	{ 0x00e, -EIO, "Invalid Number of SGL Descriptors" },
	{ 0x00f, -EIO, "Data SGL Length Invalid" },
	{ 0x010, -EIO, "Metadata SGL Length Invalid" },
	{ 0x011, -EIO, "SGL Descriptor Type Invalid" },
	{ 0x012, -EIO, "Invalid Use of Controller Memory Buffer" },
	{ 0x013, -EIO, "PRP Offset Invalid" },
	{ 0x014, -EIO, "Atomic Write Unit Exceeded" },
	{ 0x015, -EACCES, "Operation Denied" },
	{ 0x016, -EIO, "SGL Offset Invalid" },
	{ 0x01c, -EIO, "Sanitize Failed" },
	{ 0x01d, -EBUSY, "Sanitize In Progress" },
	{ 0x020, -EROFS, "Namespace is Write Protected" },
	{ 0x021, -EAGAIN, "Command Interrupted" },
	{ 0x022, -EIO, "Transient Transport Error" },
	{ 0x024, -EIO, "Admin Command Media Not Ready" },
	{ 0x080, -ERANGE, "LBA Out of Range" },
	{ 0x081, -ENOSPC, "Capacity Exceeded" },
	{ 0x082, -EIO, "Namespace Not Ready" },
	{ 0x083, -EBUSY, "Reservation Conflict" },
	{ 0x084, -EBUSY, "Format In Progress" },
	{ 0x100, -EIO, "Completion Queue Invalid" },
	{ 0x101, -EIO, "Invalid Queue Identifier" },
	{ 0x102, -EIO, "Invalid Queue Size" },
	{ 0x103, -EBUSY, "Abort Command Limit Exceeded" },
	{ 0x105, -EBUSY, "Asynchronous Event Request Limit Exceeded" },
	{ 0x106, -EINVAL, "Invalid Firmware Slot" },
	{ 0x107, -EINVAL, "Invalid Firmware Image" },
	{ 0x108, -EIO, "Invalid Interrupt Vector" },
	{ 0x109, -EOPNOTSUPP, "Invalid Log Page" },
	{ 0x10a, -EINVAL, "Invalid Format" },
	{ 0x10b, -EIO, "Firmware Activation Requires Conventional Reset" },
	{ 0x10c, -EIO, "Invalid Queue Deletion" },
	{ 0x10d, -EINVAL, "Feature Identifier Not Saveable" },
	{ 0x10e, -EINVAL, "Feature Not Changeable" },
	{ 0x10f, -EINVAL, "Feature Not Namespace Specific" },
	{ 0x180, -EINVAL, "Conflicting Attributes" },
	{ 0x181, -EINVAL, "Invalid Protection Information" },
	{ 0x182, -EROFS, "Attempted Write to Read Only Range" },
	{ 0x280, -EIO, "Write Fault" },
	{ 0x281, -EIO, "Unrecovered Read Error" },
	{ 0x282, -EIO, "End-to-end Guard Check Error" },
	{ 0x283, -EIO, "End-to-end Application Tag Check Error" },
	{ 0x284, -EIO, "End-to-end Reference Tag Check Error" },
	{ 0x285, -EIO, "Compare Failure" },
	{ 0x286, -EACCES, "Access Denied" },
	{ 0x287, -EIO, "Deallocated or Unwritten Logical Block" },
	{ 0x300, -EIO, "Internal Path Error" },
	{ 0x371, -EIO, "Command Aborted By Host" },
};

static const char *const sets[] = { "a generic status",	 "a command-specific status",
				    "a media error",	 "a path error",
				    "a reserved status", "a reserved status",
				    "a reserved status", "a vendor-specific status" };

const char *nvme_status_words(uint16_t status)
{
	for (size_t i = 0; i < ARRAY_SIZE(statuses); i++)
		if (statuses[i].status == NVME_SCT_SC(status))
			return statuses[i].words;
	return sets[NVME_SCT(status)];
}

int nvme_status_errno(uint16_t status)
{
	for (size_t i = 0; i < ARRAY_SIZE(statuses); i++)
		if (statuses[i].status == NVME_SCT_SC(status))
			return statuses[i].error;
	return -EIO;
}

void nvme_string(const char *in, size_t len, char *out)
{
	size_t n = 0;

	while (len > 0 && (in[len - 1] == ' ' || in[len - 1] == '\0'))
		len--;
	for (size_t i = 0; i < len; i++)
		out[n++] = in[i] >= ' ' && in[i] <= '~' ? in[i] : '?';
	out[n] = '\0';
}
