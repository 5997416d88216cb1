/* DPDK's inline functions, access to structures whose layout depends on the release, and loops over
 * bursts, so that Rust makes one call per burst and not one per packet. */
#ifndef PORTCULLIS_SHIM_H
#define PORTCULLIS_SHIM_H

#include <stddef.h>
#include <stdint.h>

struct rte_mbuf;
struct rte_mempool;

/* Location of a packet: offset in bytes from the start of packet memory, and length. */
struct pc_lies {
	uint32_t offset;
	uint32_t length;
};

/* Packet memory, and the room that packets need in it. */
struct pc_memory {
	uint8_t *base;
	size_t length;
	/* Bytes that must be free before and after a packet. */
	uint32_t room;
};

/* Offset of a packet that is not contiguous in packet memory with that room. */
#define PC_ELSEWHERE UINT32_MAX

/* Flow types for RSS (RTE_ETH_RSS_*), and the offload for packets in several buffers
 * (RTE_ETH_RX_OFFLOAD_SCATTER). */
extern const uint64_t pc_rss_flows;
extern const uint64_t pc_scatter;

/* rte_errno of the calling thread. */
int pc_errno(void);

/* Creates a pool without memory for `count` mbufs with adjacent buffers of `room` bytes. Returns
 * NULL on failure, with the reason in rte_errno. */
struct rte_mempool *pc_pool(const char *name, unsigned int count, unsigned int cache, uint16_t room, int node);

/* Size in bytes of the memory that the pool needs, wherever it starts. */
size_t pc_pool_bytes(const struct rte_mempool *pool);

/* Populates a pool with zeroed memory from DPDK's heap (rte_malloc). Returns the number of mbufs,
 * all of them if there are enough bytes, or a negative error. */
int pc_pool_fill(struct rte_mempool *pool, uint8_t *base, size_t length);

/* Receives a burst of at most `most` packets; returns their number. */
uint16_t pc_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t most);

/* Like pc_burst, and stores each packet's location, with offset PC_ELSEWHERE if it is not
 * contiguous in `memory`. Adds the packets' lengths to `bytes`; stores the number of packets
 * elsewhere. */
uint16_t pc_receive(uint16_t port, uint16_t queue, struct pc_memory memory, struct rte_mbuf **mbufs, struct pc_lies *lies,
		    uint16_t most, uint64_t *bytes, uint16_t *elsewhere);

/* Sets packets' data offset and length to their locations, which lie in their own buffers. */
void pc_settle(struct pc_memory memory, struct rte_mbuf *const *mbufs, const struct pc_lies *lies, size_t count);

/* Transmits packets; returns how many the driver took over, from the first on. */
uint16_t pc_send(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count);

/* Total length of packets in bytes. */
uint64_t pc_bytes(struct rte_mbuf *const *mbufs, size_t count);

/* Frees packets. */
void pc_free(struct rte_mbuf **mbufs, size_t count);

/* Allocates `count` packets, all or none; returns 0 or a negative error. */
int pc_take(struct rte_mempool *pool, struct rte_mbuf **mbufs, size_t count);

/* Resets the packet and makes it `length` bytes long; returns its data, or NULL if it does not
 * fit. */
uint8_t *pc_begin(struct rte_mbuf *mbuf, uint32_t length);

/* Copies a packet's data to `to`, at most `room` bytes; returns the number of bytes copied. */
uint32_t pc_copy(const struct rte_mbuf *mbuf, uint8_t *to, uint32_t room);

#endif
