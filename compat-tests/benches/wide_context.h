/* For virtual machines whose context has the packet's ends as 64-bit addresses; the kernel's
 * verifier widens the 32-bit fields of `struct xdp_md` itself. Included before a program, which
 * stays unchanged. */
#include <linux/bpf.h>

struct wide_context {
    __u64 data;
    __u64 data_end;
};

#define xdp_md wide_context
