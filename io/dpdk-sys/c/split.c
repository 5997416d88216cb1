#include "split.h"

#include <stdbool.h>
#include <string.h>

#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

const uint64_t pc_multi_segs = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
const uint64_t pc_buffer_split = RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT;

int pc_splits(const struct rte_eth_dev_info *info)
{
	return (info->rx_offload_capa & RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT) != 0 && info->rx_seg_capa.multi_pools && info->rx_seg_capa.max_nseg >= 2;
}

int pc_split_queue(uint16_t port, uint16_t queue, uint16_t ring, unsigned int node, struct rte_mempool *heads, struct pc_split split)
{
	struct rte_eth_dev_info info;
	union rte_eth_rxseg segments[2];
	struct rte_eth_rxconf conf;
	int result = rte_eth_dev_info_get(port, &info);

	if (result != 0)
		return result;
	memset(segments, 0, sizeof(segments));
	segments[0].split.mp = heads;
	segments[0].split.length = split.head;
	/* Length 0: the whole buffer. */
	segments[1].split.mp = split.rest;
	conf = info.default_rxconf;
	conf.rx_seg = segments;
	conf.rx_nseg = RTE_DIM(segments);
	conf.offloads = RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT | (info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER);
	return rte_eth_rx_queue_setup(port, queue, ring, node, &conf, NULL);
}

int pc_add(struct rte_mbuf *mbuf, struct rte_mbuf *behind)
{
	return rte_pktmbuf_chain(mbuf, behind);
}

int pc_is_whole(const struct rte_mbuf *mbuf)
{
	uint32_t length = mbuf->pkt_len;
	uint64_t there = 0;

	for (; mbuf != NULL; mbuf = mbuf->next) {
		if ((uint32_t)mbuf->data_off + mbuf->data_len > mbuf->buf_len)
			return 0;
		there += mbuf->data_len;
	}
	return there == length;
}

/* Moves the bytes of a packet after its head to a buffer of their own. */
static bool split_whole(struct rte_mbuf *mbuf, struct pc_split split)
{
	uint32_t length = mbuf->data_len - split.head;
	struct rte_mbuf *rest = rte_pktmbuf_alloc(split.rest);

	if (rest == NULL)
		return false;
	char *to = rte_pktmbuf_append(rest, (uint16_t)length);
	if (to == NULL) {
		rte_pktmbuf_free(rest);
		return false;
	}
	memcpy(to, rte_pktmbuf_mtod_offset(mbuf, const char *, split.head), length);
	rte_pktmbuf_trim(mbuf, (uint16_t)length);
	/* Two segments are never too many. */
	return pc_add(mbuf, rest) == 0;
}

uint16_t pc_receive_split(uint16_t port, uint16_t queue, struct pc_memory memory, struct pc_split split, struct rte_mbuf **mbufs,
			  struct pc_lies *lies, uint16_t most, uint64_t *bytes, uint16_t *elsewhere)
{
	uint16_t came = rte_eth_rx_burst(port, queue, mbufs, most);
	uint16_t odd = 0;

	for (uint16_t i = 0; i < came; i++) {
		struct rte_mbuf *mbuf = mbufs[i];
		size_t offset = (size_t)(rte_pktmbuf_mtod(mbuf, uint8_t *) - memory.base);
		uint32_t length = mbuf->pkt_len;
		/* The whole packet fits where its head lies, so locations do not overlap. */
		bool fits = offset < memory.length && (uint32_t)mbuf->data_off + length <= mbuf->buf_len;

		if (mbuf->nb_segs == 1)
			fits = fits && (length <= split.head || split_whole(mbuf, split));
		else
			fits = fits && mbuf->nb_segs == 2 && mbuf->data_len == split.head;
		lies[i].offset = fits ? (uint32_t)offset : PC_ELSEWHERE;
		lies[i].length = length;
		*bytes += length;
		odd += !fits;
	}
	*elsewhere = odd;
	return came;
}
