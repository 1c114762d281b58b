/* Stand-ins for NVIDIA's driver on machines without a GPU: the user-mode driver (-DCUDA) and NVML (-DNVML), with the
 * calls that this project uses. Built by tests/image/standin.py with
 *   VERSION  the library's own driver version, "470.161.03"
 *   OFFERS   the CUDA version that it offers, 11040
 *   KERNEL   the file with the version of the stand-in kernel driver
 *   GPUS     their number, by default 2
 * A user-mode driver works with its own kernel driver. A newer one works too, like a compat package, but not on a
 * workstation GPU (the file KERNEL ends in "geforce"). With -DCRASH or -DHANG the driver crashes or hangs.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef GPUS
#define GPUS 2
#endif

static int kernel(int version[3], char *rest)
{
    FILE *file = fopen(KERNEL, "r");
    version[2] = 0;
    rest[0] = 0;
    if (!file) return 0;
    int read = fscanf(file, "%d.%d.%d %15s", &version[0], &version[1], &version[2], rest);
    fclose(file);
    return read >= 2;
}

static void misbehave(void)
{
#ifdef CRASH
    raise(SIGSEGV);
#endif
#ifdef HANG
    for (;;) pause();
#endif
}

#ifdef CUDA

enum { NOT_INITIALIZED = 3, NO_DEVICE = 100, MISMATCH = 803, NOT_THIS_DEVICE = 804 };

static int initialised, shown, places[GPUS];  /* the GPUs shown, by their places in the machine */

/* All, or those of CUDA_VISIBLE_DEVICES up to the first that the machine lacks, as with the real driver. */
static void show(void)
{
    char uuid[64], number[16], list[1024];
    const char *selected = getenv("CUDA_VISIBLE_DEVICES");
    shown = 0;
    if (!selected) {
        for (; shown < GPUS; shown++) places[shown] = shown;
        return;
    }
    snprintf(list, sizeof list, "%s", selected);
    for (char *name = strtok(list, ","); name; name = strtok(0, ",")) {
        int place = 0;
        for (; place < GPUS; place++) {
            unsigned b = place + 1;
            snprintf(uuid, sizeof uuid, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                     b, b, b, b, b, b, b, b, b, b, b, b, b, b, b, b);
            snprintf(number, sizeof number, "%d", place);
            if (!strcmp(name, uuid) || !strcmp(name, number)) break;
        }
        if (place == GPUS) return;
        places[shown++] = place;
    }
}

int cuDriverGetVersion(int *version) { *version = OFFERS; return 0; }

int cuInit(unsigned flags)
{
    int own[3] = {0}, under[3];
    char rest[16];
    (void)flags;
    misbehave();
    if (!kernel(under, rest)) return NO_DEVICE;
    sscanf(VERSION, "%d.%d.%d", &own[0], &own[1], &own[2]);
    for (int place = 0; place < 3; place++) {
        if (own[place] < under[place]) return MISMATCH;
        if (own[place] > under[place] && strcmp(rest, "geforce") == 0) return NOT_THIS_DEVICE;
        if (own[place] > under[place]) break;
    }
    show();
    initialised = 1;
    return shown ? 0 : NO_DEVICE;
}

int cuDeviceGetCount(int *count) { *count = shown; return initialised ? 0 : NOT_INITIALIZED; }
int cuDeviceGet(int *device, int place) { *device = places[place]; return 0; }
int cuDeviceGetUuid(char *uuid, int device) { memset(uuid, device + 1, 16); return 0; }
int cuDeviceGetName(char *name, int size, int device) { (void)device; snprintf(name, size, "Stand-in GPU"); return 0; }
int cuDeviceTotalMem_v2(size_t *size, int device) { (void)device; *size = (size_t)80 << 30; return 0; }

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    switch (attribute) {
    case 75: *value = 9; return 0;  /* compute capability */
    case 76: *value = 0; return 0;
    case 16: *value = 132; return 0;  /* multiprocessors */
    case 132: *value = OFFERS >= 12010; return 0;  /* multicast */
    default: return 1;
    }
}

int cuGetErrorName(int error, const char **name)
{
    *name = error == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE"
          : error == MISMATCH ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
          : error == NOT_THIS_DEVICE ? "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE" : 0;
    return !*name;
}

#endif
#ifdef NVML

enum { INVALID_ARGUMENT = 2, NOT_LOADED = 9 };

int nvmlInit_v2(void)
{
    int under[3];
    char rest[16];
    misbehave();
    return kernel(under, rest) ? 0 : NOT_LOADED;
}

const char *nvmlErrorString(int error) { return error == NOT_LOADED ? "Driver Not Loaded" : "Invalid Argument"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "%s", VERSION); return 0; }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = OFFERS; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = GPUS; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned place, void **device) { *device = (void *)(place + 1ul); return 0; }

int nvmlDeviceGetName(void *device, char *name, unsigned size)
{
    (void)device;
    snprintf(name, size, "Stand-in GPU");
    return 0;
}

/* 18 links each; the last one of the second GPU is down. */
int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *up)
{
    if (link >= 18) return INVALID_ARGUMENT;
    *up = !(device == (void *)2ul && link == 17);
    return 0;
}

#endif
