#include "softmax_device.h"

#include <cuda_runtime_api.h>

namespace attngraft
{
namespace
{

#if defined(ATTNGRAFT_CLUSTERS)
constexpr bool kCompilesClusters = true;
#else
constexpr bool kCompilesClusters = false;
#endif

} // namespace

SoftmaxDevice currentSoftmaxDevice()
{
    SoftmaxDevice device{1, false};
    int index = 0;
    int clusters = 0;
    int sharedBytes = 0;
    if (cudaGetDevice(&index) == cudaSuccess
        && cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, index) == cudaSuccess
        && cudaDeviceGetAttribute(&sharedBytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, index) == cudaSuccess
        && cudaDeviceGetAttribute(&device.multiprocessors, cudaDevAttrMultiProcessorCount, index) == cudaSuccess)
    {
        device.hasClusters = kCompilesClusters && clusters != 0;
        device.sharedBytes = sharedBytes;
    }
    return device;
}

} // namespace attngraft
