/* Stands in for libcuda.so.1 and for the few runtime calls that torch makes on its own, so that a CUDA build of torch and
   vLLM loads and runs on a machine without a GPU and without a driver.

   Loaded with RTLD_GLOBAL before torch: the driver's symbols satisfy the extensions that link against it, and the
   runtime's symbols are found here before libcudart's own. Every driver call says "no device" (100), so that anything that
   would really need the driver fails instead of answering wrongly. */

#define ABSENT(name) int name(void) { return 100; }

ABSENT(cuInit)
ABSENT(cuGetErrorString)
ABSENT(cuGetErrorName)
ABSENT(cuGetProcAddress)
ABSENT(cuGetProcAddress_v2)
ABSENT(cuDriverGetVersion)
ABSENT(cuMemCreate)
ABSENT(cuMemMap)
ABSENT(cuMemUnmap)
ABSENT(cuMemRelease)
ABSENT(cuMemAddressReserve)
ABSENT(cuMemAddressFree)
ABSENT(cuMemSetAccess)
ABSENT(cuMemGetAllocationGranularity)
ABSENT(cuMemsetD8Async)
ABSENT(cuMemcpyDtoDAsync_v2)
ABSENT(cuMemcpyDtoHAsync_v2)
ABSENT(cuTensorMapEncodeTiled)
ABSENT(cuTensorMapEncodeIm2col)
ABSENT(cuDeviceGet)
ABSENT(cuDeviceGetCount)
ABSENT(cuDeviceGetAttribute)
ABSENT(cuDeviceGetName)
ABSENT(cuCtxGetCurrent)
ABSENT(cuCtxGetDevice)
ABSENT(cuCtxSetCurrent)
ABSENT(cuCtxPopCurrent_v2)
ABSENT(cuCtxPushCurrent_v2)
ABSENT(cuDevicePrimaryCtxRetain)
ABSENT(cuDevicePrimaryCtxRelease_v2)
ABSENT(cuLaunchKernel)
ABSENT(cuLaunchKernelEx)
ABSENT(cuModuleLoadData)
ABSENT(cuModuleGetFunction)
ABSENT(cuModuleUnload)
ABSENT(cuPointerGetAttribute)
ABSENT(cuFuncSetAttribute)
ABSENT(cuFuncGetAttribute)
ABSENT(cuStreamSynchronize)

/* Tensor.to("cuda") and device guards ask the runtime which device is current. */
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaSetDevice(int device) { (void)device; return 0; }
int cudaGetDeviceCount(int *count) { *count = 8; return 0; }
int cudaGetLastError(void) { return 0; }
int cudaPeekAtLastError(void) { return 0; }
int cudaDeviceSynchronize(void) { return 0; }
int cudaDriverGetVersion(int *version) { *version = 13000; return 0; }
int cudaRuntimeGetVersion(int *version) { *version = 13000; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    (void)device;
    *flags = 0;
    *active = 0;
    return 0;
}
