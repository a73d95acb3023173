/* A CUDA driver without a GPU: memory is the host's, kernels run on the CPU by their name, and time is counted, not
 * measured: a copy or a kernel moves the device's clock on by what it would take at the rates below, so that tests do
 * not depend on the machine they run on.
 *
 * Strict where a real driver is: memory is bounded and every access checked, calls need a current context, a kernel has
 * to be in the PTX that was loaded, and after an uncorrectable memory error (214) a context is lost. Environment:
 *   FAKE_COUNT=8           devices (1)                FAKE_FREE_MIB=1      memory of each
 *   FAKE_NAME=…            product name               FAKE_SLOW=5          this one runs at a tenth of its speed
 *   FAKE_INIT=100          cuInit's answer            FAKE_ERROR=5:cuMemAlloc:2   function of a device fails with a code
 *   FAKE_HANG=5            a call on it never returns FAKE_CRASH=5         a call on it takes the process along
 *   FAKE_WRONG=5:dgemm     its kernel writes one wrong value each time; FAKE_WRONG_TIMES=1: only so often
 *   FAKE_PIECE_KIB=128     no piece of memory is larger
 */
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
       ECC = 214, INVALID_PTX = 218, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700 };
enum { DEVICES = 16, BLOCKS = 64, KERNELS = 8 };
static const double LINK = 25e9, MEMORY = 2000e9, FLOPS = 10e12; /* bytes/s, bytes/s, operations/s */
static const char *NAMES[KERNELS] = {"daxpy_start", "daxpy", "daxpy_check", "dgemm_start",
                                     "dgemm", "dgemm_check", "memory_write", "memory_check"};

typedef struct { char *at; size_t size; } Block;
static Block blocks[BLOCKS];
static double clocks[DEVICES];
static int count, current = -1, wrong_left, lost;
static size_t capacity, used;
static char *ptx;

static const char *setting(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value ? value : otherwise;
}
static int is(const char *name, int device) { return getenv(name) && atoi(getenv(name)) == device; }
static int fails(const char *function, int device) {
    int at, code;
    char name[64];
    if (is("FAKE_HANG", device) && !strcmp(function, "cuMemAlloc")) for (;;) pause();
    if (is("FAKE_CRASH", device) && !strcmp(function, "cuMemAlloc")) raise(SIGSEGV);
    if (sscanf(setting("FAKE_ERROR", ""), "%d:%63[^:]:%d", &at, name, &code) == 3 && at == device && !strcmp(name, function))
        return lost = code == ECC ? ECC : 0, code;
    return lost;
}
static void pass(double amount, double rate) { clocks[current] += amount / (is("FAKE_SLOW", current) ? rate / 10 : rate); }
static int inside(const void *at, size_t size) {
    for (Block *b = blocks; b < blocks + BLOCKS; b++)
        if (b->at && (char *)at >= b->at && (char *)at + size <= b->at + b->size) return 1;
    return 0;
}

int cuInit(unsigned flags) {
    count = atoi(setting("FAKE_COUNT", "1"));
    capacity = (size_t)(atof(setting("FAKE_FREE_MIB", "1")) * (1 << 20));
    wrong_left = atoi(setting("FAKE_WRONG_TIMES", "1000000"));
    current = -1;
    return flags ? INVALID : atoi(setting("FAKE_INIT", "0"));
}
int cuGetErrorName(int code, const char **name) {
    switch (code) {
    case INVALID: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case 46: *name = "CUDA_ERROR_DEVICE_UNAVAILABLE"; break;
    case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
    case INVALID_DEVICE: *name = "CUDA_ERROR_INVALID_DEVICE"; break;
    case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case ECC: *name = "CUDA_ERROR_ECC_UNCORRECTABLE"; break;
    case INVALID_PTX: *name = "CUDA_ERROR_INVALID_PTX"; break;
    case NOT_FOUND: *name = "CUDA_ERROR_NOT_FOUND"; break;
    case ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
    default: *name = NULL; return INVALID;
    }
    return OK;
}
int cuDeviceGetCount(int *number) { *number = count; return OK; }
int cuDeviceGet(int *device, int index) {
    if (index < 0 || index >= count) return INVALID_DEVICE;
    *device = index;
    return fails("cuDeviceGet", index);
}
int cuDeviceGetPCIBusId(char *text, int size, int device) {
    return snprintf(text, size, "0000:%02X:00.0", 0x18 + 0x10 * device) < size ? OK : INVALID;
}
int cuDeviceGetName(char *text, int size, int device) {
    (void)device;
    snprintf(text, size, "%s", setting("FAKE_NAME", "NVIDIA A100-SXM4-80GB"));
    return OK;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = (void *)(intptr_t)(device + 1);
    return fails("cuDevicePrimaryCtxRetain", device);
}
int cuCtxSetCurrent(void *context) { current = (int)(intptr_t)context - 1; return OK; }
int cuDevicePrimaryCtxRelease_v2(int device) {
    if (device == current && used && !lost) fprintf(stderr, "device %d: %zu bytes were not freed\n", device, used);
    for (Block *b = blocks; b < blocks + BLOCKS; b++) free(b->at), b->at = NULL;
    used = lost = 0;
    current = -1;
    free(ptx);
    ptx = NULL;
    return OK;
}
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    if (current < 0) return INVALID_CONTEXT;
    *total = capacity;
    *free_bytes = capacity - used;
    return OK;
}
static int take(void **pointer, size_t size, size_t limit) {
    for (Block *b = blocks; b < blocks + BLOCKS; b++)
        if (!b->at) {
            if (size > limit || !(b->at = malloc(size))) return OUT_OF_MEMORY;
            b->size = size;
            *pointer = b->at;
            return OK;
        }
    return OUT_OF_MEMORY;
}
static int give_back(void *pointer, size_t *size) {
    for (Block *b = blocks; b < blocks + BLOCKS; b++)
        if (b->at == pointer && pointer) {
            free(b->at);
            b->at = NULL;
            *size = b->size;
            return OK;
        }
    return INVALID;
}
int cuMemAlloc_v2(uint64_t *pointer, size_t size) {
    if (current < 0) return INVALID_CONTEXT;
    int code = fails("cuMemAlloc", current);
    size_t piece = (size_t)atoi(setting("FAKE_PIECE_KIB", "1000000")) << 10, left = capacity - used;
    if (!code && !(code = take((void **)pointer, size, left < piece ? left : piece))) used += size;
    return code;
}
int cuMemFree_v2(uint64_t pointer) {
    if (lost) return lost;
    size_t size = 0;
    int code = give_back((void *)pointer, &size);
    used -= size;
    return code;
}
int cuMemHostAlloc(void **pointer, size_t size, unsigned flags) {
    if (current < 0 || flags) return INVALID_CONTEXT;
    int code = fails("cuMemHostAlloc", current);
    return code ? code : take(pointer, size, SIZE_MAX);
}
int cuMemFreeHost(void *pointer) { size_t size; return lost ? lost : give_back(pointer, &size); }

static int copy(void *to, const void *from, size_t size, const void *device) {
    if (current < 0) return INVALID_CONTEXT;
    if (!inside(device, size)) return INVALID;
    memcpy(to, from, size);
    pass(size, LINK);
    return OK;
}
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) { return copy((void *)to, from, size, (void *)to); }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) { return copy(to, (void *)from, size, (void *)from); }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream) {
    return stream || !inside(from, size) ? INVALID : cuMemcpyHtoD_v2(to, from, size);
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream) {
    return stream || !inside(to, size) ? INVALID : cuMemcpyDtoH_v2(to, from, size);
}
int cuEventCreate(double **event, unsigned flags) {
    if (current < 0 || flags) return INVALID_CONTEXT;
    *event = calloc(1, sizeof(double));
    return OK;
}
int cuEventDestroy_v2(double *event) { free(event); return OK; }
int cuEventRecord(double *event, void *stream) { *event = clocks[current]; return stream ? INVALID : OK; }
int cuEventSynchronize(double *event) { return event ? fails("cuEventSynchronize", current) : INVALID; }
int cuEventElapsedTime(float *ms, double *start, double *stop) { *ms = (float)((*stop - *start) * 1000); return OK; }

int cuModuleLoadData(void **module, const char *text) {
    if (current < 0) return INVALID_CONTEXT;
    if (strncmp(text, ".version", 8)) return INVALID_PTX;
    *module = ptx = strdup(text);
    return fails("cuModuleLoadData", current);
}
int cuModuleGetFunction(const char **function, void *module, const char *name) {
    char entry[64];
    snprintf(entry, sizeof entry, ".entry %s(", name);
    for (int k = 0; k < KERNELS; k++)
        if (module == ptx && !strcmp(NAMES[k], name) && strstr(ptx, entry)) return *function = NAMES[k], OK;
    return NOT_FOUND;
}

#define U(place) (*(uint64_t *)params[place])
#define F(place) (*(double *)params[place])
#define NEEDS(place, bytes) if (!inside((void *)U(place), bytes)) return ILLEGAL_ADDRESS
static void found(uint64_t *wrong, uint64_t i) { wrong[0]++; if (i < wrong[1]) wrong[1] = i; }
static int spoils(const char *name) {
    int at;
    char of[64];
    if (sscanf(setting("FAKE_WRONG", ""), "%d:%63s", &at, of) != 2 || at != current || strcmp(of, name) || !wrong_left) return 0;
    wrong_left--;
    return 1;
}
static void multiply(uint64_t e, const double *a, const double *b, double *c) {
    memset(c, 0, 8 * e * e);
    for (uint64_t i = 0; i < e; i++)
        for (uint64_t k = 0; k < e; k++)
            for (uint64_t j = 0; j < e; j++) c[i * e + j] += a[i * e + k] * b[k * e + j];
}
int cuLaunchKernel(const char *name, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **params, void **extra) {
    if (current < 0) return INVALID_CONTEXT;
    if (shared || stream || extra || gz != 1 || bz != 1) return INVALID;
    int code = fails("cuLaunchKernel", current);
    if (code) return code;
    uint64_t n = U(0);
    if (!strcmp(name, "dgemm")) {
        if (bx != 16 || by != 16 || n % 64 || gx != n / 64 || gy != gx) return INVALID;
        for (int p = 1; p < 4; p++) NEEDS(p, 8 * n * n);
        double *c = (double *)U(3);
        multiply(n, (double *)U(1), (double *)U(2), c);
        if (spoils(name)) c[n + 3] += 1;
        pass(2.0 * n * n * n, FLOPS);
        return OK;
    }
    if (bx != 256 || by != 1 || gy != 1 || gx != (n + 255) / 256) return INVALID;
    if (!strcmp(name, "daxpy_start")) {
        NEEDS(1, 8 * n);
        NEEDS(2, 8 * n);
        for (uint64_t i = 0; i < n; i++) ((double *)U(1))[i] = i % 1021, ((double *)U(2))[i] = i % 509;
    } else if (!strcmp(name, "daxpy")) {
        NEEDS(1, 16 * n);
        NEEDS(2, 16 * n);
        double *x = (double *)U(1), *y = (double *)U(2);
        for (uint64_t i = 0; i < 2 * n; i++) y[i] += F(3) * x[i];
        if (spoils(name)) y[7] += 0.5;
        pass(48.0 * n, MEMORY);
    } else if (!strcmp(name, "daxpy_check")) {
        NEEDS(1, 8 * n);
        NEEDS(3, 16);
        for (uint64_t i = 0; i < n; i++)
            if (((double *)U(1))[i] != F(2) * (i % 1021) + i % 509) found((uint64_t *)U(3), i);
    } else if (!strcmp(name, "dgemm_start")) {
        NEEDS(2, 8 * n);
        NEEDS(3, 8 * n);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t row = i / U(1), column = i % U(1);
            ((double *)U(2))[i] = row % 7 + column % 5;
            ((double *)U(3))[i] = row % 3 + column % 11;
        }
    } else if (!strcmp(name, "dgemm_check")) {
        NEEDS(2, 8 * n);
        NEEDS(6, 16);
        for (uint64_t i = 0; i < n; i++) {
            double u = i / U(1) % 7, z = i % U(1) % 11;
            if (((double *)U(2))[i] != u * (F(4) + U(1) * z) + F(5) + z * F(3)) found((uint64_t *)U(6), i);
        }
    } else {
        int writes = !strcmp(name, "memory_write");
        uint64_t *memory = (uint64_t *)U(1), *wrong = writes ? NULL : (uint64_t *)U(4);
        NEEDS(1, 8 * n);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t word = (i * 0x9E3779B97F4A7C15u + U(2)) ^ U(3);
            if (writes) memory[i] = word;
            else if (memory[i] != word) found(wrong, i);
        }
        if (writes && n > 42 && spoils(name)) memory[42] ^= 1 << 5;
        pass(8.0 * n, MEMORY);
    }
    return OK;
}
