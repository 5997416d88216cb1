/* What of DPDK is inline, or depends on the layout of a structure that each release has its own of; and the loops over a burst,
 * which are one call a burst and not one a packet. */
#ifndef PORTCULLIS_SHIM_H
#define PORTCULLIS_SHIM_H

#include <stddef.h>
#include <stdint.h>

struct rte_mbuf;
struct rte_mempool;

/* Where a packet lies: bytes from the first of the memory that packets are in, and its length. */
struct pc_lies {
	uint32_t offset;
	uint32_t length;
};

/* The memory that packets lie in, and what room they need there. */
struct pc_memory {
	uint8_t *base;
	size_t length;
	/* Bytes that are to be free before a packet and behind it. */
	uint32_t room;
};

/* The offset of a packet that does not lie in one piece in this memory, with that room. */
#define PC_ELSEWHERE UINT32_MAX

/* Flows that tell packets of one connection from those of another (RTE_ETH_RSS_*), and the offload by which a packet comes in several
 * buffers (RTE_ETH_RX_OFFLOAD_SCATTER). */
extern const uint64_t pc_rss_flows;
extern const uint64_t pc_scatter;

/* rte_errno of the calling thread. */
int pc_errno(void);

/* A pool for `count` packets, each with its description and `room` bytes of contents side by side, without any memory yet; NULL, and
 * why in rte_errno. */
struct rte_mempool *pc_pool(const char *name, unsigned int count, unsigned int cache, uint16_t room, int node);

/* Bytes that all its packets need in one piece of memory, wherever that begins. */
size_t pc_pool_bytes(const struct rte_mempool *pool);

/* Makes a pool's packets of so many bytes, which are zero and DPDK's own (rte_malloc). Gives their number: all of them, if the bytes are
 * enough; or a negative error. */
int pc_pool_fill(struct rte_mempool *pool, uint8_t *base, size_t length);

/* Receives up to `most` packets. Gives how many came. */
uint16_t pc_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t most);

/* The same, and says where each lies, or PC_ELSEWHERE with its whole length. Adds their bytes to `bytes`, and counts those that lie
 * elsewhere in `elsewhere`. */
uint16_t pc_receive(uint16_t port, uint16_t queue, struct pc_memory memory, struct rte_mbuf **mbufs, struct pc_lies *lies,
		    uint16_t most, uint64_t *bytes, uint16_t *elsewhere);

/* Has packets be where `lies` says, all of them in the memory of their own buffers. */
void pc_settle(struct pc_memory memory, struct rte_mbuf *const *mbufs, const struct pc_lies *lies, size_t count);

/* Sends packets; gives how many the driver has taken, the first ones. The others are still the caller's. */
uint16_t pc_send(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count);

/* The bytes of packets. */
uint64_t pc_bytes(struct rte_mbuf *const *mbufs, size_t count);

/* Gives packets back to their pools. */
void pc_free(struct rte_mbuf **mbufs, size_t count);

/* Takes packets from a pool, without contents: all of them, or none (then it gives a negative error). */
int pc_take(struct rte_mempool *pool, struct rte_mbuf **mbufs, size_t count);

/* Has the packet be `length` bytes from the place on where a new one begins; gives that place, or NULL where it has no such room. */
uint8_t *pc_begin(struct rte_mbuf *mbuf, uint32_t length);

/* Copies them to `to`, which has room for `room`; gives how many. */
uint32_t pc_copy(const struct rte_mbuf *mbuf, uint8_t *to, uint32_t room);

#endif
