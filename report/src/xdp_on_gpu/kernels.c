// XDP-on-GPU's workloads over records of 40 bytes, by the rules in its documentation, in place.
// Compiled as OpenCL C and as CUDA C++; KERNEL, GLOBAL, FUNCTION, ITEM and TIME (64 bits) are
// defined before this text.

typedef struct {
    GLOBAL unsigned char *packet;
    unsigned int length;
    unsigned int padding;
    TIME time;
    unsigned int source;
    unsigned int destination;
    unsigned short source_port;
    unsigned short destination_port;
    unsigned char protocol;
    unsigned char action;
} record;

KERNEL void simple(GLOBAL record *records, unsigned int count) {
    unsigned int i = ITEM;
    if (i >= count) return;
    GLOBAL record *r = records + i;
    r->action = r->source != 0xc0a80001u && (r->protocol == 6 || r->protocol == 17);
}

KERNEL void port(GLOBAL record *records, unsigned int count) {
    unsigned int i = ITEM;
    if (i >= count) return;
    unsigned int port = records[i].destination_port;
    unsigned int action = port >= 1024;
    if (port == 22 || port == 23) action = 0;
    if (port == 80 || port == 443) action = 1;
    records[i].action = action;
}

KERNEL void minimal(GLOBAL record *records, unsigned int count) {
    unsigned int i = ITEM;
    if (i >= count) return;
    records[i].action = 1;
}

KERNEL void complex(GLOBAL record *records, unsigned int count) {
    unsigned int i = ITEM;
    if (i >= count) return;
    GLOBAL record *r = records + i;
    unsigned int network = r->source >> 16, port = r->destination_port;
    int is_private = network == 0x0a00u || network == 0xac10u || network == 0xc0a8u;
    int refused = is_private && port < 1024 && port != 80 && port != 443;
    r->action = !(refused || r->length > 1500 || r->length < 64 || r->protocol == 1);
}

// FNV-1a, lowest byte first.
FUNCTION unsigned int taken(unsigned int hash, unsigned int value, int bytes) {
    for (int byte = 0; byte < bytes; byte++) hash = (hash ^ ((value >> (8 * byte)) & 0xffu)) * 16777619u;
    return hash;
}

FUNCTION unsigned int hash_of(GLOBAL const record *r) {
    unsigned int hash = taken(2166136261u, r->source, 4);
    hash = taken(hash, r->destination, 4);
    hash = taken(hash, r->source_port, 2);
    return taken(hash, r->destination_port, 2);
}

KERNEL void balance(GLOBAL record *records, unsigned int count) {
    unsigned int i = ITEM;
    if (i >= count) return;
    unsigned int worker = hash_of(records + i) % 8;
    records[i].action = worker | (worker % 2 == 0 ? 0x80 : 0);
}

KERNEL void balance_in_batches(GLOBAL record *records, unsigned int count) {
    unsigned int first = ITEM * 16;
    for (unsigned int i = first; i < first + 16 && i < count; i++) {
        records[i].action = ((hash_of(records + i) >> 16) % 8) | 0x80;
    }
}
