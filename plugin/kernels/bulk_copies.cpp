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

//! Dimensions of a tensor from the columns on, strides in elements from the second on.
template <int dims>
struct Extents
{
    int64_t sizes[dims];
    int64_t strides[dims - 1];
};

template <int dims>
bool describe(CUtensorMap& map, void const* data, DataType elements, Extents<dims> const& extents, int boxRows)
{
    constexpr cuuint64_t kElementBytes = 2;
    cuuint64_t sizes[dims];
    cuuint64_t strides[dims - 1];
    cuuint32_t box[dims];
    cuuint32_t steps[dims];
    for (int i = 0; i < dims; ++i)
    {
        sizes[i] = static_cast<cuuint64_t>(extents.sizes[i]);
        box[i] = steps[i] = 1;
    }
    for (int i = 0; i < dims - 1; ++i)
    {
        strides[i] = static_cast<cuuint64_t>(extents.strides[i]) * kElementBytes;
    }
    box[0] = kColumnsOfBox;
    box[1] = static_cast<cuuint32_t>(boxRows);
    auto const type =
        elements == DataType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    return encodeTiled()(&map, type, dims, const_cast<void*>(data), sizes, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
        == CUDA_SUCCESS;
}

bool describeQueries(CUtensorMap& map, AttentionPlan const& plan, int tileRows)
{
    HeadTensor<void const*> const& tensor = plan.query;
    Extents<5> const extents{{plan.headSize, plan.queries, plan.headsOfGroup.value, plan.kvHeads, plan.batch},
        {tensor.rowStride, tensor.headStride, plan.queryGroupStride, tensor.batchStride}};
    return describe(map, tensor.data, plan.type, extents, tileRows);
}

bool describeKeys(
    CUtensorMap& map, HeadTensor<void const*> const& tensor, AttentionPlan const& plan, int size, int tileKeys)
{
    Extents<4> const extents{
        {size, plan.keys, plan.kvHeads, plan.batch}, {tensor.rowStride, tensor.headStride, tensor.batchStride}};
    return describe(map, tensor.data, plan.type, extents, tileKeys);
}

} // namespace

BulkCopies makeBulkCopies(AttentionPlan const& plan, int tileRows, int tileKeys)
{
    BulkCopies copies;
    if (encodeTiled() == nullptr)
    {
        return copies;
    }
    copies.areQueriesUsable = describeQueries(copies.queries, plan, tileRows);
    copies.isUsable = plan.keys > 0 && describeKeys(copies.keys, plan.key, plan, plan.headSize, tileKeys)
        && describeKeys(copies.values, plan.value, plan, plan.valueSize, tileKeys);
    return copies;
}

} // namespace attngraft
