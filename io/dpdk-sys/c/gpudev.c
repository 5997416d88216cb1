#include "gpudev.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include <rte_atomic.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_gpudev.h>
#include <rte_mbuf.h>

/* Internal device structures of gpudev (lib/gpudev/gpudev_driver.h), which are not installed. The
 * layout is the same in all versions compared, from 22.07 to those after 23.11; it is assumed for
 * 22.11 to 26.07 (gpu.rs). `looks_right` verifies it against a new device before writing to it. */
struct gpu;

struct gpu_ops {
	int (*info)(struct gpu *gpu, struct rte_gpu_info *info);
	int (*close)(struct gpu *gpu);
	int (*allocate)(struct gpu *gpu, size_t size, unsigned int align, void **address);
	int (*free)(struct gpu *gpu, void *address);
	int (*register_host)(struct gpu *gpu, size_t size, void *address);
	int (*unregister_host)(struct gpu *gpu, void *address);
	int (*cpu_map)(struct gpu *gpu, size_t size, void *address, void **view);
	int (*cpu_unmap)(struct gpu *gpu, void *address);
	int (*barrier)(struct gpu *gpu);
};

struct gpu_shared {
	char name[RTE_DEV_NAME_MAX_LEN];
	void *of_driver;
	struct rte_gpu_info info;
	uint16_t processes;
};

struct callback;

struct gpu {
	struct rte_device *device;
	struct gpu_shared *shared;
	struct gpu_ops ops;
	TAILQ_HEAD(callbacks, callback) callbacks;
	int state;
	void *of_process;
};

struct gpu *rte_gpu_allocate(const char *name);
void rte_gpu_complete_new(struct gpu *gpu);
int rte_gpu_release(struct gpu *gpu);

/* A registered driver, in use while its device exists. */
struct driver {
	const struct pc_gpu_calls *calls;
	void *driver;
};

/* One for each of DPDK's devices, by default. */
static struct driver drivers[RTE_GPU_DEFAULT_MAX];

static const struct driver *driver_of(const struct gpu *gpu)
{
	return gpu->of_process;
}

static int on_close(struct gpu *gpu)
{
	struct driver *driver = gpu->of_process;
	int result = driver->calls->close(driver->driver);
	memset(driver, 0, sizeof(*driver));
	return result;
}

static int on_allocate(struct gpu *gpu, size_t size, unsigned int align, void **address)
{
	const struct driver *driver = driver_of(gpu);
	return driver->calls->allocate(driver->driver, size, align, address);
}

static int on_free(struct gpu *gpu, void *address)
{
	const struct driver *driver = driver_of(gpu);
	return driver->calls->free(driver->driver, address);
}

static int on_register(struct gpu *gpu, size_t size, void *address)
{
	const struct driver *driver = driver_of(gpu);
	return driver->calls->register_host(driver->driver, size, address);
}

static int on_unregister(struct gpu *gpu, void *address)
{
	const struct driver *driver = driver_of(gpu);
	return driver->calls->unregister_host(driver->driver, address);
}

static int on_cpu_map(struct gpu *gpu, size_t size, void *address, void **view)
{
	const struct driver *driver = driver_of(gpu);
	return driver->calls->cpu_map(driver->driver, size, address, view);
}

static int on_cpu_unmap(struct gpu *gpu, void *address)
{
	const struct driver *driver = driver_of(gpu);
	return driver->calls->cpu_unmap(driver->driver, address);
}

static int on_barrier(struct gpu *gpu)
{
	const struct driver *driver = driver_of(gpu);
	return driver->calls->barrier(driver->driver);
}

/* Whether a new device has the assumed layout: name and adjacent fields, the end of the operations
 * (after which the library has initialised an empty list), and zeros elsewhere. */
static bool looks_right(const struct gpu *gpu, const char *name)
{
	static const struct gpu_ops none;
	const struct gpu_shared *shared = gpu->shared;

	return gpu->device == NULL && shared != NULL && memcmp(&gpu->ops, &none, sizeof(none)) == 0 &&
	       gpu->callbacks.tqh_first == NULL && gpu->callbacks.tqh_last == &gpu->callbacks.tqh_first && gpu->state == 0 &&
	       gpu->of_process == NULL && strcmp(shared->name, name) == 0 && shared->of_driver == NULL &&
	       shared->info.name == shared->name && shared->info.dev_id >= 0 && shared->info.parent == RTE_GPU_ID_NONE &&
	       shared->info.numa_node == -1 && shared->processes == 1;
}

int pc_gpu_new(const char *name, const struct pc_gpu_calls *calls, void *driver, struct pc_gpu_properties properties)
{
	struct driver *mine = NULL;

	for (size_t i = 0; i < RTE_DIM(drivers) && mine == NULL; i++) {
		if (drivers[i].calls == NULL)
			mine = &drivers[i];
	}
	if (mine == NULL)
		return -ENOSPC;
	struct gpu *gpu = rte_gpu_allocate(name);
	if (gpu == NULL)
		return rte_errno != 0 ? -abs(rte_errno) : -ENODEV;
	if (!looks_right(gpu, name)) {
		rte_gpu_release(gpu);
		return -ENOEXEC;
	}
	gpu->ops = (struct gpu_ops){
		.close = on_close,
		.allocate = on_allocate,
		.free = on_free,
		.register_host = on_register,
		.unregister_host = on_unregister,
		.cpu_map = on_cpu_map,
		.cpu_unmap = on_cpu_unmap,
		.barrier = on_barrier,
	};
	*mine = (struct driver){ .calls = calls, .driver = driver };
	gpu->of_process = mine;
	gpu->shared->info.processor_count = properties.processors;
	gpu->shared->info.numa_node = properties.numa_node;
	gpu->shared->info.total_memory = properties.memory;
	gpu->shared->info.page_size = properties.page;
	rte_gpu_complete_new(gpu);
	return gpu->shared->info.dev_id;
}

int pc_gpu_populate(struct rte_gpu_comm_list *item, struct rte_mbuf **mbufs, uint32_t count, ptrdiff_t shift, int heads)
{
	int result;

	/* Order packet writes by the CPU, possibly through a write-combining mapping, before READY. The
	 * driver's barrier may only cover the GPU's side. */
	rte_wmb();
	if (shift == 0 && !heads) {
		result = rte_gpu_comm_populate_list_pkts(item, mbufs, count);
		return result == 0 ? 0 : -abs(rte_errno);
	}
	/* The library would write CPU addresses and make the item READY at once, so fill it here. */
	if (count > RTE_GPU_COMM_LIST_PKTS_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < count; i++) {
		if (!heads && (mbufs[i]->nb_segs > 1 || mbufs[i]->next != NULL || mbufs[i]->data_len != mbufs[i]->pkt_len))
			return -ENOTSUP;
		item->pkt_list[i].addr = rte_pktmbuf_mtod(mbufs[i], uintptr_t) + shift;
		item->pkt_list[i].size = mbufs[i]->data_len;
		item->mbufs[i] = mbufs[i];
	}
	RTE_GPU_VOLATILE(item->num_pkts) = count;
	result = rte_gpu_wmb((int16_t)item->dev_id);
	if (result != 0 && rte_errno != ENOTSUP)
		return -abs(rte_errno);
	return rte_gpu_comm_set_status(item, RTE_GPU_COMM_LIST_READY);
}
