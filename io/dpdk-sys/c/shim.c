#include "shim.h"

#include <string.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_memory.h>
#include <rte_mempool.h>
#include <rte_prefetch.h>

/* Number of mbufs to prefetch: another CPU or the driver has just written them. */
#define PREFETCH_DISTANCE 4

/* Size of the smallest pages that DPDK uses in physical address mode. */
#define SMALLEST_PAGE ((size_t)2 << 20)

const uint64_t pc_rss_flows = RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP;
const uint64_t pc_scatter = RTE_ETH_RX_OFFLOAD_SCATTER;

int pc_errno(void)
{
	return rte_errno;
}

/* In IOVA-as-VA mode all memory is IOVA-contiguous. */
static int is_contiguous(void)
{
	return rte_eal_iova_mode() == RTE_IOVA_VA;
}

struct rte_mempool *pc_pool(const char *name, unsigned int count, unsigned int cache, uint16_t room, int node)
{
	struct rte_pktmbuf_pool_private all = { .mbuf_data_room_size = room };
	/* Without this flag no mbuf crosses a page boundary: half of each small page would stay empty, and
	 * all packets would start in the same cache sets. */
	unsigned int flags = is_contiguous() ? RTE_MEMPOOL_F_NO_IOVA_CONTIG : 0;
	struct rte_mempool *pool = rte_mempool_create_empty(name, count, sizeof(struct rte_mbuf) + room, cache, sizeof(all), node, flags);
	int result;

	if (pool == NULL)
		return NULL;
	result = rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), NULL);
	if (result < 0) {
		rte_mempool_free(pool);
		rte_errno = -result;
		return NULL;
	}
	rte_pktmbuf_pool_init(pool, &all);
	return pool;
}

size_t pc_pool_bytes(const struct rte_mempool *pool)
{
	size_t one = (size_t)pool->header_size + pool->elt_size + pool->trailer_size;
	size_t all = one * pool->size;

	/* Up to one mbuf is lost at the end of each page, and before the first. */
	if (!is_contiguous())
		all += (all / SMALLEST_PAGE + 2) * one;
	return all + RTE_MEMPOOL_ALIGN;
}

int pc_pool_fill(struct rte_mempool *pool, uint8_t *base, size_t length)
{
	int filled;

	if (is_contiguous()) {
		filled = rte_mempool_populate_iova(pool, (char *)base, (rte_iova_t)(uintptr_t)base, length, NULL, NULL);
	} else {
		const struct rte_memseg *page = rte_mem_virt2memseg(base, NULL);
		if (page == NULL)
			return -EFAULT;
		filled = rte_mempool_populate_virt(pool, (char *)base, length, page->hugepage_sz, NULL, NULL);
	}
	rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
	return filled;
}

uint16_t pc_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t most)
{
	return rte_eth_rx_burst(port, queue, mbufs, most);
}

uint16_t pc_receive(uint16_t port, uint16_t queue, struct pc_memory memory, struct rte_mbuf **mbufs, struct pc_lies *lies,
		    uint16_t most, uint64_t *bytes, uint16_t *elsewhere)
{
	uint16_t came = pc_burst(port, queue, mbufs, most);
	uint64_t sum = 0;
	uint16_t odd = 0;

	for (uint16_t i = 0; i < came; i++) {
		const struct rte_mbuf *mbuf = mbufs[i];
		if (i + PREFETCH_DISTANCE < came)
			rte_prefetch0(mbufs[i + PREFETCH_DISTANCE]);
		size_t offset = (size_t)(rte_pktmbuf_mtod(mbuf, uint8_t *) - memory.base);
		uint32_t length = mbuf->pkt_len;
		/* For packets before the base the unsigned offset exceeds the length. */
		if (likely(mbuf->nb_segs == 1 && offset < memory.length && mbuf->data_off >= memory.room &&
			   (uint32_t)mbuf->data_off + length + memory.room <= mbuf->buf_len)) {
			lies[i].offset = (uint32_t)offset;
		} else {
			lies[i].offset = PC_ELSEWHERE;
			odd++;
		}
		lies[i].length = length;
		sum += length;
	}
	*bytes += sum;
	*elsewhere = odd;
	return came;
}

void pc_settle(struct pc_memory memory, struct rte_mbuf *const *mbufs, const struct pc_lies *lies, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct rte_mbuf *mbuf = mbufs[i];
		mbuf->data_off = (uint16_t)(memory.base + lies[i].offset - (uint8_t *)mbuf->buf_addr);
		mbuf->data_len = (uint16_t)lies[i].length;
		mbuf->pkt_len = lies[i].length;
	}
}

uint16_t pc_send(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count)
{
	return rte_eth_tx_burst(port, queue, mbufs, count);
}

uint64_t pc_bytes(struct rte_mbuf *const *mbufs, size_t count)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < count; i++)
		bytes += mbufs[i]->pkt_len;
	return bytes;
}

/* Whether all mbufs are plain and of one pool: single owner, direct, single segment. */
static int are_plain(struct rte_mbuf *const *mbufs, unsigned int count)
{
	const struct rte_mempool *pool = mbufs[0]->pool;
	int plain = 1;

	for (unsigned int i = 0; i < count; i++) {
		const struct rte_mbuf *mbuf = mbufs[i];
		plain &= (mbuf->pool == pool) & (rte_mbuf_refcnt_read(mbuf) == 1) & RTE_MBUF_DIRECT(mbuf) & (mbuf->nb_segs == 1) &
			 (mbuf->next == NULL);
	}
	return plain;
}

void pc_free(struct rte_mbuf **mbufs, size_t count)
{
	while (count > 0) {
		/* As many as the functions take. */
		/* Limited by the functions' argument type. */
		unsigned int now = count < UINT32_MAX ? (unsigned int)count : UINT32_MAX;
		/* Pass the array as is; rte_pktmbuf_free_bulk would copy it. */
		if (likely(are_plain(mbufs, now)))
			rte_mempool_put_bulk(mbufs[0]->pool, (void *const *)mbufs, now);
		else
			rte_pktmbuf_free_bulk(mbufs, now);
		mbufs += now;
		count -= now;
	}
}

int pc_take(struct rte_mempool *pool, struct rte_mbuf **mbufs, size_t count)
{
	return rte_pktmbuf_alloc_bulk(pool, mbufs, (unsigned int)count);
}

uint8_t *pc_begin(struct rte_mbuf *mbuf, uint32_t length)
{
	rte_pktmbuf_reset(mbuf);
	return (uint8_t *)(length <= UINT16_MAX ? rte_pktmbuf_append(mbuf, (uint16_t)length) : NULL);
}

uint32_t pc_copy(const struct rte_mbuf *mbuf, uint8_t *to, uint32_t room)
{
	uint32_t copied = 0;

	for (; mbuf != NULL && copied < room; mbuf = mbuf->next) {
		uint32_t part = RTE_MIN((uint32_t)mbuf->data_len, room - copied);
		/* Drivers may claim more than the buffer: net_null ignores the pool's buffer size. */
		if ((uint32_t)mbuf->data_off + part > mbuf->buf_len)
			break;
		memcpy(to + copied, rte_pktmbuf_mtod(mbuf, const uint8_t *), part);
		copied += part;
	}
	return copied;
}
