#include "bulk_copies.h"

#include <cuda_runtime_api.h>

namespace attngraft
{
namespace
{

constexpr int kColumnsOfBox = 64; //!< 128 bytes, a row of a swizzled panel

//! The driver's function. Asked for at run time: the library does not link the driver.
decltype(&cuTensorMapEncodeTiled) encodeTiled()
{
    static auto const function = [] {
        constexpr unsigned kSince = 12000;
        void* found = nullptr;
        cudaDriverEntryPointQueryResult status{};
        bool const isThere =
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kSince, cudaEnableDefault, &status)
            == cudaSuccess;
        return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(
            isThere && status == cudaDriverEntryPointSuccess ? found : nullptr);
    }();
    return function;
}

bool describe(
    CUtensorMap& map, HeadTensor<void const*> const& tensor, AttentionPlan const& plan, int size, int tileKeys)
{
    constexpr cuuint64_t kElementBytes = 2;
    auto const bytes = [](int64_t stride) { return static_cast<cuuint64_t>(stride) * kElementBytes; };
    cuuint64_t const sizes[] = {static_cast<cuuint64_t>(size), static_cast<cuuint64_t>(plan.keys),
        static_cast<cuuint64_t>(plan.kvHeads), static_cast<cuuint64_t>(plan.batch)};
    cuuint64_t const strides[] = {bytes(tensor.rowStride), bytes(tensor.headStride), bytes(tensor.batchStride)};
    cuuint32_t const box[] = {kColumnsOfBox, static_cast<cuuint32_t>(tileKeys), 1, 1};
    cuuint32_t const steps[] = {1, 1, 1, 1};
    auto const type =
        plan.type == DataType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    return encodeTiled()(&map, type, 4, const_cast<void*>(tensor.data), sizes, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
        == CUDA_SUCCESS;
}

} // namespace

BulkCopies makeBulkCopies(AttentionPlan const& plan, int tileKeys)
{
    BulkCopies copies;
    copies.isUsable = encodeTiled() != nullptr && plan.keys > 0
        && describe(copies.keys, plan.key, plan, plan.headSize, tileKeys)
        && describe(copies.values, plan.value, plan, plan.valueSize, tileKeys);
    return copies;
}

} // namespace attngraft
