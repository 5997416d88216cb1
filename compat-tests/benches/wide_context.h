/* For virtual machines that have the packet's ends in a context of their own, as addresses of 64 bits, where the kernel's
 * verifier makes such of the 32 bits of `struct xdp_md`. Included before a program, which stays as it is. */
#include <linux/bpf.h>

struct wide_context {
    __u64 data;
    __u64 data_end;
};

#define xdp_md wide_context
