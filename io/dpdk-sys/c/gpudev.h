/* A driver of gpudev (rte_gpudev.h) that is not DPDK's own, registered inside the process; and what of the communication list has to be
 * done where packets' descriptions are known. */
#ifndef PORTCULLIS_GPUDEV_H
#define PORTCULLIS_GPUDEV_H

#include <stddef.h>
#include <stdint.h>

struct rte_gpu_comm_list;
struct rte_mbuf;

/* What a driver does, each with the `driver` that it was registered with. All give 0, or a negative error number. */
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

/* What there is of a GPU. */
struct pc_gpu_properties {
	uint32_t processors;
	int16_t numa_node;
	size_t memory;
	size_t page;
};

/* Registers a driver by a name of its own (63 bytes at most). `calls` stays for as long as the device is there. Gives the device's number,
 * or a negative error; -ENOEXEC: this DPDK keeps its devices in another form than is known here. Not for several threads at a time. */
int pc_gpu_new(const char *name, const struct pc_gpu_calls *calls, void *driver, struct pc_gpu_properties properties);

/* Fills a free item of a communication list with packets, whose addresses the GPU has `shift` bytes further than the CPU, and has it be
 * READY. 0, or a negative error: -EINVAL for more than RTE_GPU_COMM_LIST_PKTS_MAX, -ENOTSUP for one in several pieces, of which the
 * first one alone is meant where `heads` is not 0. */
int pc_gpu_populate(struct rte_gpu_comm_list *item, struct rte_mbuf **mbufs, uint32_t count, ptrdiff_t shift, int heads);

#endif
