/* Registering a gpudev driver (rte_gpudev.h) that lives in this process, and filling communication
 * list items, which requires the layout of mbufs. */
#ifndef PORTCULLIS_GPUDEV_H
#define PORTCULLIS_GPUDEV_H

#include <stddef.h>
#include <stdint.h>

struct rte_gpu_comm_list;
struct rte_mbuf;

/* Driver operations; `driver` is the pointer it was registered with. All return 0, or a negative
 * error number. */
struct pc_gpu_calls {
	int (*close)(void *driver);
	int (*allocate)(void *driver, size_t size, unsigned int align, void **address);
	int (*free)(void *driver, void *address);
	int (*register_host)(void *driver, size_t size, void *address);
	int (*unregister_host)(void *driver, void *address);
	int (*cpu_map)(void *driver, size_t size, void *address, void **view);
	int (*cpu_unmap)(void *driver, void *address);
	int (*barrier)(void *driver);
};

/* Properties of a GPU. */
struct pc_gpu_properties {
	uint32_t processors;
	int16_t numa_node;
	size_t memory;
	size_t page;
};

/* Registers a driver under a unique name (at most 63 bytes). `calls` must outlive the device.
 * Returns the device number, or a negative error; -ENOEXEC if this DPDK has another device layout
 * than the one assumed here. Not thread-safe. */
int pc_gpu_new(const char *name, const struct pc_gpu_calls *calls, void *driver, struct pc_gpu_properties properties);

/* Fills a FREE item of a communication list with packets and makes it READY. The GPU's packet
 * addresses are the CPU's plus `shift`. Returns 0, or a negative error: -EINVAL for more than
 * RTE_GPU_COMM_LIST_PKTS_MAX packets; -ENOTSUP for a packet with several segments, unless `heads`
 * is nonzero, which shares first segments only. */
int pc_gpu_populate(struct rte_gpu_comm_list *item, struct rte_mbuf **mbufs, uint32_t count, ptrdiff_t shift, int heads);

#endif
