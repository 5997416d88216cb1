/* The Internet checksum: of a whole header (RFC 1071), and updated incrementally (RFC 1624). */
#pragma once

#include <linux/types.h>
#include <linux/ip.h>
#include <bpf/bpf_helpers.h>

static __always_inline __u16 csum_fold(__u32 sum)
{
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return (__u16)~sum;
}

static __always_inline void csum_replace2(__u16 *check, __u16 from, __u16 to)
{
    __u32 sum = (__u16)~*check;

    sum += (__u16)~from;
    sum += to;
    *check = csum_fold(sum);
}

static __always_inline void csum_replace4(__u16 *check, __u32 from, __u32 to)
{
    __u64 sum = (__u16)~*check;

    sum += (__u32)~from;
    sum += to;
    sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
    *check = csum_fold((__u32)sum);
}

/* Over a header without options, whose own checksum field must be 0. */
static __always_inline __u16 csum_ipv4(const struct iphdr *ip)
{
    const __u16 *word = (const __u16 *)ip;
    __u32 sum = 0;

#pragma unroll
    for (unsigned int i = 0; i < sizeof(*ip) / 2; i++)
        sum += word[i];
    return csum_fold(sum);
}
