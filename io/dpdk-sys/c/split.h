/* Packets whose first bytes come into one pool, and the others into another (header split). */
#ifndef PORTCULLIS_SPLIT_H
#define PORTCULLIS_SPLIT_H

#include <stdint.h>

#include "shim.h"

struct rte_eth_dev_info;

/* Where the bytes of a packet come that are behind its first `head`. */
struct pc_split {
	struct rte_mempool *rest;
	uint16_t head;
};

/* The offload by which a port sends packets in several pieces (RTE_ETH_TX_OFFLOAD_MULTI_SEGS), and that by which it splits them
 * (RTE_ETH_RX_OFFLOAD_BUFFER_SPLIT). */
extern const uint64_t pc_multi_segs;
extern const uint64_t pc_buffer_split;

/* Whether a port splits packets by itself, into two pools: not 0 then. */
int pc_splits(const struct rte_eth_dev_info *info);

/* Sets up a receive queue of a port that splits packets. 0, or a negative error. */
int pc_split_queue(uint16_t port, uint16_t queue, uint16_t ring, unsigned int node, struct rte_mempool *heads, struct pc_split split);

/* As pc_receive; but packets are split, by the port or, where that has left them whole, here. Their heads lie in the memory, and are said
 * to lie there with their whole length. Those that cannot be split, for want of memory or because they came in other pieces, are
 * PC_ELSEWHERE. */
uint16_t pc_receive_split(uint16_t port, uint16_t queue, struct pc_memory memory, struct pc_split split, struct rte_mbuf **mbufs,
			  struct pc_lies *lies, uint16_t most, uint64_t *bytes, uint16_t *elsewhere);

/* Whether a packet's pieces are as long as it says, and lie in their buffers: not 0 then. */
int pc_is_whole(const struct rte_mbuf *mbuf);

/* Adds what is in one piece, or more, to the end of a packet: 0, or a negative error for more pieces than there may be. */
int pc_add(struct rte_mbuf *mbuf, struct rte_mbuf *behind);

#endif
