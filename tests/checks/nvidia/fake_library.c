/* A libnvidia-ml.so.1 of a few functions, for the real NVML child: structures as in NVML's public header.
   FAKE_NVML=sound (default), refuse, hang, crash. Two GPUs; the second one is lost. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, CORRUPTED_INFOROM = 14, GPU_IS_LOST = 15 };
typedef struct { int index; } Device;
static Device devices[2] = {{0}, {1}};

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} PciInfo;

typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType, nvmlReturn;
    union { double d; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; int si; unsigned short us; } value;
} FieldValue;

static int is(const char *mode) {
    const char *set = getenv("FAKE_NVML");
    return set != NULL && strcmp(set, mode) == 0;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (is("refuse")) return DRIVER_NOT_LOADED;
    while (is("hang")) pause();
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    strncpy(version, "590.44.01", length);
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = is("nothing") ? 1 : 2;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    if (index == 1) return GPU_IS_LOST;
    *device = &devices[index];
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(Device *device, PciInfo *pci) {
    (void)device;
    if (is("nothing")) return NOT_SUPPORTED;
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x18;
    strcpy(pci->busId, "00000000:18:00.0");
    return SUCCESS;
}

int nvmlDeviceGetName(Device *device, char *name, unsigned length) {
    (void)device;
    if (is("crash")) abort();
    if (is("nothing")) return NOT_SUPPORTED;
    strncpy(name, "NVIDIA H100 80GB HBM3", length);
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(Device *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    (void)device;
    if (is("nothing")) return NOT_SUPPORTED;
    *corrected = 1, *uncorrected = 2, *pending = 1, *failed = 0;
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *values) {
    (void)device;
    if (is("nothing")) return NOT_SUPPORTED;
    for (int i = 0; i < count; i++) {
        values[i].nvmlReturn = SUCCESS;
        values[i].valueType = 1;
        switch (values[i].fieldId) {
        case 82: values[i].value.ui = 37; break;                                     /* memory temperature */
        case 91: values[i].value.ui = 1; break;                                      /* NVLinks */
        case 194: values[i].valueType = 5; values[i].value.si = -2; break;           /* slowdown T.Limit */
        case 270: values[i].valueType = 3; values[i].value.ull = 5000000000ull; break; /* ns of thermal slowdown */
        default: values[i].nvmlReturn = NOT_SUPPORTED;
        }
    }
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(Device *device, unsigned link, unsigned *active) {
    (void)device;
    if (is("nothing") || link > 0) return NOT_SUPPORTED;
    *active = 1;
    return SUCCESS;
}

int nvmlDeviceValidateInforom(Device *device) {
    (void)device;
    return is("nothing") ? NOT_SUPPORTED : CORRUPTED_INFOROM;
}

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;

int nvmlDeviceGetMemoryInfo_v2(Device *device, Memory *memory) {
    (void)device;
    if (is("nothing")) return NOT_SUPPORTED;
    if (memory->version != (sizeof *memory | 2u << 24)) return NOT_SUPPORTED;
    memory->total = 81559ull << 20, memory->reserved = 480ull << 20, memory->used = 300ull << 20;
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } Process;

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *processes) {
    (void)device;
    if (is("nothing")) return NOT_SUPPORTED;
    unsigned room = *count;
    *count = 1;
    if (room < 1 || processes == NULL) return INSUFFICIENT_SIZE;
    memset(processes, 0, sizeof *processes);
    processes->pid = 4711;
    return SUCCESS;
}
