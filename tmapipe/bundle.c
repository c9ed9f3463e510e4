/* What a file of exported kernels needs at run time: the CUDA driver, which is looked for when a kernel is first launched.
 *
 * Machine code of CuTe DSL calls functions of CUDA's runtime and of Apache TVM FFI. Those that it calls are here, written with
 * the driver's functions, so that such a file needs neither library. `tmapipe.gpu.exporting` appends the kernels.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))
#define HIDDEN __attribute__((visibility("hidden")))

/* ---- errors ---------------------------------------------------------------------------------------------------------- */

static __thread char message[1024];
static __thread int said; /* whether the message is of the call that runs */

static int fail(int code, const char *format, ...) {
    va_list values;
    va_start(values, format);
    if (!said) vsnprintf(message, sizeof message, format, values);
    va_end(values);
    said = 1;
    return code ? code : 1;
}

PUBLIC const char *tmapipe_error(void) { return message; }

HIDDEN void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *text) { fail(1, "%s: %s", kind, text); }

HIDDEN void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
    char text[900] = "";
    for (int32_t i = 0; i < count; i++)
        if (parts[i]) strncat(text, parts[i], sizeof text - strlen(text) - 1);
    fail(1, "%s: %s", kind, text);
}

HIDDEN void CuteDSLRT_TVMFFISetRaisedCudaError(int code) { fail(code, "CUDA error %d", code); }

/* ---- the driver ------------------------------------------------------------------------------------------------------ */

typedef struct { unsigned grid[3], block[3], shared; void *stream, *attributes; unsigned count; } LaunchConfig;

static struct {
    void *library;
    int (*cuInit)(unsigned);
    int (*cuGetErrorString)(int, const char **);
    int (*cuCtxGetCurrent)(void **);
    int (*cuCtxSetCurrent)(void *);
    int (*cuCtxGetDevice)(int *);
    int (*cuDeviceGetCount)(int *);
    int (*cuDeviceGetAttribute)(int *, int, int);
    int (*cuDevicePrimaryCtxRetain)(void **, int);
    int (*cuLibraryLoadData)(void **, const void *, int *, void **, unsigned, int *, void **, unsigned);
    int (*cuLibraryUnload)(void *);
    int (*cuLibraryGetKernel)(void **, void *, const char *);
    int (*cuKernelSetAttribute)(int, int, void *, int);
    int (*cuLaunchKernelEx)(const LaunchConfig *, void *, void **, void **);
    int (*cuModuleLoadData)(void **, const void *);
    int (*cuModuleUnload)(void *);
    int (*cuModuleGetFunction)(void **, void *, const char *);
    int (*cuFuncSetAttribute)(void *, int, int);
    int (*cuOccupancyMaxActiveClusters)(int *, void *, const LaunchConfig *);
    int (*cuMemAlloc)(uint64_t *, size_t);
    int (*cuMemsetD8)(uint64_t, unsigned char, size_t);
    int (*cuGetProcAddress)(const char *, void **, int, uint64_t, int *);
} cuda;

static pthread_once_t sought = PTHREAD_ONCE_INIT;

static void seek(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!library) return;
#define FIND(name, symbol) if (!(*(void **)&cuda.name = dlsym(library, symbol))) return;
    FIND(cuInit, "cuInit") FIND(cuGetErrorString, "cuGetErrorString") FIND(cuCtxGetCurrent, "cuCtxGetCurrent")
    FIND(cuCtxSetCurrent, "cuCtxSetCurrent") FIND(cuCtxGetDevice, "cuCtxGetDevice")
    FIND(cuDeviceGetCount, "cuDeviceGetCount") FIND(cuDeviceGetAttribute, "cuDeviceGetAttribute")
    FIND(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain") FIND(cuLibraryLoadData, "cuLibraryLoadData")
    FIND(cuLibraryUnload, "cuLibraryUnload") FIND(cuLibraryGetKernel, "cuLibraryGetKernel")
    FIND(cuKernelSetAttribute, "cuKernelSetAttribute") FIND(cuLaunchKernelEx, "cuLaunchKernelEx")
    FIND(cuModuleLoadData, "cuModuleLoadData") FIND(cuModuleUnload, "cuModuleUnload")
    FIND(cuModuleGetFunction, "cuModuleGetFunction") FIND(cuFuncSetAttribute, "cuFuncSetAttribute")
    FIND(cuOccupancyMaxActiveClusters, "cuOccupancyMaxActiveClusters") FIND(cuMemAlloc, "cuMemAlloc_v2")
    FIND(cuMemsetD8, "cuMemsetD8_v2") FIND(cuGetProcAddress, "cuGetProcAddress_v2")
    cuda.library = library;
}

static int checked(int code, const char *what) {
    const char *text = NULL;
    if (!code) return 0;
    cuda.cuGetErrorString(code, &text);
    return fail(code, "%s: %s", what, text ? text : "unknown error");
}

/* Makes a context current in this thread, the first device's where there is none; says which device it is of. */
static int enter(int *device) {
    void *context = NULL;
    int code;
    pthread_once(&sought, seek);
    if (!cuda.library) return fail(999, "no CUDA driver (libcuda.so.1) that is new enough: 12.0 or later");
    if ((code = checked(cuda.cuInit(0), "cuInit"))) return code;
    if ((code = checked(cuda.cuCtxGetCurrent(&context), "cuCtxGetCurrent"))) return code;
    if (!context) {
        if ((code = checked(cuda.cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain"))) return code;
        if ((code = checked(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent"))) return code;
    }
    return checked(cuda.cuCtxGetDevice(device), "cuCtxGetDevice");
}

/* ---- what the machine code calls of CUDA's runtime ------------------------------------------------------------------- */

#define RUNTIME(name, call) { return checked(call, #name); }

HIDDEN int cudaGetDevice(int *device) RUNTIME(cudaGetDevice, cuda.cuCtxGetDevice(device))
HIDDEN int cudaGetDeviceCount(int *count) RUNTIME(cudaGetDeviceCount, cuda.cuDeviceGetCount(count))
HIDDEN int cudaSetDevice(int device) { (void)device; return 0; } /* `enter` has made a context current */
HIDDEN int cudaDeviceGetAttribute(int *value, int attribute, int device)
    RUNTIME(cudaDeviceGetAttribute, cuda.cuDeviceGetAttribute(value, attribute, device))
HIDDEN int cudaLibraryLoadData(void **library, const void *code, int *jit, void **jit_values, unsigned jit_count,
                               int *options, void **values, unsigned count)
    RUNTIME(cudaLibraryLoadData, cuda.cuLibraryLoadData(library, code, jit, jit_values, jit_count, options, values, count))
HIDDEN int cudaLibraryUnload(void *library) { return cuda.cuLibraryUnload(library), 0; } /* at exit, where the driver may be gone */
HIDDEN int tmapipe_missing(void) { return fail(801, "the machine code calls what no exported kernel does"); }
HIDDEN int cudaLibraryGetKernel(void **kernel, void *library, const char *name)
    RUNTIME(cudaLibraryGetKernel, cuda.cuLibraryGetKernel(kernel, library, name))
HIDDEN int cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device)
    RUNTIME(cudaKernelSetAttributeForDevice, cuda.cuKernelSetAttribute(attribute, value, kernel, device))
HIDDEN int cudaLaunchKernelExC(const LaunchConfig *config, void *kernel, void **parameters)
    RUNTIME(cudaLaunchKernelExC, cuda.cuLaunchKernelEx(config, kernel, parameters, NULL))

HIDDEN int cudaFuncSetAttribute(void *kernel, int attribute, int value) {
    int device, code = checked(cuda.cuCtxGetDevice(&device), "cuCtxGetDevice");
    return code ? code : checked(cuda.cuKernelSetAttribute(attribute, value, kernel, device), "cudaFuncSetAttribute");
}

HIDDEN int cudaGetDriverEntryPointByVersion(const char *symbol, void **found, unsigned version, unsigned long long flags,
                                            int *status) {
    int answer = 0, code = checked(cuda.cuGetProcAddress(symbol, found, (int)version, flags, &answer), symbol);
    if (status) *status = answer;
    return code;
}

HIDDEN int cudaGetLastError(void) { return 0; }
HIDDEN const char *cudaGetErrorName(int code) { (void)code; return "CUDA error"; }
HIDDEN const char *cudaGetErrorString(int code) {
    const char *text = NULL;
    if (cuda.library) cuda.cuGetErrorString(code, &text);
    return text ? text : "unknown error";
}

/* ---- how many clusters a device holds at once ------------------------------------------------------------------------ */

enum { MULTIPROCESSORS = 16, SHARED_OPTIN = 97, MAX_SHARED = 8, ANY_CLUSTER = 14, CLUSTER = 4, DEVICES = 64, SIZES = 17 };
static const char nothing[] = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry nothing() { ret; }";

static int resident(int device, int size, int *found) {
    static int known[DEVICES][SIZES];
    void *module, *kernel;
    int shared, code;
    if (device < DEVICES && known[device][size]) return *found = known[device][size], 0;
    if (size == 1) {
        code = checked(cuda.cuDeviceGetAttribute(found, MULTIPROCESSORS, device), "cuDeviceGetAttribute");
    } else {
        struct { int id; int pad; unsigned size[3]; char rest[52]; } cluster = {CLUSTER, 0, {(unsigned)size, 1, 1}, {0}};
        LaunchConfig config = {{(unsigned)size, 1, 1}, {128, 1, 1}, 0, NULL, &cluster, 1};
        code = checked(cuda.cuDeviceGetAttribute(&shared, SHARED_OPTIN, device), "cuDeviceGetAttribute");
        if (code || (code = checked(cuda.cuModuleLoadData(&module, nothing), "cuModuleLoadData"))) return code;
        config.shared = (unsigned)shared;
        code = checked(cuda.cuModuleGetFunction(&kernel, module, "nothing"), "cuModuleGetFunction");
        if (!code) code = checked(cuda.cuFuncSetAttribute(kernel, MAX_SHARED, shared), "cuFuncSetAttribute");
        if (!code) code = checked(cuda.cuFuncSetAttribute(kernel, ANY_CLUSTER, 1), "cuFuncSetAttribute");
        if (!code) code = checked(cuda.cuOccupancyMaxActiveClusters(found, kernel, &config), "cuOccupancyMaxActiveClusters");
        cuda.cuModuleUnload(module);
    }
    if (!code && device < DEVICES) known[device][size] = *found;
    return code;
}

/* ---- kernels --------------------------------------------------------------------------------------------------------- */

typedef struct { int32_t kind; uint32_t zero; union { int64_t number; void *pointer; } value; } Any; /* of TVM FFI */
typedef struct { uint64_t references; int32_t kind; uint32_t pad; void *deleter; Any *first; int64_t size, capacity; void *data; }
    Array;
typedef struct {
    void *data;
    int32_t device_type, device;
    int32_t dims;
    struct { uint8_t code, bits; uint16_t lanes; } type;
    const int64_t *shape, *strides;
    uint64_t offset;
} Tensor; /* of DLPack */
enum { INT = 1, POINTER = 4, TENSOR = 7, ARRAY = 71, ON_CUDA = 2, MOST_TENSORS = 64, MOST_NUMBERS = 1024 };

typedef struct {
    int (*call)(void *, const Any *, int32_t, Any *);
    const Tensor *tensors; /* without addresses */
    int count;             /* of tensors, those of the workspace among them */
    int passed;            /* of tensors */
    const int64_t *places; /* where in the workspace the others begin */
    int64_t clusters;      /* to launch */
    int per_cluster;       /* CTAs, if no more clusters are launched than the device holds; else 0 */
    const int64_t *words;  /* further numbers */
    int word_count;
    int arch;              /* as 90: of the device */
    size_t workspace;      /* bytes */
} Kernel;

HIDDEN void *TVMFFIEnvGetStream(int32_t type, int32_t device) { (void)type, (void)device; return NULL; } /* one is passed */

static int launch(const Kernel *kernel, void *const *pointers, void *workspace, void *stream) {
    Tensor tensors[MOST_TENSORS];
    Any parts[MOST_TENSORS], numbers[MOST_NUMBERS], result = {0, 0, {0}};
    int device, code, major, minor, most, i;
    said = 0;
    if ((code = enter(&device))) return code;
    code = checked(cuda.cuDeviceGetAttribute(&major, 75, device), "cuDeviceGetAttribute");
    if (code || (code = checked(cuda.cuDeviceGetAttribute(&minor, 76, device), "cuDeviceGetAttribute"))) return code;
    if (10 * major + minor != kernel->arch)
        return fail(209, "the kernel is for sm_%d, and the device is sm_%d%d", kernel->arch, major, minor);
    if (kernel->workspace && (!workspace || (uintptr_t)workspace % 128))
        return fail(1, "needs a workspace of %zu bytes on 128-byte boundaries, which is 0 before the first call", kernel->workspace);
    numbers[0] = (Any){INT, 0, {kernel->clusters}};
    if (kernel->per_cluster) {
        if ((code = resident(device, kernel->per_cluster, &most))) return code;
        if (most < numbers[0].value.number) numbers[0].value.number = most;
    }
    for (i = 0; i < kernel->word_count; i++) numbers[1 + i] = (Any){INT, 0, {kernel->words[i]}};
    for (i = 0; i < kernel->count; i++) {
        tensors[i] = kernel->tensors[i];
        tensors[i].device_type = ON_CUDA;
        tensors[i].device = device;
        tensors[i].data = i < kernel->passed ? pointers[i] : (char *)workspace + kernel->places[i - kernel->passed];
        parts[i] = (Any){TENSOR, 0, {.pointer = &tensors[i]}};
    }
    Array first = {1, ARRAY, 0, NULL, parts, kernel->count, kernel->count, NULL};
    Array second = {1, ARRAY, 0, NULL, numbers, 1 + kernel->word_count, 1 + kernel->word_count, NULL};
    Any arguments[3] = {{ARRAY, 0, {.pointer = &first}}, {ARRAY, 0, {.pointer = &second}}, {POINTER, 0, {.pointer = stream}}};
    if (kernel->call(NULL, arguments, 3, &result)) return fail(1, "the launch failed");
    return 0;
}

/* The device on which a launch from this thread runs; -1 if there is none. */
PUBLIC int tmapipe_device(void) {
    int device;
    said = 0;
    return enter(&device) ? -1 : device;
}

/* Memory that is 0, for a workspace; 0 on success. */
PUBLIC int tmapipe_memory(size_t bytes, void **made) {
    uint64_t address = 0;
    int device, code;
    said = 0;
    if ((code = enter(&device)) || (code = checked(cuda.cuMemAlloc(&address, bytes), "cuMemAlloc"))) return code;
    *made = (void *)(uintptr_t)address;
    return checked(cuda.cuMemsetD8(address, 0, bytes), "cuMemsetD8");
}
