/* Header split: the first bytes of packets in one mempool, the others in another. */
#ifndef PORTCULLIS_SPLIT_H
#define PORTCULLIS_SPLIT_H

#include <stdint.h>

#include "shim.h"

struct rte_eth_dev_info;

/* Length of packets' heads, and the pool for the rest. */
struct pc_split {
	struct rte_mempool *rest;
	uint16_t head;
};

/* Offloads: transmitting packets with several segments (RTE_ETH_TX_OFFLOAD_MULTI_SEGS), and header
 * split (RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT). */
extern const uint64_t pc_multi_segs;
extern const uint64_t pc_buffer_split;

/* Returns nonzero if the port supports header split into two pools. */
int pc_splits(const struct rte_eth_dev_info *info);

/* Sets up a receive queue with header split. Returns 0, or a negative error. */
int pc_split_queue(uint16_t port, uint16_t queue, uint16_t ring, unsigned int node, struct rte_mempool *heads, struct pc_split split);

/* Like pc_receive, with header split, either by the port or here, for packets that the port left
 * whole. The locations are those of heads, with the length of the whole packet. Packets that cannot
 * be split, because of lack of memory or other segments, are PC_ELSEWHERE. */
uint16_t pc_receive_split(uint16_t port, uint16_t queue, struct pc_memory memory, struct pc_split split, struct rte_mbuf **mbufs,
			  struct pc_lies *lies, uint16_t most, uint64_t *bytes, uint16_t *elsewhere);

/* Returns nonzero if a packet's segments lie within their buffers and add up to its length. */
int pc_is_whole(const struct rte_mbuf *mbuf);

/* Appends a chain of segments to a packet. Returns 0, or a negative error if there are too many. */
int pc_add(struct rte_mbuf *mbuf, struct rte_mbuf *behind);

#endif
