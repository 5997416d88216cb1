#include "shim.h"

#include <string.h>

#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <rte_prefetch.h>

/* Packets whose descriptions are fetched ahead: the driver has just written most of them, another processor maybe. */
#define AHEAD 4

const uint64_t pc_rss_flows = RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP;
const uint64_t pc_scatter = RTE_ETH_RX_OFFLOAD_SCATTER;

int pc_errno(void)
{
	return rte_errno;
}

uint16_t pc_receive(uint16_t port, uint16_t queue, struct pc_memory memory, struct rte_mbuf **mbufs, struct pc_lies *lies,
		    uint16_t most, uint64_t *bytes, uint16_t *elsewhere)
{
	uint16_t came = rte_eth_rx_burst(port, queue, mbufs, most);
	uint64_t sum = 0;
	uint16_t odd = 0;

	for (uint16_t i = 0; i < came; i++) {
		const struct rte_mbuf *mbuf = mbufs[i];
		if (i + AHEAD < came)
			rte_prefetch0(mbufs[i + AHEAD]);
		size_t offset = (size_t)(rte_pktmbuf_mtod(mbuf, uint8_t *) - memory.base);
		uint32_t length = mbuf->pkt_len;
		/* Of memory before the base, the offset is far behind its end. */
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

void pc_free(struct rte_mbuf **mbufs, size_t count)
{
	while (count > 0) {
		/* As many as the function takes. */
		unsigned int now = count < UINT32_MAX ? (unsigned int)count : UINT32_MAX;
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
		memcpy(to + copied, rte_pktmbuf_mtod(mbuf, const uint8_t *), part);
		copied += part;
	}
	return copied;
}
