/* A driver library for tests: answers the calls that the agent makes, from a file of "DEVICE KEY VALUE" lines.
 *
 * The file is read again whenever it changes. "-1" as DEVICE is the machine. Any call can be made to fail by a line
 * "DEVICE error.FUNCTION CODE". MIG instances are kept in a second file beside it, as the real driver keeps them
 * beyond a process. Events are lines of a third file; a set sees those that were written after it was made.
 * Handles are allocated anew by every look-up: two handles of one device are different pointers, as in reality.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "nvml_types.h"

#define MAX_LINES 8192
#define MAX_GI 64
#define TIMEOUT 10
typedef struct { int dev; char key[64]; char value[160]; } Line;
typedef struct { int dev, id, profile, start, size, ci; char uuid[64]; } Instance;
typedef struct { int dev; int gi; unsigned epoch; } Handle;
typedef struct { int dev; int gi; int ci; } Part;
typedef struct { long offset; } EventSet;

/* The listener, the scan and the cutting are threads of their own: each keeps its own copy of the file. */
static __thread Line lines[MAX_LINES];
static __thread int count_lines = 0;
static __thread struct timespec stamp;
static Instance made[MAX_GI];
static int count_made = 0;
static int mode[64], pending[64];
static unsigned epoch = 1;
static int initialised = 0;

static const char *path(const char *suffix) {
    static __thread char name[1024];
    snprintf(name, sizeof name, "%s%s", getenv("FAKE_NVML"), suffix);
    return name;
}
static void load(void) {
    struct stat st;
    if (stat(path(""), &st) != 0) return;
    if (st.st_mtim.tv_sec == stamp.tv_sec && st.st_mtim.tv_nsec == stamp.tv_nsec) return;
    stamp = st.st_mtim;
    FILE *f = fopen(path(""), "r");
    if (!f) return;
    char text[512];
    count_lines = 0;
    while (count_lines < MAX_LINES && fgets(text, sizeof text, f)) {
        Line *l = &lines[count_lines];
        l->value[0] = 0;
        if (sscanf(text, "%d %63s %159[^\n]", &l->dev, l->key, l->value) >= 2) count_lines++;
    }
    fclose(f);
}
static const char *text_of(int dev, const char *key) {
    load();
    for (int i = 0; i < count_lines; i++)
        if (lines[i].dev == dev && strcmp(lines[i].key, key) == 0) return lines[i].value;
    return NULL;
}
static long long number(int dev, const char *key, long long otherwise) {
    const char *v = text_of(dev, key);
    return v ? strtoll(v, NULL, 0) : otherwise;
}
static void load_mig(void) {
    FILE *f = fopen(path(".mig"), "r");
    count_made = 0;
    memset(mode, 0, sizeof mode);
    memset(pending, 0, sizeof pending);
    if (!f) return;
    char text[256];
    while (fgets(text, sizeof text, f)) {
        int dev, on;
        Instance *i = &made[count_made];
        if (sscanf(text, "mode %d %d", &dev, &on) == 2) mode[dev] = on;
        else if (sscanf(text, "pending %d %d", &dev, &on) == 2) pending[dev] = on;
        else if (sscanf(text, "gi %d %d %d %d %d %d %63s", &i->dev, &i->id, &i->profile, &i->start, &i->size, &i->ci,
                        i->uuid) == 7) count_made++;
    }
    fclose(f);
}
static void save_mig(void) {
    FILE *f = fopen(path(".mig"), "w");
    if (!f) return;
    for (int d = 0; d < 64; d++) if (mode[d]) fprintf(f, "mode %d %d\n", d, mode[d]);
    for (int d = 0; d < 64; d++) if (pending[d]) fprintf(f, "pending %d %d\n", d, pending[d]);
    for (int n = 0; n < count_made; n++)
        fprintf(f, "gi %d %d %d %d %d %d %s\n", made[n].dev, made[n].id, made[n].profile, made[n].start, made[n].size,
                made[n].ci, made[n].uuid);
    fclose(f);
    epoch++; /* MIG handles from before are stale now */
}
static int fault(int dev, const char *function) {
    char key[64];
    snprintf(key, sizeof key, "error.%s", function);
    return (int)number(dev, key, 0);
}
#define MACHINE() do { if (!initialised) return 1; int e_ = fault(-1, __func__); if (e_) return e_; } while (0)
#define DEVICE(h) Handle *h_ = (Handle *)(h); do { \
    if (!initialised) return 1; if (!h_) return 2; \
    if (number(h_->dev, "lost", 0)) return 15; \
    int e_ = fault(h_->dev, __func__); if (e_) return e_; \
    if (h_->gi && h_->epoch != epoch) return 2; } while (0)
#define DEV (h_->dev)

static Handle *handle(int dev, int gi) {
    Handle *h = malloc(sizeof *h);
    h->dev = dev; h->gi = gi; h->epoch = epoch;
    return h;
}
static Instance *instance(int dev, int gi) {
    for (int n = 0; n < count_made; n++) if (made[n].dev == dev && made[n].id == gi) return &made[n];
    return NULL;
}
static int put(const char *v, char *out, unsigned length) {
    if (!v) return 3;
    if (strlen(v) + 1 > length) return 7;
    strcpy(out, v);
    return 0;
}
static int give(int dev, const char *key, unsigned *out) {
    const char *v = text_of(dev, key);
    if (!v) return 3;
    *out = (unsigned)strtoul(v, NULL, 0);
    return 0;
}

/* the machine */
int nvmlInitWithFlags(unsigned flags) {
    int e = fault(-1, __func__);
    if (e) return e;
    load_mig();
    initialised++;
    return 0;
}
int nvmlShutdown(void) { if (!initialised) return 1; initialised--; return 0; }
const char *nvmlErrorString(int code) {
    switch (code) {
        case 3: return "Not Supported"; case 4: return "Insufficient Permissions"; case 9: return "Driver Not Loaded";
        case 15: return "GPU is lost"; case 19: return "In use by another client"; case 23: return "Insufficient Resources";
        default: return "Stub Error";
    }
}
int nvmlSystemGetDriverVersion(char *out, unsigned length) { MACHINE(); return put(text_of(-1, "driver"), out, length); }
int nvmlSystemGetNVMLVersion(char *out, unsigned length) { MACHINE(); return put(text_of(-1, "nvml"), out, length); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { MACHINE(); *out = (int)number(-1, "cuda", 0); return 0; }
int nvmlDeviceGetCount_v2(unsigned *out) { MACHINE(); *out = (unsigned)number(-1, "count", 0); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle **out) {
    MACHINE();
    if (index >= number(-1, "count", 0)) return 2;
    /* the order of indices is the machine's, which need not be that of the description */
    char key[32];
    snprintf(key, sizeof key, "index.%u", index);
    int dev = (int)number(-1, key, index);
    if (number(dev, "lost", 0)) return 15;
    int e = fault(dev, __func__);
    if (e) return e;
    *out = handle(dev, 0);
    return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, Handle **out) {
    MACHINE();
    for (int d = 0; d < number(-1, "count", 0); d++) {
        const char *v = text_of(d, "bus");
        if (v && strcmp(v, bus) == 0) {
            if (number(d, "lost", 0)) return 15;
            *out = handle(d, 0);
            return 0;
        }
    }
    return 6;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Handle **out) {
    MACHINE();
    for (int d = 0; d < number(-1, "count", 0); d++) {
        const char *v = text_of(d, "uuid");
        if (v && strcmp(v, uuid) == 0) {
            if (number(d, "lost", 0)) return 15;
            *out = handle(d, 0);
            return 0;
        }
    }
    return 6;
}

/* one device */
int nvmlDeviceGetUUID(Handle *h, char *out, unsigned length) {
    DEVICE(h);
    if (h->gi) { Instance *i = instance(DEV, h->gi); return i ? put(i->uuid, out, length) : 2; }
    return put(text_of(DEV, "uuid"), out, length);
}
int nvmlDeviceGetName(Handle *h, char *out, unsigned length) { DEVICE(h); return put(text_of(DEV, "name"), out, length); }
int nvmlDeviceGetSerial(Handle *h, char *out, unsigned length) { DEVICE(h); return put(text_of(DEV, "serial"), out, length); }
int nvmlDeviceGetArchitecture(Handle *h, unsigned *out) { DEVICE(h); return give(DEV, "architecture", out); }
int nvmlDeviceGetCudaComputeCapability(Handle *h, int *major, int *minor) {
    DEVICE(h);
    const char *v = text_of(DEV, "capability");
    return v && sscanf(v, "%d.%d", major, minor) == 2 ? 0 : 3;
}
int nvmlDeviceGetPciInfo_v3(Handle *h, nvmlPciInfo_t *out) {
    DEVICE(h);
    memset(out, 0, sizeof *out);
    const char *v = text_of(DEV, "bus");
    if (!v) return 3;
    strncpy(out->busId, v, sizeof out->busId - 1);
    strncpy(out->busIdLegacy, strlen(v) > 4 ? v + 4 : v, sizeof out->busIdLegacy - 1);
    out->pciDeviceId = (unsigned)number(DEV, "pci_id", 0);
    return 0;
}
int nvmlDeviceGetMemoryInfo(Handle *h, c_nvmlMemory_t *out) {
    DEVICE(h);
    Instance *i = h->gi ? instance(DEV, h->gi) : NULL;
    char key[48];
    if (i) snprintf(key, sizeof key, "profile.%d.bytes", i->profile);
    out->total = i ? number(DEV, key, 0) : number(DEV, "memory", 0);
    out->used = i ? 0 : number(DEV, "reserved", 0) + number(DEV, "used", 0);
    out->free = out->total - out->used;
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(Handle *h, c_nvmlMemory_v2_t *out) {
    DEVICE(h);
    if (out->version != (sizeof *out | 2 << 24)) return 25;
    out->total = number(DEV, "memory", 0); out->reserved = number(DEV, "reserved", 0); out->used = number(DEV, "used", 0);
    out->free = out->total - out->reserved - out->used;
    return 0;
}
int nvmlDeviceGetUtilizationRates(Handle *h, c_nvmlUtilization_t *out) {
    DEVICE(h);
    if (mode[DEV]) return 3;
    out->memory = 0;
    return give(DEV, "utilization", &out->gpu);
}
int nvmlDeviceGetTemperatureV(Handle *h, c_nvmlTemperature_v1_t *out) { DEVICE(h); return give(DEV, "temperature", (unsigned *)&out->temperature); }
int nvmlDeviceGetTemperature(Handle *h, unsigned sensor, unsigned *out) { DEVICE(h); return give(DEV, "temperature", out); }
int nvmlDeviceGetPowerUsage(Handle *h, unsigned *out) { DEVICE(h); return give(DEV, "power_mw", out); }
int nvmlDeviceGetEnforcedPowerLimit(Handle *h, unsigned *out) { DEVICE(h); return give(DEV, "power_limit_mw", out); }
int nvmlDeviceGetClockInfo(Handle *h, unsigned kind, unsigned *out) { DEVICE(h); return give(DEV, kind == 1 ? "sm_mhz" : "memory_mhz", out); }
int nvmlDeviceGetMaxClockInfo(Handle *h, unsigned kind, unsigned *out) { DEVICE(h); return give(DEV, kind == 1 ? "sm_max_mhz" : "memory_max_mhz", out); }
int nvmlDeviceGetCurrentClocksEventReasons(Handle *h, unsigned long long *out) { DEVICE(h); *out = number(DEV, "throttle", 1); return 0; }
int nvmlDeviceGetCurrPcieLinkGeneration(Handle *h, unsigned *out) { DEVICE(h); return give(DEV, "pcie_generation", out); }
int nvmlDeviceGetMaxPcieLinkGeneration(Handle *h, unsigned *out) { DEVICE(h); return give(DEV, "pcie_generation", out); }
int nvmlDeviceGetCurrPcieLinkWidth(Handle *h, unsigned *out) { DEVICE(h); return give(DEV, "pcie_width", out); }
int nvmlDeviceGetMaxPcieLinkWidth(Handle *h, unsigned *out) { DEVICE(h); return give(DEV, "pcie_width", out); }
int nvmlDeviceGetPcieReplayCounter(Handle *h, unsigned *out) { DEVICE(h); return give(DEV, "pcie_replays", out); }
int nvmlDeviceGetPcieThroughput(Handle *h, unsigned kind, unsigned *out) { DEVICE(h); return give(DEV, kind ? "pcie_rx_kib" : "pcie_tx_kib", out); }
int nvmlDeviceGetEccMode(Handle *h, unsigned *now, unsigned *next) {
    DEVICE(h);
    if (!text_of(DEV, "ecc")) return 3;
    *now = *next = 1;
    return 0;
}
int nvmlDeviceGetTotalEccErrors(Handle *h, unsigned kind, unsigned counter, unsigned long long *out) {
    DEVICE(h);
    char key[32];
    snprintf(key, sizeof key, "ecc.%u.%u", kind, counter);
    *out = number(DEV, key, 0);
    return text_of(DEV, "ecc") ? 0 : 3;
}
int nvmlDeviceGetRemappedRows(Handle *h, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    DEVICE(h);
    const char *v = text_of(DEV, "remap");
    if (!v || mode[DEV]) return 3;
    return sscanf(v, "%u %u %u %u", corrected, uncorrected, pending, failed) == 4 ? 0 : 999;
}
static int list_processes(Handle *h, unsigned *count, c_nvmlProcessInfo_v2_t *out, const char *prefix) {
    unsigned n = 0, room = *count;
    char key[32];
    for (;; n++) {
        snprintf(key, sizeof key, "%s.%u", prefix, n);
        const char *v = text_of(h->dev, key);
        if (!v) break;
        if (out && n < room) {
            long long bytes = -1;
            sscanf(v, "%u %lld", &out[n].pid, &bytes);
            out[n].usedGpuMemory = (unsigned long long)bytes; /* -1: not available */
            out[n].gpuInstanceId = out[n].computeInstanceId = 0xFFFFFFFF;
        }
    }
    *count = n;
    return n > room ? 7 : 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Handle *h, unsigned *count, c_nvmlProcessInfo_v2_t *out) { DEVICE(h); if (h->gi) { *count = 0; return 0; } return list_processes(h, count, out, "process"); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(Handle *h, unsigned *count, c_nvmlProcessInfo_v2_t *out) { DEVICE(h); *count = 0; return 0; }
int nvmlDeviceGetFieldValues(Handle *h, int count, c_nvmlFieldValue_t *values) {
    DEVICE(h);
    for (int n = 0; n < count; n++) {
        char key[32];
        snprintf(key, sizeof key, "field.%u", values[n].fieldId);
        const char *v = text_of(DEV, key);
        values[n].nvmlReturn = v ? 0 : 3;
        values[n].valueType = 3;
        values[n].value.ullVal = v ? strtoull(v, NULL, 0) : 0;
    }
    return 0;
}

/* links and topology */
int nvmlDeviceGetNvLinkState(Handle *h, unsigned link, unsigned *out) {
    DEVICE(h);
    if (link >= number(DEV, "links", 0)) return 2;
    *out = link < number(DEV, "links_active", 0);
    return 0;
}
int nvmlDeviceGetNvLinkVersion(Handle *h, unsigned link, unsigned *out) { DEVICE(h); return give(DEV, "link_version", out); }
int nvmlDeviceGetNvLinkRemoteDeviceType(Handle *h, unsigned link, unsigned *out) { DEVICE(h); *out = number(-1, "switched", 0) ? 2 : 0; return 0; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle *h, unsigned link, nvmlPciInfo_t *out) {
    DEVICE(h);
    const char *v = text_of((int)number(DEV, "link_peer", DEV), "bus");
    memset(out, 0, sizeof *out);
    strncpy(out->busId, v ? v : "", sizeof out->busId - 1);
    return 0;
}
int nvmlDeviceGetTopologyCommonAncestor(Handle *h, Handle *other, unsigned *out) {
    DEVICE(h);
    *out = number(DEV, "numa", 0) == number(other->dev, "numa", 0) ? 40 : 50;
    return 0;
}
int nvmlDeviceGetGpuFabricInfoV(Handle *h, c_nvmlGpuFabricInfo_v3_t *out) {
    DEVICE(h);
    if (!text_of(DEV, "fabric")) return 3;
    memset(out->clusterUuid, 0xAB, sizeof out->clusterUuid);
    out->state = (unsigned)number(DEV, "fabric", 3);
    out->cliqueId = 7;
    out->healthSummary = (unsigned char)number(DEV, "fabric_health", 1);
    return 0;
}

/* bandwidth of the memory */
int nvmlGpmQueryDeviceSupport(Handle *h, c_nvmlGpmSupport_t *out) { DEVICE(h); out->isSupportedDevice = (unsigned)number(DEV, "gpm", 0); return 0; }
int nvmlGpmSampleAlloc(int **out) { MACHINE(); *out = calloc(1, sizeof(int)); return 0; }
int nvmlGpmSampleFree(int *sample) { free(sample); return 0; }
int nvmlGpmSampleGet(Handle *h, int *sample) { DEVICE(h); *sample = (int)number(DEV, "bandwidth", 0); return 0; }
int nvmlGpmMigSampleGet(Handle *h, unsigned gi, int *sample) {
    DEVICE(h);
    if (!instance(DEV, gi)) return 2;
    *sample = (int)number(DEV, "bandwidth", 0);
    return 0;
}
int nvmlGpmMetricsGet(c_nvmlGpmMetricsGet_t *get) {
    MACHINE();
    for (unsigned n = 0; n < get->numMetrics; n++) {
        get->metrics[n].nvmlReturn = get->metrics[n].metricId == 10 ? 0 : 3;
        get->metrics[n].value = *(int *)get->sample2;
    }
    return 0;
}

/* MIG */
int nvmlDeviceGetMigMode(Handle *h, unsigned *now, unsigned *next) {
    DEVICE(h);
    if (!text_of(DEV, "mig")) return 3;
    *now = mode[DEV];
    *next = pending[DEV];
    return 0;
}
int nvmlDeviceSetMigMode(Handle *h, unsigned on, unsigned *status) {
    DEVICE(h);
    if (!text_of(DEV, "mig")) return 3;
    *status = (unsigned)number(DEV, "mig_activation", 0); /* the call succeeds, the activation need not */
    pending[DEV] = (int)on;
    save_mig();
    if (*status) return 0;
    for (int n = 0; n < count_made; n++) if (made[n].dev == DEV) return 19;
    mode[DEV] = (int)on;
    save_mig();
    return 0;
}
static const char *row(int dev, unsigned value, int by_enum) {
    char key[32];
    static __thread char found[192];
    for (int n = 0; n < 32; n++) {
        snprintf(key, sizeof key, "profile.%d", n);
        const char *v = text_of(dev, key);
        if (!v) return NULL;
        unsigned id, enumeration;
        sscanf(v, "%u %u", &id, &enumeration);
        if ((by_enum ? enumeration : id) == value) { strncpy(found, v, sizeof found - 1); return found; }
    }
    return NULL;
}
int nvmlDeviceGetGpuInstanceProfileInfoV(Handle *h, unsigned enumeration, c_nvmlGpuInstanceProfileInfo_v2_t *out) {
    DEVICE(h);
    const char *v = row(DEV, enumeration, 1);
    if (!v) return enumeration >= 0x10 ? 2 : 3; /* this driver's enumeration is shorter than the binding's */
    unsigned id, e, compute, memory, sm, max; unsigned long long mib; char name[64];
    sscanf(v, "%u %u %63s %u %u %llu %u %u", &id, &e, name, &compute, &memory, &mib, &sm, &max);
    unsigned version = out->version;
    memset(out, 0, sizeof *out);
    out->version = version; out->id = id; out->sliceCount = compute; out->instanceCount = max; out->multiprocessorCount = sm;
    out->memorySizeMB = mib;
    snprintf(out->name, sizeof out->name, "MIG %s", name);
    return 0;
}
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(Handle *h, unsigned id, c_nvmlGpuInstancePlacement_t *out, unsigned *count) {
    DEVICE(h);
    const char *v = row(DEV, id, 0);
    if (!v) return 2;
    unsigned i, e, compute, memory, n = 0; char name[64], starts[64];
    unsigned long long mib; unsigned sm, max;
    sscanf(v, "%u %u %63s %u %u %llu %u %u %63s", &i, &e, name, &compute, &memory, &mib, &sm, &max, starts);
    for (char *s = strtok(starts, ","); s; s = strtok(NULL, ",")) {
        if (out) { if (n >= *count) return 7; out[n].start = atoi(s); out[n].size = memory; }
        n++;
    }
    *count = n;
    return 0;
}
static Part *part(int dev, int gi, int ci) { Part *p = malloc(sizeof *p); p->dev = dev; p->gi = gi; p->ci = ci; return p; }
int nvmlDeviceGetGpuInstances(Handle *h, unsigned id, Part **out, unsigned *count) {
    DEVICE(h);
    unsigned n = 0;
    for (int i = 0; i < count_made; i++)
        if (made[i].dev == DEV && made[i].profile == (int)id) out[n++] = part(DEV, made[i].id, 0);
    *count = n;
    return 0;
}
int nvmlDeviceGetGpuInstanceById(Handle *h, unsigned id, Part **out) {
    DEVICE(h);
    if (!instance(DEV, id)) return 6;
    *out = part(DEV, id, 0);
    return 0;
}
int nvmlGpuInstanceGetInfo(Part *p, c_nvmlGpuInstanceInfo_t *out) {
    MACHINE();
    Instance *i = instance(p->dev, p->gi);
    if (!i) return 2;
    out->device = (void *)handle(p->dev, 0); out->id = i->id; out->profileId = i->profile;
    out->placement.start = i->start; out->placement.size = i->size;
    return 0;
}
int nvmlDeviceCreateGpuInstanceWithPlacement(Handle *h, unsigned id, c_nvmlGpuInstancePlacement_t *place, Part **out) {
    DEVICE(h);
    const char *v = row(DEV, id, 0);
    if (!v || !mode[DEV]) return 2;
    char key[48];
    snprintf(key, sizeof key, "refuse.%u.%u", id, place->start);
    if (number(DEV, key, 0)) return (int)number(DEV, key, 0);
    for (int n = 0; n < count_made; n++)
        if (made[n].dev == DEV && (int)place->start < made[n].start + made[n].size && made[n].start < (int)(place->start + place->size)) return 23;
    int number_ = 1;
    while (instance(DEV, number_)) number_++;
    Instance *i = &made[count_made++];
    i->dev = DEV; i->id = number_; i->profile = (int)id; i->start = place->start; i->size = place->size; i->ci = -1;
    snprintf(i->uuid, sizeof i->uuid, "MIG-%08x-%04x-%04x-%04x-%012x", (unsigned)getpid(), DEV, number_, id, place->start + 16 * ++epoch);
    save_mig();
    *out = part(DEV, number_, 0);
    return 0;
}
int nvmlGpuInstanceDestroy(Part *p) {
    MACHINE();
    Instance *i = instance(p->dev, p->gi);
    if (!i) return 6;
    if (i->ci >= 0 || fault(p->dev, __func__)) return 19;
    *i = made[--count_made];
    save_mig();
    return 0;
}
int nvmlGpuInstanceGetComputeInstanceProfileInfoV(Part *p, unsigned enumeration, unsigned engine, c_nvmlComputeInstanceProfileInfo_v2_t *out) {
    MACHINE();
    Instance *i = instance(p->dev, p->gi);
    const char *v = i ? row(p->dev, i->profile, 0) : NULL;
    if (!v) return 2;
    unsigned id, e, compute; char name[64];
    sscanf(v, "%u %u %63s %u", &id, &e, name, &compute);
    static const unsigned sizes[] = {1, 2, 3, 4, 7, 8, 6};
    if (enumeration > 6) return 2;
    if (sizes[enumeration] > compute) return 3;
    unsigned version = out->version;
    memset(out, 0, sizeof *out);
    out->version = version; out->id = 100 + enumeration; out->sliceCount = sizes[enumeration]; out->instanceCount = compute / sizes[enumeration];
    return 0;
}
int nvmlGpuInstanceCreateComputeInstance(Part *p, unsigned id, Part **out) {
    MACHINE();
    Instance *i = instance(p->dev, p->gi);
    int e = fault(p->dev, __func__);
    if (!i || e) return e ? e : 2;
    i->ci = 0;
    save_mig();
    *out = part(p->dev, p->gi, 0);
    return 0;
}
int nvmlGpuInstanceGetComputeInstances(Part *p, unsigned id, Part **out, unsigned *count) {
    MACHINE();
    Instance *i = instance(p->dev, p->gi);
    if (!i) return 2;
    *count = 0;
    const char *v = row(p->dev, i->profile, 0);
    unsigned a, e, compute; char name[64];
    sscanf(v, "%u %u %63s %u", &a, &e, name, &compute);
    static const unsigned sizes[] = {1, 2, 3, 4, 7, 8, 6};
    if (i->ci >= 0 && sizes[id - 100] == compute) { out[0] = part(p->dev, p->gi, 0); *count = 1; }
    return 0;
}
int nvmlComputeInstanceDestroy(Part *p) {
    MACHINE();
    Instance *i = instance(p->dev, p->gi);
    if (!i) return 6;
    i->ci = -1;
    save_mig();
    return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(Handle *h, unsigned *out) { DEVICE(h); *out = mode[DEV] ? 7 : 0; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(Handle *h, unsigned index, Handle **out) {
    DEVICE(h);
    /* indices have holes: instance n of the device sits at index n modulo 7 */
    for (int n = 0; n < count_made; n++)
        if (made[n].dev == DEV && made[n].ci >= 0 && (unsigned)(made[n].id % 7) == index) { *out = handle(DEV, made[n].id); return 0; }
    return 6;
}
int nvmlDeviceGetGpuInstanceId(Handle *h, unsigned *out) { DEVICE(h); *out = h->gi; return 0; }
int nvmlDeviceGetComputeInstanceId(Handle *h, unsigned *out) { DEVICE(h); *out = 0; return 0; }
int nvmlDeviceGetAttributes_v2(Handle *h, c_nvmlDeviceAttributes *out) {
    DEVICE(h);
    Instance *i = h->gi ? instance(DEV, h->gi) : NULL;
    const char *v = i ? row(DEV, i->profile, 0) : NULL;
    if (!v) return 3;
    unsigned id, e, compute; char name[64];
    sscanf(v, "%u %u %63s %u", &id, &e, name, &compute);
    memset(out, 0, sizeof *out);
    out->gpuInstanceSliceCount = compute;
    return 0;
}

/* events */
int nvmlEventSetCreate(EventSet **out) {
    MACHINE();
    struct stat st;
    EventSet *s = malloc(sizeof *s);
    s->offset = stat(path(".events"), &st) == 0 ? st.st_size : 0;
    *out = s;
    return 0;
}
int nvmlEventSetFree(EventSet *set) { free(set); return 0; }
int nvmlDeviceGetSupportedEventTypes(Handle *h, unsigned long long *out) { DEVICE(h); *out = 0x1 | 0x2 | 0x8; return 0; }
int nvmlDeviceRegisterEvents(Handle *h, unsigned long long types, EventSet *set) { DEVICE(h); return types & ~0xBULL ? 3 : 0; }
int nvmlEventSetWait_v2(EventSet *set, c_nvmlEventData_t *out, unsigned timeout_ms) {
    for (unsigned waited = 0;; waited += 2) {
        if (!initialised) return 1;
        int e = fault(-1, __func__);
        if (e) return e;
        FILE *f = fopen(path(".events"), "r");
        char text[128];
        if (f && fseek(f, set->offset, SEEK_SET) == 0 && fgets(text, sizeof text, f) && strchr(text, '\n')) {
            int dev; long type; long long data; int gi;
            set->offset = ftell(f);
            fclose(f);
            sscanf(text, "%d %ld %lld %d", &dev, &type, &data, &gi);
            out->device = (void *)handle(dev, 0); out->eventType = type; out->eventData = data;
            out->gpuInstanceId = gi < 0 ? 0xFFFFFFFF : (unsigned)gi; out->computeInstanceId = 0xFFFFFFFF;
            return 0;
        }
        if (f) fclose(f);
        if (waited >= timeout_ms) return TIMEOUT;
        usleep(2000);
    }
}
