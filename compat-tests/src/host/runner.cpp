// Runs kernels on batches from standard input, and writes the results to standard output. The arena
// has exactly the given size, so that a sanitizer detects accesses outside it.
#include <cstdio>
#include <cstdlib>
#include <cstring>

static void get(void *to, size_t size) {
    if (size && fread(to, 1, size, stdin) != size) exit(0);
}

static void put(const void *from, size_t size) {
    if (size && fwrite(from, 1, size, stdout) != size) exit(1);
}

static void *room(size_t size) {
    void *p = aligned_alloc(64, (size + 63) / 64 * 64);
    if (!p) exit(1);
    return p;
}

int main() {
    for (;;) {
        unsigned int head[4];
        get(head, sizeof head);
        unsigned int filter = head[0], count = head[1], bytes = head[2], metadata_bytes = head[3];
        unsigned char *arena = (unsigned char *)malloc(bytes);
        unsigned int *descriptors = (unsigned int *)room(count * 8ul), *metadata = (unsigned int *)room(metadata_bytes);
        unsigned char *verdicts = (unsigned char *)malloc(count);
        unsigned int *targets = (unsigned int *)room(count * 4ul);
        get(arena, bytes);
        get(descriptors, count * 8ul);
        get(metadata, metadata_bytes);
        memset(verdicts, 0xee, count);
        memset(targets, 0, count * 4ul);
        // Two launches, so that the second does not begin with packet 0.
        unsigned int first = count / 3;
        run(filter, arena, descriptors, metadata, verdicts, targets, 0, first);
        run(filter, arena, descriptors, metadata, verdicts, targets, first, count - first);
        put(verdicts, count);
        put(targets, count * 4ul);
        put(descriptors, count * 8ul);
        put(arena, bytes);
        fflush(stdout);
        free(arena), free(descriptors), free(metadata), free(verdicts), free(targets);
    }
}
